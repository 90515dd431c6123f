"""llama.cpp and Ollama: slots, caches and buffers by hand and by their logs."""

from dataclasses import replace

import pytest

from kvplan.capacity import RequestShape, fit
from kvplan.engines import engine_of, engine_plan, parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.flag_values import Served
from kvplan.engines.llama_cpp.cache import CACHE_TYPES, cache_types, compute_buffer_bytes, divide_context, window_cells
from kvplan.engines.llama_cpp.devices import device_layers, device_weights
from kvplan.errors import InputError
from kvplan.layers import (
    FullAttention,
    IndexKeys,
    Mamba2State,
)
from kvplan.model import ModelSpec
from kvplan.sources import read_model
from kvplan.units import GIB, MIB
from tests.test_engines_others import CONTEXT, DENSE, FULL, LATENT, WINDOW, model_of, plan_of


def test_cells_of_windows() -> None:
    """min(cells, window × slots that share + micro-batch), up to 256; all cells with the full-cache switch."""
    one, shared, divided = (
        divide_context(131_072, 1, None),
        divide_context(32_768, 4, True),
        divide_context(32_768, 4, False),
    )
    assert window_cells(1024, one, 512) == 1536
    assert window_cells(1024, shared, 512) == 4608
    assert window_cells(1024, divided, 512) == 1536
    assert window_cells(1024, divide_context(1024, 1, None), 512) == 1024
    assert window_cells(1024, one, 512, swa_full=True) == 131_072
    assert (divided.window_tokens, divided.cells, divided.all_cells) == (8192, 8192, 32_768)
    with pytest.raises(InputError, match="leave none"):
        divide_context(3, 4, False)


def test_the_compute_buffer_is_as_logs_print_it() -> None:
    """Qwen2.5-14B 307 MiB, Llama-2-7B 70.5 MiB."""
    assert compute_buffer_bytes(512, 152_064, 5120) == 307 * MIB
    assert compute_buffer_bytes(512, 32_000, 4096) == round(70.5 * MIB)


@pytest.mark.parametrize("name", list(CACHE_TYPES))
def test_cache_types_price_every_token(name: str) -> None:
    plan = plan_of("llama.cpp", DENSE, cache_type_k=name, cache_type_v="f16", max_model_len=8192, max_num_seqs=1)
    stored = CACHE_TYPES[name]
    assert plan.layout.bytes_per_block == 32 * (1024 * stored.bytes_per_group // stored.elements_per_group + 2048)
    assert cache_types(None, None, "bfloat16").key.name == "bf16"


def test_is_static() -> None:
    """The pool is what was asked for, not what is left; what does not fit does not start."""
    plan = plan_of("llama.cpp", DENSE, max_model_len=8192, max_num_seqs=2)
    assert (plan.blocks, plan.settings.max_model_len, plan.starts) == (8192, 4096, True)
    assert plan.kv_bytes == 8192 * 131_072
    big = plan_of("llama.cpp", DENSE, max_model_len=65_536, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,))
    assert not big.starts
    finding = next(finding for finding in big.findings if finding.code == "cache-does-not-fit")
    assert finding.hint is not None
    most = int(finding.hint.split()[-1])
    assert plan_of("llama.cpp", DENSE, max_model_len=most, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,)).starts
    assert not plan_of(
        "llama.cpp", DENSE, max_model_len=most + 4 * 256, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,)
    ).starts


def test_states_are_float32_and_one_a_slot() -> None:
    mamba = Mamba2State(heads=64, head_dim=64, state=128, groups=8, conv_kernel=4)
    plan = plan_of("llama.cpp", model_of(*[mamba, FULL] * 4), max_model_len=8192, max_num_seqs=3, kv_unified=True)
    assert plan.budget is not None
    term = next(term for term in plan.budget.terms if term.name == "recurrent_state")
    assert term.bytes == 3 * 4 * 4 * (3 * (4096 + 2 * 8 * 128) + 64 * 64 * 128)
    pure = plan_of("llama.cpp", model_of(mamba, mamba), max_model_len=8192, max_num_seqs=3)
    assert (pure.blocks, pure.layout.request_blocks(8192), pure.starts) == (3, 1, True)


def test_index_keys_are_one_head_of_the_key_type() -> None:
    """61 × (576 + 128) values in f16, as the GGUF reader says of the same model."""
    both = ModelSpec(**{**vars(DENSE), "layers": ((LATENT, IndexKeys(bytes_per_entry=132)),) * 61})
    plan = plan_of("llama.cpp", both, max_model_len=4096, max_num_seqs=1)
    assert plan.layout.bytes_per_block == 61 * (576 + 128) * 2
    assert plan.layout.groups[0].layers == 61


def test_splits_layers_over_gpus() -> None:
    """With the head there are 33: the first of two equal GPUs gets the 17 of which i / 33 is less than a half."""
    plan = plan_of("llama.cpp", DENSE, max_model_len=8192, max_num_seqs=1, tensor_parallel=2)
    assert plan.layout.bytes_per_block == 17 * 4096
    # Qwen1.5-72B, MHA, over two GPUs as --tensor-split says: 27 layers × 2 × 8,192 × 2 B × 13,000 cells, as its log
    # of early 2024 says; later builds allocate whole 256
    mha = model_of(*[FullAttention(kv_heads=64, head_dim=128, value_head_dim=128)] * 80)
    asked = Deployment(
        gpu_memory_bytes=(80 * GIB,),
        max_model_len=13_000,
        max_num_seqs=1,
        pipeline_parallel=2,
        pipeline_layers=(27, 53),
    )
    early, split = (engine_plan(mha, replace(asked, engine=parse_engine(f"llama.cpp@b{n}"))) for n in (2300, 2775))
    shares = [finding.message for plan in (early, split) for finding in plan.findings if finding.code == "kv-by-gpu"]
    assert shares == [
        "KV by GPU: 27 layers 10,968.75 MiB, 53 layers 21,531.25 MiB",
        "KV by GPU: 27 layers 11,016.00 MiB, 53 layers 21,624.00 MiB",
    ]
    flags = engine_of("llama.cpp").flags
    served = Served(
        model=mha,
        deployment=Deployment(max_model_len=13_000, pipeline_layers=(27, 53)),
        settings=split.settings,
        window_tokens=13_000,
    )
    assert (flags["--tensor-split"](served), flags["--ctx-size"](served)) == ("27,54", 13_000)
    with pytest.raises(InputError, match="one has none"):
        device_layers(8, (100, 1))


def test_builds_differ_in_slots_and_windows() -> None:
    """Four slots on one cache since November 2025; window layers have a cache of their own since May 2025."""
    model = model_of(*[WINDOW, FULL] * 16)
    newest, middle, early = (
        engine_plan(
            model,
            Deployment(engine=parse_engine(engine), gpu_memory_bytes=(80 * GIB,), max_model_len=32_768),
        )
        for engine in ("llama.cpp", "llama.cpp@b6000", "llama.cpp@b5000")
    )
    assert [plan.settings.max_num_seqs for plan in (newest, middle, early)] == [4, 1, 1]
    cells = [plan.kv_bytes // (16 * 4096) - 32_768 for plan in (newest, middle, early)]
    assert cells == [4 * 1024 + 512, 1024 + 512, 32_768]
    early_server = Served(
        model=model,
        deployment=Deployment(engine=parse_engine("llama.cpp@b5000")),
        settings=early.settings,
        window_tokens=32_768,
    )
    flags = {name: value(early_server) for name, value in engine_of("llama.cpp").flags.items()}
    assert (flags["--kv-unified"], flags["--no-kv-unified"], flags["--parallel"]) == (None, None, 1)


def test_leaves_the_embedding_on_the_host() -> None:
    """Llama-3.1-8B: 8,030,261,248 parameters, 128,256 × 4,096 of them the embedding; tied, it is the head's copy."""
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    on_gpu = device_weights(model, (range(32),), 0).bytes
    assert on_gpu == 2 * (8_030_261_248 - 128_256 * 4096)
    two = [device_weights(model, (range(17), range(17, 32)), device).bytes for device in (0, 1)]
    assert sum(two) == on_gpu
    assert two[1] - two[0] * 15 // 17 == 2 * (128_256 * 4096 + 4096)
    small = read_model("meta-llama/Llama-3.2-1B-Instruct", offline=True)
    assert device_weights(small, (range(16),), 0).bytes == 2 * 1_235_814_400


def test_caps_a_slot_at_what_the_model_was_trained_for() -> None:
    """The server warns of a "possible training context overflow" and caps the slot, its cache allocated as asked."""
    beyond = plan_of("llama.cpp", DENSE, max_model_len=2 * CONTEXT, max_num_seqs=1)
    assert beyond.settings.max_model_len == CONTEXT
    assert beyond.blocks == 2 * CONTEXT
    (found,) = [each for each in beyond.findings if each.code == "slot-capped-at-training-context"]
    assert (found.severity, found.hint) == ("warning", f"--context {CONTEXT}")
    # four slots on one cache can use together what none may use alone
    shared = plan_of("llama.cpp", DENSE, max_model_len=4 * CONTEXT, kv_memory_bytes=200 * GIB)
    assert [each.severity for each in shared.findings if each.code == found.code] == ["info"]
    assert not [each for each in plan_of("llama.cpp", DENSE).findings if each.code == found.code]
    odd = model_of(FullAttention(kv_heads=8, head_dim=80, value_head_dim=80))
    with pytest.raises(InputError, match="whole groups of 32"):
        plan_of("llama.cpp", odd, cache_type_k="q8_0", max_model_len=1024)


def test_shared_slots_promise_each_other_s_cells() -> None:
    planned = fit(
        DENSE,
        Deployment(engine=parse_engine("llama.cpp"), gpu_memory_bytes=(80 * GIB,), max_model_len=16_384),
        [RequestShape(name="chat", prompt_tokens=3000, max_output_tokens=1096)],
    )
    assert planned.reservations[0].sequences == 4
    assert planned.concurrency == 1


def test_ollama_multiplies_the_window_by_its_parallel_requests() -> None:
    """num_ctx 4,096 × 4 = 16,384 cells (github.com/ollama/ollama/issues/9246); else by memory, cut to the model's."""
    plan = plan_of("ollama", DENSE, max_model_len=4096, max_num_seqs=4)
    assert (plan.blocks, plan.settings.max_model_len, plan.settings.max_num_seqs) == (16_384, 4096, 4)
    windows = [
        plan_of("ollama", DENSE, gpu_memory_bytes=(amount * GIB,), weight_bytes=GIB).settings.max_model_len
        for amount in (16, 24, 80)
    ]
    assert windows == [4096, 32_768, CONTEXT]
    served = Served(model=DENSE, deployment=Deployment(kv_dtype="q8_0"), settings=plan.settings, window_tokens=4096)
    words = "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=4 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve"
    assert engine_of("ollama").command(served) == words
    short = plan_of("ollama", DENSE, gpu_memory_bytes=(12 * GIB,), max_model_len=CONTEXT)
    hints = {finding.code: finding.hint or "" for finding in short.findings}
    assert "OLLAMA_NUM_PARALLEL" in hints["cache-does-not-fit"]
