"""The types in which llama.cpp can keep K and V (``--cache-type-k``, ``--cache-type-v``).

Source: ``tools/server/README.md`` of the build in llama-cpp-python 0.3.36, and ggml's block sizes.
"""

from kvplan.errors import InputError
from kvplan.layers import FLOAT16, FLOAT32, KvTypes, StoredType

CACHE_TYPES: dict[str, StoredType] = {
    "f32": FLOAT32,
    "f16": FLOAT16,
    "bf16": StoredType(name="bf16", bytes_per_group=2),
    "q8_0": StoredType(name="q8_0", bytes_per_group=34, elements_per_group=32),
    "q5_1": StoredType(name="q5_1", bytes_per_group=24, elements_per_group=32),
    "q5_0": StoredType(name="q5_0", bytes_per_group=22, elements_per_group=32),
    "q4_1": StoredType(name="q4_1", bytes_per_group=20, elements_per_group=32),
    "q4_0": StoredType(name="q4_0", bytes_per_group=18, elements_per_group=32),
    "iq4_nl": StoredType(name="iq4_nl", bytes_per_group=18, elements_per_group=32),
}

_OTHER_WORDS = {"auto": "f16", "float16": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32"}


def cache_types(key: str | None, value: str | None, kv_dtype: str = "auto") -> KvTypes:
    """The stored types: K's and V's own words, else ``kv_dtype`` for both, else f16.

    >>> types = cache_types("q8_0", "q4_0")
    >>> types.key.bytes_for(1024), types.value.bytes_for(1024)
    (Fraction(1088, 1), Fraction(576, 1))
    """
    return KvTypes(key=_named(key or kv_dtype), value=_named(value or kv_dtype))


def cache_word(kv_dtype: str) -> str:
    """What llama.cpp itself calls the KV type asked for.

    >>> cache_word("float16"), cache_word("q8_0")
    ('f16', 'q8_0')
    """
    return _OTHER_WORDS.get(kv_dtype, kv_dtype)


def _named(word: str) -> StoredType:
    name = cache_word(word)
    if name not in CACHE_TYPES:
        raise InputError(
            f"{word!r} is not a cache type of llama.cpp", hint=f"one of {', '.join(CACHE_TYPES)}", key="cache_type"
        )
    return CACHE_TYPES[name]
