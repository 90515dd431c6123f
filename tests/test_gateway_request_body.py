"""A request's body as JSON: what is refused unparsed, and how a large one is parsed."""

import json
import sys
from types import FrameType

import pytest

from kvplan.gateway.request_body import LARGE_BODY_BYTES, parse_body, refuse_many_values
from kvplan.gateway.responses import BadRequestError


@pytest.mark.parametrize("number", ["7", "-0.5e3"])
def test_a_large_body_s_numbers_are_read_in_python(number: str) -> None:
    """At the start of a Python function another thread may run; the decoder alone would hold the interpreter lock."""
    numbers = LARGE_BODY_BYTES
    raw = f'{{"prompt": [{number}{f",{number}" * (numbers - 1)}]}}'.encode()
    called = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal called
        called += event == "call" and frame.f_code.co_name in ("_int", "_float")

    sys.setprofile(count)
    try:
        parse_body(raw)
    finally:
        sys.setprofile(None)
    assert called == numbers


def test_a_large_body_is_parsed_as_a_small_one() -> None:
    fields = {"a": [1, -2, 1.5, 1e9, True, None], "b": {"c": "d"}, "n": 3}
    for padding in ("", "x" * LARGE_BODY_BYTES):
        assert parse_body(json.dumps({**fields, "padding": padding}).encode()).fields == {**fields, "padding": padding}
    with pytest.raises(BadRequestError):
        parse_body(b'{"n": NaN, "padding": "' + b"x" * LARGE_BODY_BYTES + b'"}')
    twice = parse_body(b'{"n": 1, "n": 2, "padding": "' + b"x" * LARGE_BODY_BYTES + b'"}')
    assert (twice.fields["n"], twice.is_ambiguous) == (2, True)


@pytest.mark.parametrize(
    ("unit", "times"), [(b"0,", 800), (b"[0],", 400), (b"[],", 400), (b'{"":0},', 100), (b'"":0,', 100)]
)
def test_values_are_counted_by_their_commas_brackets_and_colons(unit: bytes, times: int) -> None:
    """At most 800 here; a key counts as eight."""
    blank = b" " * 800
    refuse_many_values(blank + unit * times, 800)
    with pytest.raises(BadRequestError):
        refuse_many_values(blank + unit * (times + 1), 800)
