"""A request's body as JSON: read strictly, and written anew where two readers could read two different requests."""

import json
from collections.abc import Mapping, Sequence
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


MOST_VALUES = 2**20
"""A list of so many token ids is beyond most windows. JSON's decoder gives the interpreter to nobody else, and running
streams stand still meanwhile: for 32 MiB of lists, many seconds."""


def refuse_many_values(raw: bytes, most: int = MOST_VALUES) -> None:
    """Refuse a body that could hold more than ``most`` values, before it is read: its commas and brackets are counted.

    Those within a text are, too; a text of so many has about as many tokens.
    """
    if len(raw) > most and sum(map(raw.count, (b",", b"[", b"{"))) > most:
        message = f"the body may hold more than {most:,} values: so many commas and brackets are in it"
        raise BadRequestError(message, code="request_too_large", status=413)


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


def with_cap(body: Body, cap_fields: Sequence[str], cap: int | None) -> bytes:
    """The bytes to forward: the client's own, with ``cap`` written in front of them where one has to be.

    ``cap_fields`` may hold a cap; only the first of them is obeyed by every engine (llama-cpp-python's server knows no
    ``max_completion_tokens``, and would write on), so a client's cap that stands in another is moved there. A body in
    which a key stands twice is written anew from what was priced, so that the engine cannot read another request than
    the one that was admitted.

    >>> with_cap(read_body(b'{"n": 1}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7, "n": 1}'
    >>> with_cap(read_body(b'{"max_tokens": null}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7}'
    >>> with_cap(read_body(b'{"max_completion_tokens": 5}'), ("max_tokens", "max_completion_tokens"), None)
    b'{"max_tokens": 5}'
    """
    fields = body.fields
    written: object = cap
    if written is None and cap_fields and fields.get(cap_fields[0]) is None:
        written = next((fields[name] for name in cap_fields if fields.get(name) is not None), None)
    if written is None:
        return json.dumps(fields).encode() if body.is_ambiguous else body.raw
    if body.is_ambiguous or any(name in fields for name in cap_fields):
        kept = {name: value for name, value in fields.items() if name not in cap_fields}
        return json.dumps({cap_fields[0]: written, **kept}).encode()
    start = body.raw.index(b"{") + 1
    separator = b", " if fields else b""
    return body.raw[:start] + f'"{cap_fields[0]}": {cap}'.encode() + separator + body.raw[start:]
