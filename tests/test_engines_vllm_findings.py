"""What a vLLM plan warns about, and the options that it refuses rather than ignores."""

import re
from dataclasses import replace

import pytest

from kvplan.capacity import Fit, RequestShape, fit
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment, MediaLimit
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import FLOAT32, FullAttention, Mamba2State, SlidingAttention
from kvplan.model import EncoderShape, Shape
from kvplan.profiles.kinds import GpuProfile
from kvplan.profiles.loader import load_gpu
from kvplan.report.fit_text import text
from kvplan.report.page import render
from kvplan.sources import read_model
from kvplan.units import GIB
from tests.models import model_of

FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
STATE = Mamba2State(heads=128, head_dim=64, state=128, groups=8, conv_kernel=4, temporal_type=FLOAT32)
LLAMA, HYBRID = model_of([[FULL]] * 32), model_of([[FULL], [STATE]] * 4)
B200 = GpuProfile(
    name="b200",
    vendor="nvidia",
    family="Blackwell",
    memory_bytes=178 * GIB,
    bandwidth_bytes_per_s=1,
    flops_per_s={},
    sources=("test",),
    checked="2026-11-30",
    compute_capability=(10, 0),
)


def codes(answer: Fit) -> dict[str, str]:
    return {finding.code: finding.severity for finding in answer.findings}


def test_a_plain_plan_has_no_findings() -> None:
    assert codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB))) == {}


def test_more_sequences_than_state_blocks_do_not_start() -> None:
    """A practitioner's start-up at 0.25.1: 614 state blocks, 1,024 sequences by default: refused, lower it to 614."""
    block_bytes = fit(HYBRID, Deployment(kv_memory_bytes=10 * GIB)).plan.layout.bytes_per_block
    answer = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes))
    assert answer.plan.blocks == 614
    (found,) = [finding for finding in answer.findings if finding.code == "max-num-seqs-above-state-blocks"]
    assert (found.severity, found.hint) == ("warning", "--max-num-seqs 614")  # the default, which the flags lower
    asked = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes, max_num_seqs=1024))
    assert codes(asked)["max-num-seqs-above-state-blocks"] == "error"
    enough = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes, max_num_seqs=614))
    assert "max-num-seqs-above-state-blocks" not in codes(enough)
    eager = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes, enforce_eager=True))
    assert "max-num-seqs-above-state-blocks" not in codes(eager)


def test_sequences_that_can_never_run_together_are_reported() -> None:
    answer = fit(LLAMA, Deployment(kv_memory_bytes=GIB, max_model_len=1024))
    assert codes(answer) == {"max-num-seqs-above-pool": "info"}
    assert answer.findings[0].hint == "--max-num-seqs 511"


def test_a_hybrids_charge_is_explained() -> None:
    assert codes(fit(HYBRID, Deployment(kv_memory_bytes=200 * GIB)))["hybrid-charges-more-than-stored"] == "info"


def test_a_window_hybrids_charge_is_explained_beside_what_is_stored() -> None:
    """gemma-3-27b of 5,000 tokens stores (10 × 5,000 + 52 × 1,024) × 2 × 16 × 128 × 2 B."""
    gemma = read_model("google/gemma-3-27b-it", offline=True)
    shape = RequestShape(name="chat", prompt_tokens=4000, max_output_tokens=1000)
    answer = fit(gemma, Deployment(kv_memory_bytes=200 * GIB), [shape])
    assert codes(answer)["hybrid-charges-more-than-stored"] == "info"
    assert answer.reservations[0].logical_bytes == (10 * 5000 + 52 * 1024) * 2 * 16 * 128 * 2
    assert re.search(r"chat +5,000 .* 807 MiB", render(text(answer, (), "kvplan fit")))


def test_expert_parallelism_is_not_ignored() -> None:
    found = codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, expert_parallel=True)))
    assert found == {"expert-parallel-buffers": "info"}


@pytest.mark.parametrize(("capability", "said"), [((8, 0), False), ((9, 0), False), ((10, 0), True), (None, True)])
def test_unchecked_generations_are_named(capability: tuple[int, int] | None, said: bool) -> None:
    device = replace(B200, compute_capability=capability)
    found = codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, gpu=device)))
    assert ("gpu-generation-unchecked" in found) == said


def test_unpriced_options_that_change_the_pool_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot tell"):
        fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, speculative_tokens=3))
    with pytest.raises(InputError, match="cache_type_k is an option of llama"):
        fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, cache_type_k="q8_0"))


def test_gemma_4_needs_a_step_that_holds_a_video() -> None:
    """A start-up on a small card prints 2,496 = 32 frames × (70 + 8) tokens, where others take 2,048."""
    small = Deployment(kv_memory_bytes=10 * GIB, gpu_memory_bytes=(44 * GIB,))
    tower = EncoderShape(hidden=1152, intermediate=4304, patches_per_token=9, item_tokens=32 * (70 + 8))
    shape = Shape(hidden=4096, has_vision=True, encoder=tower)
    gemma = replace(LLAMA, architecture="Gemma4ForConditionalGeneration", shape=shape)
    assert fit(gemma, small).plan.settings.max_num_batched_tokens == 2496
    assert fit(LLAMA, small).plan.settings.max_num_batched_tokens == 2048


def test_a_window_in_some_layers_only_is_refused_where_the_class_asserts_it() -> None:
    """Asked for Qwen2.5-7B with a window from layer 20 on, vLLM 0.33 says "Sliding window for some but all layers is
    not supported. This model uses sliding window but `max_window_layers` = 20 is less than `num_hidden_layers` = 28";
    with the window in all 28 layers it starts."""
    window = SlidingAttention(kv_heads=4, head_dim=128, value_head_dim=128, window=4096)
    some = model_of([[FULL]] * 20 + [[window]] * 8)
    asked = Deployment(kv_memory_bytes=10 * GIB)
    for architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        with pytest.raises(UnsupportedModelError, match="some but not all layers"):
            fit(replace(some, architecture=architecture), asked)
    assert fit(some, asked).plan.blocks
    assert fit(replace(model_of([[window]] * 28), architecture="Qwen2ForCausalLM"), asked).plan.blocks
    mixed = replace(model_of([[FULL], [window]] * 14), architecture="Qwen3ForCausalLM")
    assert fit(mixed, asked).plan.blocks, "a list of layer types is another matter"


def test_prompts_that_are_not_chunked_must_fit_a_step() -> None:
    """A step below the window is refused; the default grows. Source: vLLM 0.33, ``verify_max_model_len``."""
    whole = Deployment(kv_memory_bytes=40 * GIB, chunked_prefill=False)
    assert fit(LLAMA, whole).plan.settings.max_num_batched_tokens == 32_768
    assert fit(LLAMA, replace(whole, chunked_prefill=None)).plan.settings.max_num_batched_tokens == 8192
    with pytest.raises(InputError, match="shorter than the window"):
        fit(LLAMA, replace(whole, max_num_batched_tokens=8192))
    shapes = [RequestShape(name=f"{n:,}", prompt_tokens=n, max_output_tokens=100) for n in (2048, 2501)]
    old = fit(LLAMA, replace(whole, engine=parse_engine("vllm@0.7.2"), max_num_batched_tokens=2048), shapes)
    assert [one.sequences > 0 for one in old.reservations] == [True, False]
    assert codes(old)["prompt-longer-than-step"] == "error"


def test_windows_are_sized_for_one_step_before_0_26() -> None:
    """A user's start-ups of Gemma-4 with steps of 32,768 tokens: 2,113 blocks a window group at 0.25.1, 4,161 at 0.26
    (github.com/vllm-project/vllm/issues/49878)."""
    window = SlidingAttention(kv_heads=16, head_dim=256, value_head_dim=256, window=1024)
    gemma = model_of([[window]] * 5 + [[FULL]], window=262_144)
    charged = {
        release: fit(
            gemma,
            Deployment(
                engine=parse_engine(f"vllm@{release}"), kv_memory_bytes=100 * GIB, max_num_batched_tokens=32_768
            ),
        )
        for release in ("0.25.1", "0.26", "0.33")
    }
    blocks = {
        release: next(
            group.request_blocks(262_144, answer.plan.layout.in_flight_tokens)
            for group in answer.plan.layout.groups
            if group.rule == "sliding"
        )
        for release, answer in charged.items()
    }
    assert blocks == {"0.25.1": 2113, "0.26": 4161, "0.33": 4161}


def test_encoders_are_left_out_where_no_media_are_allowed() -> None:
    """A tower all of whose media are limited to 0. Source: vLLM 0.33, ``SupportsMultiModal``."""
    gemma = read_model("google/gemma-3-27b-it", offline=True)
    asked = Deployment(gpu=load_gpu("h100"), max_model_len=8192)
    none = tuple(MediaLimit(modality=modality, items=0) for modality in ("image", "video"))
    usual, limited, text = (
        fit(gemma, replace(asked, media_limits=limits)).plan.budget for limits in (None, (none[1],), none)
    )
    assert usual is not None
    assert limited is not None
    assert text is not None
    assert limited.kv_bytes == usual.kv_bytes < text.kv_bytes
    tower = sum(part.parameters for part in gemma.weights.parts if part.name.startswith("vision.")) * 2
    weights = [next(term.bytes for term in each.terms if term.name == "weights") for each in (usual, text)]
    assert weights[0] - weights[1] == tower > 0


def test_a_class_that_vllm_dropped_is_named() -> None:
    mpt = replace(LLAMA, architecture="MptForCausalLM")
    assert codes(fit(mpt, Deployment(kv_memory_bytes=10 * GIB))) == {"model-class-dropped": "warning"}
    older = Deployment(kv_memory_bytes=10 * GIB, engine=parse_engine("vllm@0.28"))
    assert "model-class-dropped" not in codes(fit(mpt, older))


@pytest.mark.parametrize(("engine", "is_warned"), [("vllm@0.25", True), ("vllm@0.27", True), ("vllm@0.28", False)])
def test_a_state_of_every_block_is_not_priced(engine: str, is_warned: bool) -> None:
    """Mamba cache mode "all" is the default of such classes where prefixes are cached, "align" since 0.28."""
    hybrid = replace(HYBRID, architecture="NemotronHForCausalLM")
    asked = Deployment(engine=parse_engine(engine), kv_memory_bytes=10 * GIB)
    assert "states-of-every-block" not in codes(fit(hybrid, asked))
    assert ("states-of-every-block" in codes(fit(hybrid, replace(asked, prefix_caching=True)))) is is_warned


def test_a_step_shorter_than_a_state_block_is_refused_up_to_0_26() -> None:
    """A practitioner's start-up of Qwen3.5-122B-A10B on 0.20.2: "In Mamba cache align mode, block_size (2096) must be
    <= max_num_batched_tokens (2048)"; with 4,096 it prints 31.20 windows of 8,192 for 14.99 GiB."""
    model = read_model("Qwen/Qwen3.5-122B-A10B", offline=True)
    asked = Deployment(
        engine=parse_engine("vllm@0.20.2"),
        kv_memory_bytes=int(14.99 * GIB),
        max_model_len=8192,
        max_num_batched_tokens=2048,
        prefix_caching=True,
    )
    (found,) = [finding for finding in fit(model, asked).findings if finding.code == "step-below-state-block"]
    assert (found.severity, "2,096" in found.message) == ("error", True)
    longer = fit(model, replace(asked, max_num_batched_tokens=4096))
    assert ("step-below-state-block" in codes(longer), round(float(longer.concurrency), 2)) == (False, 31.2)
    for other in (replace(asked, prefix_caching=False), replace(asked, engine=parse_engine("vllm@0.27"))):
        assert "step-below-state-block" not in codes(fit(model, other))


def test_an_encoder_decoder_without_a_class_is_named() -> None:
    """By vLLM 0.33 (``registry.py``) Whisper has a class, BART a plugin, T5 neither; the first engine had BART's."""
    bart, whisper = (read_model(name, offline=True) for name in ("facebook/bart-base", "openai/whisper-large-v3"))
    asked = Deployment(kv_memory_bytes=10 * GIB)
    assert codes(fit(bart, asked))["model-class-by-plugin"] == "warning"
    assert "model-class-by-plugin" not in codes(fit(whisper, asked))
    assert "model-class-by-plugin" not in codes(fit(bart, replace(asked, engine=parse_engine("vllm@0.9"))))
