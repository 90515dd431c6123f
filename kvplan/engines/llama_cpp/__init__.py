"""llama.cpp (also under Ollama): a static cache per server, shared by its slots or divided among them.

Source of the flags: ``common/arg.cpp`` of the build in llama-cpp-python 0.3.36.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from kvplan.engines.deployment import is_since
from kvplan.engines.engine import EAGER, Engine, EngineMetrics
from kvplan.engines.flag_values import FlagValue, Served, asked, sequences, when
from kvplan.engines.llama_cpp.cache import FIRST_AUTO_SLOTS, cache_word
from kvplan.engines.llama_cpp.plan import kv_types, plan

_ALL_LAYERS = 999
"""More layers than any model has: the plan puts every layer on the GPUs, whatever ``--fit`` would choose, or an older
build's default of none."""


def _is_unified(served: Served) -> bool:
    """Whether slots share one cache; by default they do where the server chooses their number."""
    given = served.deployment.kv_unified
    return served.deployment.max_num_seqs is None and not _is_early(served) if given is None else given


def _is_early(served: Served) -> bool:
    """Whether the build has one slot by default, and no flag that divides or shares a cache."""
    return not is_since(served.deployment.engine.release, FIRST_AUTO_SLOTS)


def _context(served: Served) -> int:
    """The whole context of a server as asked for; else one slot's window, once per slot where the cache is divided."""
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
    """Layers of each GPU, and one more on the last for the head: proportions that come out as asked."""
    layers = served.deployment.pipeline_layers
    return None if layers is None else ",".join(map(str, (*layers[:-1], layers[-1] + 1)))


_FLAGS: Mapping[str, FlagValue] = {
    "--n-gpu-layers": lambda _: _ALL_LAYERS,
    "--tensor-split": _split,
    "--ctx-size": _context,
    "--parallel": sequences,
    "--kv-unified": lambda served: _is_unified(served) or None,
    "--no-kv-unified": lambda served: not (_is_unified(served) or _is_early(served)) or None,
    "--swa-full": when(lambda deployment: deployment.swa_full),
    "--ubatch-size": asked("max_num_batched_tokens"),
    "--predict": lambda served: served.largest_cap_tokens,
    "--cache-type-k": _cache_type("cache_type_k"),
    "--cache-type-v": _cache_type("cache_type_v"),
}


def _command(served: Served) -> str:
    """The server, with the GGUF file named, the one in a repository, or one with the name that a conversion writes."""
    model_id = served.model.id
    repository, _, file = model_id.partition("/")
    name, _, path = file.partition("/")
    if not model_id.endswith(".gguf"):
        words = f"--model {shlex.quote(model_id.rsplit('/', 1)[-1])}.gguf"
    elif not path or Path(model_id).exists():
        words = f"--model {shlex.quote(model_id)}"
    else:
        words = f"--hf-repo {shlex.quote(f'{repository}/{name}')} --hf-file {shlex.quote(path)}"
    return f"llama-server {words}"


ENGINE = Engine(
    name="llama.cpp",
    has=frozenset({"cache_type_k", "cache_type_v", "kv_unified", "swa_full", "pipeline_layers"}),
    unpriced=(EAGER,),
    kv_types=kv_types,
    plan=plan,
    flags=_FLAGS,
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage=None, waiting="llamacpp:requests_deferred"),
    not_on=frozenset(),
)
