"""A request's body as JSON: read strictly, and written anew where two readers could read two different requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass


class BadRequestError(Exception):
    """A request that cannot be priced: ``status``, the field at fault, and an OpenAI error code."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Body:
    """The client's bytes and the object in them. ``is_ambiguous``: some object in it gives a key twice."""

    raw: bytes
    fields: Mapping[str, object]
    is_ambiguous: bool


class _TwiceError(Exception):
    """A key was given twice."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _TwiceError
    return found


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_once)
_LAST_WINS = json.JSONDecoder(parse_constant=_refuse_constant)


def read_body(raw: bytes) -> Body:
    """The JSON object in ``raw``; BadRequestError where it is none (NaN and Infinity are not JSON).

    >>> read_body(b'{"n": 1, "n": 2}')
    Body(raw=b'{"n": 1, "n": 2}', fields={'n': 2}, is_ambiguous=True)
    """
    is_ambiguous = False
    try:
        text = raw.decode("utf-8")
        try:
            value = _STRICT.decode(text)
        except _TwiceError:
            is_ambiguous, value = True, _LAST_WINS.decode(text)
    except UnicodeDecodeError as error:
        raise BadRequestError("the body is not UTF-8", code="invalid_json") from error
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at byte {error.pos}"
        raise BadRequestError(message, code="invalid_json") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is not JSON that can be read here", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body must be a JSON object", code="invalid_json")
    return Body(raw=raw, fields=value, is_ambiguous=is_ambiguous)


def with_cap(body: Body, cap_field: str | None, cap: int | None) -> bytes:
    """The bytes to forward: the client's own, with ``cap`` written in front of them where one has to be.

    A body in which a key stands twice is written anew from what was priced, so that the engine cannot read another
    request than the one that was admitted.

    >>> with_cap(read_body(b'{"n": 1}'), "max_tokens", 7)
    b'{"max_tokens": 7, "n": 1}'
    >>> with_cap(read_body(b'{"max_tokens": null}'), "max_tokens", 7)
    b'{"max_tokens": 7}'
    """
    if cap is None or cap_field is None:
        return json.dumps(body.fields).encode() if body.is_ambiguous else body.raw
    if cap_field in body.fields or body.is_ambiguous:
        return json.dumps({**body.fields, cap_field: cap}).encode()
    start = body.raw.index(b"{") + 1
    separator = b", " if body.fields else b""
    return body.raw[:start] + f'"{cap_field}": {cap}'.encode() + separator + body.raw[start:]
