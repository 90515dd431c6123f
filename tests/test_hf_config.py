"""config.json to a model: golden figures of published models, one test a trap, refusals that name the key."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError, KvplanError, UnsupportedModelError
from kvplan.hf_config import read_config
from kvplan.hf_config.config import Fields
from kvplan.hf_config.families import (
    ARCHITECTURES,
    MODEL_TYPES,
    find_family,
    known_family,
    language_block,
    plain_family,
)
from kvplan.hf_config.readers import READERS
from kvplan.hf_config.shape import encoder_shape
from kvplan.layers import (
    FLOAT32,
    FullAttention,
    GatedDeltaState,
    KdaState,
    LatentAttention,
    LightningState,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import EncoderShape, ModelSpec, Source
from tests.published import Published, evaluate, load_published, stored_types
from tests.tables.models import unanswered, verdicts

PUBLISHED = load_published()
STATIC_FLOAT8: dict[str, Any] = {"dynamic": False, "num_bits": 8, "type": "float"}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any], **facts: Any) -> ModelSpec:
    return read_config(config, model_id="org/model", source=Source(name="a test"), **facts)


def with_keys(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), **keys}


def named(architecture: str, **keys: Any) -> dict[str, Any]:
    """Llama's sizes under another architecture, whose name alone says the class."""
    return with_keys(without(LLAMA, "model_type"), architectures=[architecture], **keys)


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in copy.deepcopy(config).items() if key not in names}


def kv_heads(model: ModelSpec) -> set[int]:
    return {kept.kv_heads for layer in model.layers for kept in layer if isinstance(kept, FullAttention)}


def windows(model: ModelSpec) -> list[int | None]:
    return [layer[0].window_tokens for layer in model.layers]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda row: row.id)
def test_published_models_cost_what_a_person_writes_down(published: Published) -> None:
    model = published.read()
    kv = stored_types(model)
    assert model.growing_bytes_per_token(kv) == evaluate(published.growing)
    assert model.windowed_bytes_per_token(kv) == evaluate(published.windowed)
    assert model.fixed_bytes(kv) == evaluate(published.fixed)


def test_published_rows_are_sourced_and_many() -> None:
    assert len(PUBLISHED) >= 70
    assert all(row.source and row.checked_against for row in PUBLISHED)
    assert len({row.id for row in PUBLISHED}) == len(PUBLISHED)


def test_the_recorded_answers_are_met_to_the_byte(shared_data: Path) -> None:
    rows = list(verdicts(shared_data))
    assert [row for row in rows if row.outcome == "wrong"] == []
    assert [row for row in rows if row.outcome == "refused"] == []
    assert [row for row in rows if not row.context_right] == []
    assert len(rows) > 500


def test_complete_entries_without_an_answer_have_a_golden_row(shared_data: Path) -> None:
    written = {row.id for row in PUBLISHED}
    assert [row.model for row in unanswered(shared_data) if row.file == "copy" and row.model not in written] == []


# --- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "heads"),
    [
        ({"num_kv_heads": 71, "multi_query": True}, 1),  # Falcon-7B
        ({"num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True}, 8),  # Falcon-40B
        ({"multi_query": False}, 71),
    ],
)
def test_falcon_kv_heads(keys: dict[str, Any], heads: int) -> None:
    config = {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "num_attention_heads": 71 if heads != 8 else 128,
        "hidden_size": 4544 if heads != 8 else 8192,
        **keys,
    }
    model = read(config)
    assert kv_heads(model) == {heads}
    assert model.ignores_kv_dtype


@pytest.mark.parametrize(
    ("architecture", "heads"),
    [
        ("LlamaForCausalLM", 32),
        ("PhiForCausalLM", 32),
        ("CohereForCausalLM", 32),
        ("MistralForCausalLM", 8),
        ("MixtralForCausalLM", 8),
        ("Qwen2ForCausalLM", 32),
    ],
)
def test_absent_kv_heads_have_the_class_default(architecture: str, heads: int) -> None:
    first = read(without(named(architecture), "num_key_value_heads")).layers[0][0]
    assert isinstance(first, FullAttention | SlidingAttention)
    assert first.kv_heads == heads


def test_null_kv_heads_mean_one_per_query_head_where_the_class_says_so() -> None:
    assert kv_heads(read(with_keys(LLAMA, num_key_value_heads=None))) == {32}


def test_null_kv_heads_are_refused_where_the_class_refuses_them() -> None:
    config = named("MixtralForCausalLM", num_key_value_heads=None)
    with pytest.raises(UnsupportedModelError, match="num_key_value_heads is null") as caught:
        read(config)
    assert caught.value.key == "num_key_value_heads"


def test_an_explicit_head_width_wins() -> None:
    first = read(named("Qwen3ForCausalLM", hidden_size=2560)).layers[0][0]
    assert isinstance(first, FullAttention)
    assert first.head_dim == 128  # the class default, not 2560 / 32


def test_latent_rank_beats_head_counts() -> None:
    config = named(
        "DeepseekV3ForCausalLM",
        num_key_value_heads=128,
        num_attention_heads=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
    )
    assert read(config).layers == ((LatentAttention(latent_dim=512, rope_dim=64),),) * 32


def test_a_null_latent_rank_means_plain_heads() -> None:
    """DeepSeek-VL2-tiny: ``kv_lora_rank`` null, hidden 1280, 10 heads; the class's 64 is not a head width."""
    text = {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "hidden_size": 1280,
        "kv_lora_rank": None,
    }
    model = read(
        {"architectures": ["DeepseekVLV2ForCausalLM"], "model_type": "deepseek_vl_v2", "language_config": text}
    )
    assert model.layers == ((FullAttention(kv_heads=10, head_dim=128, value_head_dim=128),),) * 12


def test_a_latent_rank_is_read_whatever_the_class_is_called() -> None:
    config = {"model_type": "mla", "num_hidden_layers": 36, "num_attention_heads": 16, "hidden_size": 2048}
    model = read({**config, "kv_lora_rank": 256, "qk_rope_head_dim": 64})
    assert model.layers == ((LatentAttention(latent_dim=256, rope_dim=64),),) * 36
    assert any("no known class" in note for note in model.notes)


# --- windows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [4096] * 4),  # absent: the class default
        ({"sliding_window": None}, [None] * 4),
        ({"sliding_window": 0}, [None] * 4),
        ({"sliding_window": 1000}, [1000] * 4),
    ],
)
def test_mistral_windows(keys: dict[str, Any], expected: list[int | None]) -> None:
    config = named("MistralForCausalLM", num_hidden_layers=4, **keys)
    assert windows(read(config)) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"sliding_window": 512, "use_sliding_window": False}, [None] * 4),
        ({"sliding_window": 512}, [None] * 4),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 2}, [None, None, 512, 512]),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0}, [512] * 4),
    ],
)
def test_the_qwen_switch_wins(keys: dict[str, Any], expected: list[int | None]) -> None:
    config = named("Qwen2ForCausalLM", num_hidden_layers=4, **keys)
    assert windows(read(config)) == expected


@pytest.mark.parametrize(
    ("architecture", "layers", "expected"),
    [
        ("Gemma2ForCausalLM", 4, [4096, None, 4096, None]),
        ("Gemma3ForCausalLM", 7, [4096] * 5 + [None, 4096]),
        ("Olmo3ForCausalLM", 5, [4096] * 3 + [None, 4096]),
        ("Cohere2ForCausalLM", 5, [4097] * 3 + [None, 4097]),
        ("GptOssForCausalLM", 3, [128, None, 128]),
        ("CwmForCausalLM", 5, [None, 8192, 8192, 8192, None]),
    ],
)
def test_periods_that_no_key_says(architecture: str, layers: int, expected: list[int | None]) -> None:
    assert windows(read(named(architecture, num_hidden_layers=layers))) == expected


def test_exaone_letters() -> None:
    config = named(
        "Exaone4ForCausalLM",
        num_hidden_layers=5,
        sliding_window=4096,
        sliding_window_pattern="LLLG",
    )
    assert windows(read(config)) == [4096, 4096, 4096, None, None]  # the last layer is full


def test_an_extra_sliding_window_slides_every_layer_as_in_vllm() -> None:
    config = named("MiMoForCausalLM", sliding_window=32768, use_sliding_window=False)
    assert set(windows(read(config))) == {32768}


def test_llama_4_chunks_three_in_four() -> None:
    text = without(LLAMA, "architectures") | {"model_type": "llama4_text", "num_hidden_layers": 4, "head_dim": 128}
    model = read({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": text})
    assert windows(model) == [8192, 8192, 8192, None]
    listed = with_keys(text, no_rope_layers=[0, 1, 0, 1])
    model = read({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": listed})
    assert windows(model) == [None, 8192, None, 8192]


def test_gemma_4_ends_with_a_full_layer_and_a_wide_head() -> None:
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "hidden_size": 2048,
        "layer_types": ["sliding_attention"] * 4,
    }
    model = read({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text})
    assert windows(model) == [512, 512, 512, None]
    assert model.layers[3] == (FullAttention(kv_heads=2, head_dim=512, value_head_dim=512),)


def test_gemma_4_layers_may_be_said_one_by_one() -> None:
    """Source: vLLM 0.33, Gemma4Attention, which reads ``per_layer_config`` as transformers 5.20 saves it."""
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 2048,
        "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"01": {"head_dim": 384, "num_key_value_heads": 1}},
    }
    model = read({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text})
    assert model.layers[0] == (SlidingAttention(kv_heads=4, head_dim=256, value_head_dim=256, window=512),)
    assert model.layers[1] == (FullAttention(kv_heads=1, head_dim=384, value_head_dim=384),)


def test_kimi_linear_is_read_as_transformers_5_saves_it() -> None:
    """Kinds in ``layer_types``, sizes under flat keys (transformers 5.24, KimiLinearConfig)."""
    flat = {"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
    config = with_keys(LLAMA, num_hidden_layers=2, kv_lora_rank=512, qk_rope_head_dim=64, **flat)
    config |= {"architectures": ["KimiLinearForCausalLM"], "layer_types": ["linear_attention", "full_attention"]}
    state = KdaState(heads=32, dim=128, conv_kernel=4, temporal_type=FLOAT32)
    assert read(config).layers == ((state,), (LatentAttention(latent_dim=512, rope_dim=64),))


def test_shared_tails_keep_nothing_and_say_what_they_read() -> None:
    """Gemma 3n's default pattern: the last of every five layers is full."""
    text = {"model_type": "gemma3n_text", "num_hidden_layers": 35, "num_kv_shared_layers": 15}
    model = read({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text})
    tail = model.layers[20:]
    assert not any(isinstance(layer[0], SharedKv) for layer in model.layers[:20])
    assert tail == tuple((SharedKv(read=kept[0]),) for kept in model.layers[15:20] * 3)


def test_a_class_without_the_older_rope_key_is_not_stretched_by_it() -> None:
    """Source: vLLM 0.33 with transformers 5.20, Cohere2MoeConfig: 8,192, not 32,768."""
    scaled = without(LLAMA, "architectures") | {
        "max_position_embeddings": 8192,
        "rope_scaling": {"type": "dynamic", "factor": 4.0},
    }
    assert read(scaled | {"architectures": ["Cohere2MoeForCausalLM"]}).max_context_tokens == 8192
    assert read(scaled | {"architectures": ["LlamaForCausalLM"]}).max_context_tokens == 32768


def test_every_query_head_count_of_a_layer_must_divide() -> None:
    """Laguna-XS.2 (config.json): 48 query heads on full layers, 64 on sliding ones."""
    laguna = without(LLAMA, "architectures") | {
        "num_attention_heads": 48,
        "num_attention_heads_per_layer": [48, 64] * 16,
    }
    assert read(laguna | {"architectures": ["LagunaForCausalLM"], "head_dim": 128}).query_heads == (48, 64)


@pytest.mark.parametrize("place", ["quantization_config", "text_config"])
def test_a_modelopt_scheme_counts_only_outside_the_language_block(place: str) -> None:
    """Source: vLLM 0.33, resolve_kv_cache_dtype_string, which looks at the outer block alone."""
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"}
    text = without(LLAMA, "architectures") | {"model_type": "llama"}
    config: dict[str, Any] = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    if place == "text_config":
        text["quantization_config"] = block
    else:
        config["quantization_config"] = block
    assert read(config).kv_scheme == (None if place == "text_config" else "fp8_e4m3")


# --- blocks of the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [("text_config",), ("llm_config",), ("thinker_config", "text_config")])
def test_the_language_block_is_found_under_its_names(path: tuple[str, ...]) -> None:
    config: dict[str, Any] = without(LLAMA, "architectures")
    for name in reversed(path):
        config = {name: config}
    vision = {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152}
    model = read({"model_type": "vlm", "num_hidden_layers": 33, "hidden_size": 1152, "vision_config": vision, **config})
    assert len(model.layers) == 32
    assert model.shape.has_vision


def test_a_nearly_empty_block_has_its_class_defaults() -> None:
    model = read(
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "text_config": {"model_type": "llama"},
        }
    )
    assert model.layers == ((FullAttention(kv_heads=32, head_dim=128, value_head_dim=128),),) * 32
    assert (model.shape.vocabulary, model.shape.intermediate) == (32000, 11008)  # transformers 5.20, LlamaConfig


def test_a_flat_file_that_says_no_size_is_refused_with_all_that_is_missing() -> None:
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "some_config": {"hidden_size": 5120},
    }
    with pytest.raises(UnsupportedModelError, match=r"missing: number of layers .*KV heads") as caught:
        read(config)
    assert caught.value.key == "num_hidden_layers"


# --- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "dtype"),
    [(None, "bfloat16"), ("float32", "bfloat16"), ("float16", "float16"), ("bfloat16", "bfloat16")],
)
def test_type_a_model_runs_in(said: str | None, dtype: str) -> None:
    assert read(with_keys(LLAMA, torch_dtype=said)).dtype == dtype


def test_gemma_never_runs_in_float16() -> None:
    config = named("Gemma2ForCausalLM", torch_dtype="float16")
    assert read(config).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("block", "scheme"),
    [
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}},
            "fp8_e4m3",
        ),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": True, "num_bits": 8, "type": "float"}}, None),
        ({"quant_method": "modelopt", "kv_cache_scheme": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, None),
        ({"quant_method": "awq", "bits": 4}, None),
    ],
)
def test_kv_type_of_a_checkpoint(block: dict[str, Any], scheme: str | None) -> None:
    assert read(with_keys(LLAMA, quantization_config=block)).kv_scheme == scheme


@pytest.mark.parametrize(
    ("keys", "scheme"),
    [
        ({}, "fp8"),
        ({"architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe"}, None),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, None),
        ({"architectures": ["FalconForCausalLM"], "model_type": "falcon"}, "fp8"),
    ],
)
def test_a_compressed_tensors_scheme_needs_attention_that_is_told(keys: dict[str, Any], scheme: str | None) -> None:
    """Source: vLLM 0.33, Attention.__init__ reads the scheme from the quantisation that it is built with;
    BailingAttention is built without, MLAAttention does not look."""
    block = {"quant_method": "compressed-tensors", "kv_cache_scheme": STATIC_FLOAT8}
    model = read(with_keys(LLAMA, quantization_config=block, **keys))
    assert (model.kv_scheme, model.ignores_kv_dtype) == (scheme, False)


def test_the_file_beside_counts_only_without_a_block() -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    assert read(LLAMA, quantization=beside).kv_scheme == "fp8_e4m3"
    assert read(with_keys(LLAMA, quantization_config={"quant_method": "fp8"}), quantization=beside).kv_scheme is None


@pytest.mark.parametrize(
    ("model_type", "architecture", "in_float32"),
    [
        ("qwen3_5_text", "Qwen3_5ForConditionalGeneration", True),
        ("qwen3_5_text", None, True),
        ("qwen3_5_text", "MiniCPMV4_6ForConditionalGeneration", False),
        ("qwen3_next", "Qwen3NextForCausalLM", False),
    ],
)
def test_only_qwen_3_5_reads_its_state_type(model_type: str, architecture: str | None, in_float32: bool) -> None:
    text = {"model_type": model_type, "num_hidden_layers": 4, "mamba_ssm_dtype": "float32"}
    outer = {"architectures": [architecture]} if architecture else {}
    model = read({"model_type": "vlm", "text_config": text, "dtype": "bfloat16", **outer})
    state = model.layers[0][0]
    assert isinstance(state, GatedDeltaState)
    assert (state.temporal_type == FLOAT32) == in_float32


@pytest.mark.parametrize(
    ("own_class", "width"), [({"AutoConfig": "configuration_bailing_moe_v2_5.Config"}, 128), (None, 64)]
)
def test_without_a_class_of_its_own_ling_has_the_width_that_transformers_sets(own_class: object, width: int) -> None:
    """Source: transformers 5.20, BailingHybridConfig.__post_init__: head_dim = qk_rope_head_dim."""
    keys = {"architectures": ["BailingMoeV2_5ForCausalLM"], "model_type": "bailing_hybrid", "layer_group_size": 4}
    widths = {"head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "auto_map": own_class}
    state = read(with_keys(LLAMA, **keys, **widths)).layers[0][0]
    assert isinstance(state, LightningState)
    assert state.head_dim == width


def test_the_language_block_of_ling_3_vl_keeps_the_width_that_it_says() -> None:
    """Source: vLLM 0.33, BailingMoeV3TextConfig, a class of vLLM's own under the same model type."""
    text = without(LLAMA, "architectures") | {"model_type": "bailing_hybrid", "head_dim": 128, "layer_group_size": 4}
    text |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    outer = {"architectures": ["BailingMoeV3VLForConditionalGeneration"], "model_type": "bailing_moe_v3_vl"}
    state = read({**outer, "text_config": text}).layers[0][0]
    assert isinstance(state, KdaState)
    assert state.dim == 128


# --- context -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 8192),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_scaling": None, "model_max_length": 4096}, 4096),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": None}}, 8192),
    ],
)
def test_longest_context(keys: dict[str, Any], tokens: int) -> None:
    assert read(with_keys(LLAMA, **keys)).max_context_tokens == tokens


def test_longrope_says_what_is_served_unasked() -> None:
    config = with_keys(LLAMA, rope_scaling={"type": "longrope"}, original_max_position_embeddings=4096)
    model = read(config)
    assert model.max_context_tokens == 8192
    assert any("4,096" in note for note in model.notes)


# --- widths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (0, "0, not a width above zero"),
        ([0] * 32, "not a width above zero"),
        ([8], "it has 1 entries for 32 layers"),
        ([], "it has 0 entries for 32 layers"),
        ([8] * 31 + ["x"], "'x', not a whole number"),
    ],
)
def test_an_mlp_without_a_width_is_refused(width: object, said: str) -> None:
    with pytest.raises(KvplanError, match=f"intermediate_size is .*{said}") as caught:
        read(with_keys(LLAMA, intermediate_size=width))
    assert caught.value.key == "intermediate_size"
    assert caught.value.exit_code in (3, 5)


def test_only_a_model_of_experts_may_have_no_dense_width() -> None:
    of_experts = with_keys(LLAMA, intermediate_size=0, num_local_experts=8, num_experts_per_tok=2)
    assert read(of_experts).shape.intermediate is None
    assert read(with_keys(LLAMA, intermediate_size=[8] * 31 + [9])).shape.intermediate == 9


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        # Qwen/Qwen2-VL-7B-Instruct: hidden_size is the text model's
        (
            {"model_type": "qwen2_vl", "vision_config": {"embed_dim": 1280, "hidden_size": 3584, "depth": 32}},
            EncoderShape(hidden=1280, intermediate=5120, patches_per_token=4, item_tokens=16384),
        ),
        # Qwen/Qwen2.5-VL-7B-Instruct
        (
            {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280, "intermediate_size": 3420}},
            EncoderShape(hidden=1280, intermediate=3420, patches_per_token=4, item_tokens=16384),
        ),
        # Qwen/Qwen3-VL-30B-A3B-Instruct: three more vectors a token
        (
            {
                "model_type": "qwen3_vl_moe",
                "vision_config": {
                    "hidden_size": 1152,
                    "intermediate_size": 4304,
                    "spatial_merge_size": 2,
                    "deepstack_visual_indexes": [8, 16, 24],
                },
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=4, item_tokens=16384, outputs=4),
        ),
        # google/gemma-3-4b-it: 64 × 64 patches are 256 tokens
        (
            {
                "model_type": "gemma3",
                "mm_tokens_per_image": 256,
                "vision_config": {
                    "model_type": "siglip_vision_model",
                    "hidden_size": 1152,
                    "intermediate_size": 4304,
                    "image_size": 896,
                    "patch_size": 14,
                },
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=16, item_tokens=256),
        ),
        # google/gemma-4-26B-A4B-it: pools 3 × 3; logs print 2,496 tokens of a video
        (
            {
                "model_type": "gemma4",
                "vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304},
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=9, item_tokens=2496),
        ),
        # llava-hf/llava-1.5-7b-hf: 24 × 24 patches, each a token
        (
            {
                "model_type": "llava",
                "vision_config": {
                    "hidden_size": 1024,
                    "intermediate_size": 4096,
                    "image_size": 336,
                    "patch_size": 14,
                },
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=1, item_tokens=576),
        ),
        # mistralai/Mistral-Small-3.1-24B-Instruct-2503 merges 2 × 2; OpenGVLab/InternVL2-8B shuffles them
        (
            {
                "model_type": "mistral3",
                "spatial_merge_size": 2,
                "vision_config": {"hidden_size": 1024, "intermediate_size": 4096},
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=4),
        ),
        # google/gemma-3-27b-it with the class's own 256 tokens
        (
            {"model_type": "gemma3", "vision_config": {}},
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=16, item_tokens=256),
        ),
        (
            {
                "model_type": "internvl_chat",
                "downsample_ratio": 0.5,
                "vision_config": {"hidden_size": 1024, "intermediate_size": 4096},
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=4),
        ),
        ({"model_type": "llama", "hidden_size": 4096}, None),
    ],
)
def test_the_shape_of_an_encoder_by_family(config: dict[str, Any], shape: EncoderShape | None) -> None:
    assert encoder_shape(config) == shape


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (
            named(
                "MadeUpForCausalLM",
            ),
            "architectures",
        ),
        (with_keys(LLAMA, layer_types=["magic_attention"] * 32), "layer_types"),
        (with_keys(LLAMA, layer_types=["full_attention"] * 3), "layer_types"),
        (named("DoryForCausalLM", layer_types=["chunked_attention"] * 32, sliding_window=64), "layer_types"),
        (with_keys(LLAMA, hybrid_override_pattern="M*M*"), "hybrid_override_pattern"),
        (with_keys(LLAMA, linear_attn_config={"kda_layers": [1]}), "linear_attn_config"),
        (with_keys(LLAMA, num_key_value_heads=5), "num_key_value_heads"),
        (with_keys(LLAMA, hidden_size=4100), "head_dim"),
        (without(LLAMA, "num_hidden_layers"), "num_hidden_layers"),
        (without(LLAMA, "num_attention_heads"), "num_attention_heads"),
        (without(LLAMA, "architectures", "model_type", "num_key_value_heads"), "num_key_value_heads"),
        (with_keys(LLAMA, torch_dtype="int4"), "torch_dtype"),
        (
            named(
                "BertModel",
            ),
            "architectures",
        ),
        (
            {
                "model_type": "deepseek_v4",
                "num_hidden_layers": 43,
                "num_attention_heads": 64,
                "num_key_value_heads": 1,
                "head_dim": 512,
                "hidden_size": 4096,
                "compress_ratios": [4, 128],
            },
            "compress_ratios",
        ),
    ],
)
def test_what_is_not_understood_is_refused_with_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(config)
    assert caught.value.key == key
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", [32]),
        ("num_attention_heads", -4),
        ("num_attention_heads", True),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 8.5),
        ("hidden_size", float("nan")),
        ("hidden_size", float("inf")),
        ("hidden_size", 10**30),
        ("head_dim", {}),
        ("sliding_window", "wide"),
        ("layer_types", "full_attention"),
        ("layer_types", [1] * 32),
        ("max_position_embeddings", "long"),
        ("rope_scaling", "yarn"),
        ("torch_dtype", 16),
        ("architectures", "LlamaForCausalLM"),
        ("text_config", []),
        ("quantization_config", "fp8"),
        ("vocab_size", -1),
    ],
)
def test_a_broken_value_is_named(key: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        read(with_keys(LLAMA, **{key: value}))
    assert caught.value.key is not None
    assert key in caught.value.message
    assert caught.value.exit_code == 3


NONSENSE: list[object] = [None, "nonsense", -1, 0, [], {}, [None], True, 1.5, float("nan")]


def _damaged(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``config`` with one key taken out or turned into nonsense, nested blocks too."""
    for key, value in config.items():
        yield without(config, key)
        for nonsense in NONSENSE:
            yield {**config, key: nonsense}
        if isinstance(value, dict):
            for inner in _damaged(value):
                yield {**config, key: inner}


def _refusal(config: dict[str, Any], published: Published) -> KvplanError | None:
    try:
        read(config, quantization=published.quantization)
    except (InputError, UnsupportedModelError) as error:
        return error
    return None


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda row: row.id)
def test_a_damaged_config_is_answered_or_refused_by_name(published: Published) -> None:
    for damaged in _damaged(published.config):
        error = _refusal(damaged, published)
        assert error is None or (error.key is not None and error.message)


def test_a_config_must_be_an_object() -> None:
    with pytest.raises(InputError, match="not list"):
        read_config([], model_id="org/model", source=Source(name="a test"))  # type: ignore[arg-type]


def test_reading_is_pure() -> None:
    config = copy.deepcopy(PUBLISHED[0].config)
    before = json.dumps(config, sort_keys=True)
    assert PUBLISHED[0].read() == PUBLISHED[0].read()
    read(config)
    assert json.dumps(config, sort_keys=True) == before


# --- the tables ----------------------------------------------------------------------------------------------------


def test_every_name_leads_to_a_family_that_is_read() -> None:
    families = set(ARCHITECTURES.values()) | set(MODEL_TYPES.values())
    assert {family for family in families if known_family(family) is None} == set()


def test_no_name_has_a_row_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {stem for stem, family in ARCHITECTURES.items() if plain_family(stem) == family} == set()
    for name, family in list(MODEL_TYPES.items()):
        with monkeypatch.context() as without_row:
            without_row.delitem(MODEL_TYPES, name)
            assert known_family(name) != family, name


def test_every_reader_has_a_published_or_written_row() -> None:
    families = {find_family(Fields(row.config), language_block(Fields(row.config))) for row in PUBLISHED}
    assert set(READERS) - families == set()
