"""Which layers of a GGUF file slide, and over how many tokens, as llama.cpp decides it.

Source: llama.cpp (as of llama-cpp-python 0.3.36), ``llama-hparams.cpp`` and the readers of single architectures.
"""

from kvplan.errors import UnsupportedModelError
from kvplan.gguf.keys import CONFIG_HINT, Keys

# Architectures that say no pattern: in every so many layers, the last one is full.
_LAST_IS_FULL = {
    "afmoe": 4,
    "cohere2": 4,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "mellum": 4,
    "olmo2": 4,
    "plamo3": 8,
}
# ... or the first one.
_FIRST_IS_FULL = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
# Windows of the architectures that need not say one, in tokens.
_WINDOW_DEFAULTS = {"gemma2": 4096, "llama4": 8192}
# llama.cpp reads a window of these only from a list with one entry a layer.
_NEEDS_LIST = {"gemma4", "granite-swa", "maple", "mimo2", "step35", "spark2-5"}


def read_windows(keys: Keys, count: int) -> tuple[tuple[int | None, ...], str | None]:
    """Each layer's window in tokens, None for full attention; and a note where llama.cpp ignores the file's window.

    A list in the file wins; else a period, the file's or the architecture's own.
    """
    architecture = keys.architecture
    window = _window(keys)
    if not window:
        return (None,) * count, None
    pattern = keys.raw("attention.sliding_window_pattern") or keys.raw("sliding_window_pattern")
    if pattern is not None and not isinstance(pattern, int):
        slides = keys.per_layer("attention.sliding_window_pattern", count) or ()
        return tuple(window if each else None for each in slides), None
    if pattern is None and architecture in _NEEDS_LIST:
        raise UnsupportedModelError(
            f"{keys.file}: {architecture} has a window of {window} but no list of the layers that use it",
            hint=CONFIG_HINT,
            file=keys.file,
            key=f"{architecture}.attention.sliding_window_pattern",
        )
    if architecture == "lfm2":
        return (window,) * count, None
    if architecture == "exaone4" and count != 64:  # only the 32B model has windows, and it is told by its layers
        return (None,) * count, None
    first_is_full = architecture in _FIRST_IS_FULL
    period = pattern if pattern is not None else {**_FIRST_IS_FULL, **_LAST_IS_FULL}.get(architecture)
    if period is None:
        return (None,) * count, f"llama.cpp ignores the window of {window} tokens for {architecture}"
    if period < 0:
        raise keys.wrong(f"{architecture}.attention.sliding_window_pattern", period, "a list or a period")
    full_at = 0 if first_is_full else period - 1
    return tuple(None if period and index % period == full_at else window for index in range(count)), None


def _window(keys: Keys) -> int | None:
    """Tokens of the window or chunk; None or 0 where there is none."""
    window = keys.number("attention.sliding_window")
    if keys.architecture == "llama4":
        return 0 if window == 0 else keys.number("attention.chunk_size") or _WINDOW_DEFAULTS["llama4"]
    if keys.architecture == "smallthinker" and window:
        return 4096
    return window if window is not None else _WINDOW_DEFAULTS.get(keys.architecture)
