"""What kvplan reads from published configs against what vLLM 0.33 says of them: right, refused (with the key), wrong.

Compared to the byte, per rank and before page padding: bytes per token of layers that grow and of layers with a
window, the state of a request, and the longest context. Whisper's ``unbounded`` figure counts cross attention per
token.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.hf_config import read_config
from kvplan.layers import CrossAttention
from kvplan.model import ModelSpec, Source
from tests.published import stored_types
from tests.tables import folder_of

ANSWERS = {"TP 1": "", "TP 2": "_tp2", "TP 8": "_tp8", "fp8 KV": "_fp8"}
_VLLM_DEFAULT_WINDOW = 2048  # what vLLM assumes where a config says no length at all (_get_and_verify_max_len)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One model of one answer file: ``right``, ``refused`` or ``wrong``, with the reason."""

    file: str
    model: str
    outcome: str
    detail: str = ""
    context_right: bool = True


def verdicts(folder: Path) -> Iterator[Verdict]:
    """Every model of every answer file in ``folder``."""
    entries = {entry["id"]: entry for entry in _entries(folder)}
    for name, suffix in ANSWERS.items():
        seen: set[str] = set()
        with (folder / f"vllm_answers{suffix}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                if answer["model"] not in seen:
                    seen.add(answer["model"])
                    yield _judge(name, answer, entries[answer["model"]])


def unanswered(folder: Path) -> Iterator[Verdict]:
    """The models that vLLM did not answer: whether kvplan reads or refuses them."""
    with (folder / "vllm_answers.jsonl").open(encoding="utf-8") as lines:
        answered = {json.loads(line)["model"] for line in lines}
    for entry in _entries(folder):
        if entry["id"] in answered:
            continue
        sort = "partial" if entry.get("partial") else str(entry["verified"])
        try:
            model = _read(entry, drop_quantization=False)
        except (InputError, UnsupportedModelError) as error:
            yield Verdict(file=sort, model=entry["id"], outcome="refused", detail=f"{error.key}: {error.message}")
            continue
        kv = stored_types(model)
        detail = (
            f"{model.growing_bytes_per_token(kv)} B a token + {model.windowed_bytes_per_token(kv)} B in windows"
            f" + {model.fixed_bytes(kv)} B fixed"
        )
        yield Verdict(file=sort, model=entry["id"], outcome="read", detail=detail)


def _entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "models").glob("*.json"))]


def _read(entry: dict[str, Any], *, drop_quantization: bool) -> ModelSpec:
    config = {
        key: value for key, value in entry["config"].items() if not (drop_quantization and key == "quantization_config")
    }
    return read_config(
        config,
        model_id=entry["id"],
        source=Source(name=entry["source"]),
        quantization=None if drop_quantization else entry.get("hf_quant_config"),
    )


def _judge(file: str, answer: dict[str, Any], entry: dict[str, Any]) -> Verdict:
    try:
        model = _read(entry, drop_quantization=answer["quantization_config_dropped"])
    except (InputError, UnsupportedModelError) as error:
        return Verdict(
            file=file, model=entry["id"], outcome="refused", detail=f"{error.key}: {error.message}", context_right=False
        )
    kv = stored_types(model, answer["kv_cache_dtype_arg"])
    kept = [layer for layers in model.rank_layers(answer["tensor_parallel_size"]) for layer in layers]
    growing = sum((layer.growing_bytes_per_token(kv) for layer in kept), Fraction(0))
    cross = sum(
        (Fraction(layer.fixed_bytes(kv), layer.source_tokens) for layer in kept if isinstance(layer, CrossAttention)),
        Fraction(0),
    )
    windowed = sum((layer.windowed_bytes_per_token(kv) for layer in kept), Fraction(0))
    state = sum(layer.fixed_bytes(kv) for layer in kept if not isinstance(layer, CrossAttention))
    mine = (growing + cross, windowed, Fraction(state))
    theirs = (*_unpadded(answer), Fraction(answer["ours"]["state_bytes_per_request_per_rank_unpadded"]))
    return Verdict(
        file=file,
        model=entry["id"],
        outcome="right" if mine == theirs else "wrong",
        detail="" if mine == theirs else f"{[str(part) for part in mine]}, vLLM {[str(part) for part in theirs]}",
        context_right=(model.max_context_tokens or _VLLM_DEFAULT_WINDOW) == answer["max_model_len_native"],
    )


def _unpadded(answer: dict[str, Any]) -> tuple[Fraction, Fraction]:
    """Bytes per token of growing and of windowed layers, from vLLM's layer specs without their page padding."""
    growing = windowed = Fraction(0)
    for spec in answer["layer_specs"]:
        if spec["kind"] == "MambaSpec":
            continue
        page = spec.get("unpadded_page_size_bytes", spec["page_size_bytes"])
        rate = Fraction(page * spec["layers"], spec["block_size"])
        if "sliding_window" in spec or "attention_chunk_size" in spec:
            windowed += rate
        else:
            growing += rate
    return growing, windowed


def main(folder: Path) -> int:
    """Print the table; 1 when anything is wrong."""
    rows = list(verdicts(folder))
    print(f"{'answers':<10}{'right':>8}{'refused':>9}{'wrong':>7}{'context right':>15}")
    for file in ANSWERS:
        mine = [row for row in rows if row.file == file]
        counts = [sum(row.outcome == outcome for row in mine) for outcome in ("right", "refused", "wrong")]
        context = sum(row.context_right for row in mine)
        print(f"{file:<10}{counts[0]:>8}{counts[1]:>9}{counts[2]:>7}{context:>15}")
    for row in rows:
        if row.outcome != "right" or not row.context_right:
            print(f"  {row.file} {row.model}: {row.outcome} {row.detail}")
    others = list(unanswered(folder))
    print(f"\nnot answered by vLLM: {len(others)}, refused {sum(row.outcome == 'refused' for row in others)}")
    for row in others:
        print(f"  {row.file:<8} {row.model}: {row.outcome}, {row.detail}")
    return int(any(row.outcome == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main(folder_of(sys.argv[1:])))
