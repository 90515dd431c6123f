"""A bound of a text's tokens is a bound: no byte-level tokenizer makes more of it, normalised first or not."""

import json
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.gateway import token_bounds
from kvplan.gateway.token_bounds import json_bound, text_bound

MARKS = "\u0301\u0302\u0323\u0327\u0345\u3099\u0f71"
TEXTS = st.text(st.sampled_from("a é ế ﷺ ½ ， 한 ᄒ ᅡ ᆫ が ㎏ 你 \ud800 😀" + MARKS) | st.characters(), max_size=60)


def bytes_of(text: str) -> int:
    """UTF-8 bytes; JSON may bring half a surrogate pair."""
    return len(text.encode("utf-8", "surrogatepass"))


@given(TEXTS)
def test_a_short_text_is_bounded_by_the_longer_of_its_two_forms(text: str) -> None:
    assert text_bound(text) == max(bytes_of(text), bytes_of(unicodedata.normalize("NFKC", text)))


@pytest.mark.parametrize("characters", [1, 2, 3, 7])
def test_a_text_in_slices_is_bounded_from_above(characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bounds, "_SLICE_CHARACTERS", characters)

    @given(TEXTS)
    def law(text: str) -> None:
        whole = max(bytes_of(text), bytes_of(unicodedata.normalize("NFKC", text)))
        slices = -(-len(text) // characters)
        assert (
            whole
            <= text_bound(text)
            <= sum(text_bound(text[at : at + characters]) for at in range(0, len(text), characters))
            + token_bounds._ACROSS_SLICES_BYTES * max(0, slices - 1)
        )

    law()


def test_cut_marks_cannot_outgrow_the_allowance() -> None:
    """á and a dot below: together ạ and an acute, a byte longer than apart."""
    apart, whole = bytes_of("á") + bytes_of("\u0323"), bytes_of(unicodedata.normalize("NFKC", "á\u0323"))
    assert (apart, whole) == (4, 5)
    longest = max(bytes_of(unicodedata.normalize("NFD", chr(code))) - bytes_of(chr(code)) for code in range(0x30000))
    assert longest < token_bounds._ACROSS_SLICES_BYTES


@given(st.recursive(TEXTS | st.integers() | st.none() | st.booleans(), lambda inner: st.lists(inner, max_size=3)))
def test_json_is_bounded_however_a_template_prints_it(value: object) -> None:
    for indent in (None, 2, 4):
        for is_ascii in (False, True):
            printed = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
            if value is not None:
                assert bytes_of(printed) <= json_bound(value)


def test_what_grows_as_it_is_printed_is_counted_without_being_printed() -> None:
    value = [0] * 100_000
    tracemalloc.start()
    try:
        assert json_bound(value) == len(json.dumps([0], indent=4)) + 99_999 * len(",\n    0")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000, "printed it takes 700,000, in pieces more"
