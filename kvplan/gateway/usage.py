"""What an engine says that a request really used, read from the last piece of its answer that tells."""

import re

_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)')


def read_usage(piece: bytes) -> int | None:
    """Prompt and output tokens in the last ``usage`` of ``piece``, or None where it gives no numbers.

    >>> read_usage(b'data: {"usage": {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}}')
    12
    >>> read_usage(b'{"usage":{"input_tokens":9,"output_tokens":3}}'), read_usage(b'{"usage":null}')
    (12, None)
    """
    tail = piece[piece.rfind(b'"usage"') :]
    if total := _TOTAL.search(tail):
        return int(total[1])
    prompt, output = _PROMPT.search(tail), _OUTPUT.search(tail)
    return None if prompt is None or output is None else int(prompt[1]) + int(output[1])
