"""llama.cpp's flags for a plan. Source: ``common/arg.cpp`` of the build in llama-cpp-python 0.3.36."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from kvplan.engines.flag_values import FlagValue, Served, asked, if_so, sequences
from kvplan.engines.ggml_types import cache_word
from kvplan.engines.llama_cpp.slots import FIRST_AUTO_SLOTS, is_before

ALL_LAYERS = 999
"""More layers than any model has. It says what the plan takes for granted: every layer is on the GPUs, whatever
``--fit`` would choose, or an older build's default of none."""


def _is_unified(served: Served) -> bool:
    """Whether slots share one cache: unless it is said, when their number is left to the server."""
    said = served.deployment.kv_unified
    return served.deployment.max_num_seqs is None and not _is_early(served) if said is None else said


def _is_early(served: Served) -> bool:
    """Whether the build has one slot unless told otherwise, and no switch that divides or shares a cache."""
    return is_before(served.deployment.engine.release, FIRST_AUTO_SLOTS)


def _context(served: Served) -> int:
    """The whole context of a server, as asked for; else one slot's window, for each slot where the cache is divided."""
    whole = served.deployment.max_model_len
    if whole is not None and served.window_tokens == served.settings.max_model_len:
        return whole
    return served.window_tokens * (1 if _is_unified(served) else served.settings.max_num_seqs)


def _cache_type(option: str) -> FlagValue:
    """The word for K's or V's type: its own, else that of both."""

    def read(served: Served) -> object:
        own, both = getattr(served.deployment, option), served.deployment.kv_dtype
        return own or (None if both == "auto" else cache_word(both))

    return read


def _split(served: Served) -> str | None:
    """Layers of each GPU, one more on the last for the head: in these proportions they come out as they are."""
    layers = served.deployment.pipeline_layers
    return None if layers is None else ",".join(map(str, (*layers[:-1], layers[-1] + 1)))


FLAGS: Mapping[str, FlagValue] = {
    "--n-gpu-layers": lambda _: ALL_LAYERS,
    "--tensor-split": _split,
    "--ctx-size": _context,
    "--parallel": sequences,
    "--kv-unified": lambda served: _is_unified(served) or None,
    "--no-kv-unified": lambda served: not (_is_unified(served) or _is_early(served)) or None,
    "--swa-full": if_so(lambda deployment: deployment.swa_full),
    "--ubatch-size": asked("max_num_batched_tokens"),
    "--predict": lambda served: served.largest_cap_tokens,
    "--cache-type-k": _cache_type("cache_type_k"),
    "--cache-type-v": _cache_type("cache_type_v"),
}


def model_words(model_id: str) -> str:
    """Which GGUF file is loaded: the one named, a repository's, or one of the name that a conversion makes."""
    if not model_id.endswith(".gguf"):
        return f"--model {shlex.quote(model_id.rsplit('/', 1)[-1])}.gguf"
    repository, _, file = model_id.partition("/")
    name, _, path = file.partition("/")
    if not path or Path(model_id).exists():
        return f"--model {shlex.quote(model_id)}"
    return f"--hf-repo {shlex.quote(f'{repository}/{name}')} --hf-file {shlex.quote(path)}"
