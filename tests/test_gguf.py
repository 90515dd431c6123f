"""GGUF headers: layers by feature against llama.cpp's own sizes, and every way in which a file can be damaged."""

import struct
from fractions import Fraction
from pathlib import Path

import pytest

from kvplan.engines.llama_cpp.devices import device_weights
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.gguf import read_gguf, read_gguf_metadata
from kvplan.layers import FLOAT16, FullAttention, KvTypes, SharedKv, SlidingAttention
from kvplan.units import MIB
from tests.gguf_files import gguf_bytes, text, value

F16 = KvTypes(key=FLOAT16, value=FLOAT16)

LLAMA_8B: dict[str, object] = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "llama.block_count": 32,
    "llama.context_length": 131072,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.vocab_size": 128256,
}

# Qwen3.5-35B-A3B: 40 layers, every fourth with attention; llama.cpp prints 251.25 MiB of state for 4 sequences.
QWEN35_MOE: dict[str, object] = {
    "general.architecture": "qwen35moe",
    "qwen35moe.block_count": 40,
    "qwen35moe.embedding_length": 2048,
    "qwen35moe.full_attention_interval": 4,
    "qwen35moe.attention.head_count": 16,
    "qwen35moe.attention.head_count_kv": 2,
    "qwen35moe.attention.key_length": 256,
    "qwen35moe.attention.value_length": 256,
    "qwen35moe.ssm.conv_kernel": 4,
    "qwen35moe.ssm.state_size": 128,
    "qwen35moe.ssm.group_count": 16,
    "qwen35moe.ssm.time_step_rank": 32,
    "qwen35moe.ssm.inner_size": 4096,
}


def test_a_dense_model() -> None:
    model = read_gguf_metadata(LLAMA_8B, model_id="llama.gguf")
    assert model.layers == ((FullAttention(kv_heads=8, head_dim=128, value_head_dim=128),),) * 32
    assert model.growing_bytes_per_token(F16) == 32 * 2 * 8 * 128 * 2
    assert (model.max_context_tokens, model.query_heads, model.dtype) == (131072, (32,), "float16")
    assert model.weights.quantization == "gguf Q4_K_M"
    assert (model.shape.hidden, model.shape.vocabulary, model.shape.intermediate) == (4096, 128256, 14336)


def test_an_interval_of_full_attention_leaves_state_in_the_others() -> None:
    model = read_gguf_metadata(QWEN35_MOE)
    assert model.growing_bytes_per_token(F16) == 10 * 2 * 2 * 256 * 2
    # 30 layers × (3 × (4096 + 2 × 16 × 128) conv values + 4096 × 128 state values) × 4 B; 4 sequences print 251.25 MiB
    assert model.fixed_bytes(F16) == 30 * (3 * 8192 + 4096 * 128) * 4
    assert model.fixed_bytes(F16) * 4 == Fraction(25125, 100) * MIB
    assert model.notes == ()


def test_state_that_the_file_does_not_describe_is_said() -> None:
    bare = {key: item for key, item in QWEN35_MOE.items() if ".ssm." not in key}
    model = read_gguf_metadata(bare)
    assert model.growing_bytes_per_token(F16) == 20480
    assert model.notes == ("the file has no qwen35moe.ssm keys: the state of 30 layers is not counted",)


def test_nemotron_h_state_is_what_llama_cpp_printed() -> None:
    # Nemotron-3-Nano-30B-A3B: 52 blocks, 23 Mamba-2, 6 attention, 23 MLP. Log of b8999: 190.47 MiB of state
    # for 4 sequences. State: 23 × (3 × (4096 + 2 × 8 × 128) + 4096 × 128) × 4 B × 4 = 190.47 MiB.
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    model = read_gguf_metadata(
        {
            "general.architecture": "nemotron_h_moe",
            "nemotron_h_moe.block_count": len(pattern),
            "nemotron_h_moe.embedding_length": 2688,
            "nemotron_h_moe.attention.head_count": [32 if kind == "*" else 0 for kind in pattern],
            "nemotron_h_moe.attention.head_count_kv": [2 if kind == "*" else 0 for kind in pattern],
            "nemotron_h_moe.attention.key_length": 128,
            "nemotron_h_moe.attention.value_length": 128,
            "nemotron_h_moe.feed_forward_length": [1856 if kind == "E" else 0 for kind in pattern],
            "nemotron_h_moe.ssm.conv_kernel": 4,
            "nemotron_h_moe.ssm.inner_size": 4096,
            "nemotron_h_moe.ssm.state_size": 128,
            "nemotron_h_moe.ssm.time_step_rank": 64,
            "nemotron_h_moe.ssm.group_count": 8,
        }
    )
    assert sum(1 for layer in model.layers if layer and layer[0].kind == "full attention") == 6
    assert round(model.fixed_bytes(F16) * 4 / MIB, 2) == 190.47
    assert model.sequence_bytes(16384, F16) - model.fixed_bytes(F16) == 96 * MIB  # the log's KV buffer, 0.0938 GiB


def test_windows_by_period_by_list_and_by_default() -> None:
    gemma = {
        "general.architecture": "gemma3",
        "gemma3.block_count": 34,
        "gemma3.attention.head_count_kv": 4,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.attention.sliding_window": 1024,
    }
    by_default = read_gguf_metadata(gemma)
    assert by_default.layers == read_gguf_metadata({**gemma, "sliding_window_pattern": 6}).layers
    assert sum(1 for layer in by_default.layers if isinstance(layer[0], SlidingAttention)) == 29
    listed = read_gguf_metadata({**gemma, "gemma3.attention.sliding_window_pattern": [True] * 33 + [False]})
    assert sum(1 for layer in listed.layers if isinstance(layer[0], SlidingAttention)) == 33
    assert read_gguf_metadata({**gemma, "sliding_window_pattern": [True] * 33 + [False]}).layers == listed.layers
    first_full = read_gguf_metadata({**gemma, **_renamed(gemma, "gemma3", "laguna")})
    assert isinstance(first_full.layers[0][0], FullAttention)
    assert isinstance(first_full.layers[1][0], SlidingAttention)


def _renamed(metadata: dict[str, object], old: str, new: str) -> dict[str, object]:
    renamed = {key.replace(f"{old}.", f"{new}.", 1): item for key, item in metadata.items() if key.startswith(old)}
    return {**renamed, "general.architecture": new}


def test_a_window_that_llama_cpp_ignores_is_said() -> None:
    model = read_gguf_metadata({**LLAMA_8B, "llama.attention.sliding_window": 4096})
    assert isinstance(model.layers[0][0], FullAttention)
    assert model.notes == ("llama.cpp ignores the window of 4096 tokens for llama",)


def test_shared_layers_keep_nothing() -> None:
    model = read_gguf_metadata(
        {
            "general.architecture": "gemma3n",
            "gemma3n.block_count": 35,
            "gemma3n.attention.head_count": 8,
            "gemma3n.attention.head_count_kv": 2,
            "gemma3n.attention.key_length": 256,
            "gemma3n.attention.value_length": 256,
            "gemma3n.attention.sliding_window": 512,
            "gemma3n.attention.shared_kv_layers": 15,
        }
    )
    assert sum(1 for layer in model.layers if isinstance(layer[0], SharedKv)) == 15


def test_mla_keeps_one_latent_and_no_values() -> None:
    deepseek: dict[str, object] = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 62,
        "deepseek2.nextn_predict_layers": 1,
        "deepseek2.embedding_length": 7168,
        "deepseek2.attention.head_count": 128,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.value_length": 512,
        "deepseek2.attention.key_length_mla": 192,
        "deepseek2.attention.value_length_mla": 128,
        "deepseek2.attention.kv_lora_rank": 512,
    }
    assert read_gguf_metadata(deepseek).growing_bytes_per_token(F16) == 61 * 576 * 2
    # without the *_mla lengths keys and values are whole: DeepSeek-V2-Lite's logs say 324 + 216 MiB for 2,048 cells
    lite = {key: item for key, item in deepseek.items() if "_mla" not in key and "nextn" not in key}
    lite |= {"deepseek2.block_count": 27, "deepseek2.attention.head_count": 16}
    lite |= {"deepseek2.attention.head_count_kv": 16, "deepseek2.attention.key_length": 192}
    whole = read_gguf_metadata({**lite, "deepseek2.attention.value_length": 128})
    assert 2048 * whole.growing_bytes_per_token(F16) == (324 + 216) << 20
    sparse = {**_renamed(deepseek, "deepseek2", "deepseek32"), "deepseek32.attention.indexer.key_length": 128}
    assert read_gguf_metadata(sparse).growing_bytes_per_token(F16) == 61 * (576 + 128) * 2


@pytest.mark.parametrize(
    ("architecture", "keys", "state_values"),
    [
        ("mamba", {"ssm.conv_kernel": 4, "ssm.inner_size": 8192, "ssm.state_size": 16}, 3 * 8192 + 8192 * 16),
        ("rwkv6", {"wkv.head_size": 64}, 2 * 4096 + 4096 * 64),
        ("rwkv6qwen2", {"wkv.head_size": 64, "token_shift_count": 1}, 4096 + 4096 * 64),
        ("lfm2", {"shortconv.l_cache": 3}, 2 * 4096),
        ("kimi-linear", {"kda.head_dim": 128, "ssm.conv_kernel": 4}, 3 * 3 * 32 * 128 + 32 * 128 * 128),
        ("minimax-01", {"attention.key_length": 128}, 32 * 128 * 128),
    ],
)
def test_recurrent_states_are_float32(architecture: str, keys: dict[str, object], state_values: int) -> None:
    model = read_gguf_metadata(
        {
            "general.architecture": architecture,
            f"{architecture}.block_count": 7,
            f"{architecture}.embedding_length": 4096,
            f"{architecture}.attention.head_count": 32,
            f"{architecture}.attention.head_count_kv": [0] * 7,
            **{f"{architecture}.{key}": item for key, item in keys.items()},
        }
    )
    assert model.fixed_bytes(F16) == 7 * state_values * 4


@pytest.mark.parametrize(
    ("metadata", "error", "key"),
    [
        ({}, InputError, "general.architecture"),
        ({"general.architecture": "llama"}, InputError, "llama.block_count"),
        ({"general.architecture": "llama", "llama.block_count": 2}, InputError, "llama.attention.head_count_kv"),
        (
            {
                "general.architecture": "llama",
                "llama.block_count": 2,
                "llama.embedding_length": 4096,
                "llama.attention.head_count_kv": 8,
                "llama.attention.key_length": 128,
            },
            InputError,
            "llama.attention.value_length",
        ),
        ({**LLAMA_8B, "llama.block_count": -1}, InputError, "llama.block_count"),
        ({**LLAMA_8B, "llama.block_count": "many"}, InputError, "llama.block_count"),
        ({**LLAMA_8B, "llama.attention.head_count_kv": [8, 8]}, InputError, "llama.attention.head_count_kv"),
        ({**LLAMA_8B, "llama.attention.head_count_kv": ["a"] * 32}, InputError, "llama.attention.head_count_kv"),
        ({**LLAMA_8B, "llama.nextn_predict_layers": 32}, InputError, "llama.block_count"),
        ({**LLAMA_8B, "general.architecture": "deepseek4"}, UnsupportedModelError, "general.architecture"),
        (
            {**LLAMA_8B, "llama.attention.cross_attention_layers": [1]},
            UnsupportedModelError,
            "general.architecture",
        ),
        (
            {**_renamed(LLAMA_8B, "llama", "step35"), "step35.attention.sliding_window": 512},
            UnsupportedModelError,
            "step35.attention.sliding_window_pattern",
        ),
    ],
)
def test_keys_that_are_missing_or_wrong(
    metadata: dict[str, object], error: type[InputError | UnsupportedModelError], key: str
) -> None:
    with pytest.raises(error) as caught:
        read_gguf_metadata(metadata, model_id="m.gguf")
    assert caught.value.key == key


def test_weights_are_the_tensors_blocks(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    tensors = {"token_embd.weight": ((256, 10), 12, 10 * 144), "output_norm.weight": ((256,), 0, 1024)}
    path.write_bytes(gguf_bytes({**LLAMA_8B, "tokenizer.ggml.tokens": ["a"] * 5000}, tensors))
    model = read_gguf(path)
    assert model.weights.stored_bytes == 10 * 144 + 1024
    assert model.weights.parameters == 2560 + 256
    assert model.source.name == "header of llama.gguf"


def test_weights_know_their_place(tmp_path: Path) -> None:
    """The embedding stays on the host, unless the head is a copy of it; layer 32 of 32 is a next-token layer's."""
    tensors = {
        "token_embd.weight": ((256, 10), 12, 1440),
        "output.weight": ((256, 10), 14, 2100),
        "blk.0.attn_q.weight": ((256, 4), 12, 576),
        "blk.31.ffn_down_exps.weight": ((256, 4, 2), 8, 2176),
        "blk.32.attn_q.weight": ((256,), 0, 1024),
        "rope_freqs.weight": ((64,), 0, 256),
    }
    path = tmp_path / "own-head.gguf"
    path.write_bytes(gguf_bytes(LLAMA_8B, tensors))
    model, dealt = read_gguf(path), (range(17), range(17, 32))
    assert [device_weights(model, dealt, device).bytes for device in (0, 1)] == [576 + 256, 2100 + 2176]
    assert device_weights(model, (range(32),), 0).bytes == 576 + 256 + 2100 + 2176
    tied = tmp_path / "tied.gguf"
    tied.write_bytes(gguf_bytes(LLAMA_8B, {name: held for name, held in tensors.items() if name != "output.weight"}))
    assert device_weights(read_gguf(tied), (range(32),), 0).bytes == 576 + 256 + 1440 + 2176
    assert {part.name for part in model.weights.parts if part.layer == 31} == {"mlp.experts"}


def test_a_reader_is_asked_for_ranges_and_not_for_the_file() -> None:
    """A vocabulary of 12 MB takes two requests: 8 MiB, then four times as much, whatever lies behind."""
    tokens = [f"token number {number:06d} of the vocabulary" for number in range(300_000)]
    header = gguf_bytes({**LLAMA_8B, "tokenizer.ggml.tokens": tokens}, {"w": ((2**30,), 0, 0)}, with_data=False)
    asked: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return header[offset : offset + length].ljust(length, b"\0")

    model = read_gguf(read, model_id="org/name")
    assert asked == [(0, 8 << 20), (8 << 20, 32 << 20)]
    assert model.weights.stored_bytes == 2**32


def test_shards_are_added_up_and_a_lone_one_is_said(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(gguf_bytes({**LLAMA_8B, "split.count": 2}, {"a": ((8,), 0, 32)}))
    alone = read_gguf(first)
    assert alone.weights.stored_bytes is None
    assert alone.notes == ("one of 2 files: the weights of the others are not counted",)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf_bytes({}, {"b": ((8,), 0, 32)}))
    assert read_gguf(first).weights.stored_bytes == 64


WHOLE = gguf_bytes(LLAMA_8B, {"w": ((64,), 0, 256)})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"", "ends after 0 bytes"),
        (b"PK\x03\x04" + b"\0" * 60, "begins with"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 60, "version 1"),
        (b"GGUF" + struct.pack("<I", 9) + b"\0" * 60, "version 9"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 60, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "bytes for a key"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "unknown type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 5, 2**62), "elements in k"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("k") + value(1)) * 2, "appears twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I", 900), "dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + value(0), "alignment"),
        (WHOLE[: len(WHOLE) // 2], "in the middle of its header"),
        (WHOLE[:-1], "its tensors end at byte"),
    ],
)
def test_damaged_files_are_refused_with_their_name(tmp_path: Path, damage: bytes, words: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(damage)
    with pytest.raises(InputError, match=words) as caught:
        read_gguf(path)
    assert caught.value.file == str(path)


def test_any_cut_is_an_input_error(tmp_path: Path) -> None:
    """tests/laws/test_damaged_files.py changes bytes, too."""
    path = tmp_path / "cut.gguf"
    for cut in range(0, len(WHOLE), 7):
        path.write_bytes(WHOLE[:cut])
        with pytest.raises(InputError):
            read_gguf(path)


def test_a_folder_and_a_missing_file_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")
