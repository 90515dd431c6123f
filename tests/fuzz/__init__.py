"""Damaged and hostile input: an answer, or an error that says what is wrong; no traceback, no hang, no wrong figure.

What once broke is kept in ``tests/fuzz_corpus``. ``KVPLAN_FUZZ=20 pytest tests/fuzz`` draws twenty times as many cases.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from kvplan.cli import main

CORPUS = Path(__file__).resolve().parents[1] / "fuzz_corpus"
TIMES = int(os.environ.get("KVPLAN_FUZZ", "1"))
PHASES = tuple(phase for phase in Phase if phase is not Phase.shrink or TIMES > 1)
"""Making a failing case small may take minutes: only when asked for more."""
ODD_YAML = ("\t", "\x00", "&a ", "*a", "!!python/object:x ", "<<: ", ".nan", "1e999", "- ", "[", "{", "\n---\n")
ANSWERS = (0, 1, 3, 4, 5)
"""Exit codes of an answer, or of an error that names its cause: not 70, a bug."""


def bounded(examples: int) -> settings:
    """Settings for ``examples`` cases in the normal suite, and ``KVPLAN_FUZZ`` times as many when asked for."""
    return settings(
        max_examples=examples * TIMES,
        deadline=10_000,
        phases=PHASES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@contextmanager
def shell_pipe(content: bytes) -> Iterator[Path]:
    """``<(command)`` of a shell whose command prints ``content``: a pipe, which cannot be read twice."""
    reading, writing = os.pipe()
    try:
        os.write(writing, content)
        os.close(writing)
        if not Path(f"/dev/fd/{reading}").exists():
            pytest.skip("this system has no /dev/fd")
        yield Path(f"/dev/fd/{reading}")
    finally:
        os.close(reading)


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str], *, json: bool = False) -> tuple[int, str, str]:
    """Code, stdout and stderr of a command that must end in one of ``ANSWERS``, with a message where it failed."""
    capsys.readouterr()
    code = main([*arguments, "--offline"])
    out, err = capsys.readouterr()
    assert code in ANSWERS, f"{code}: {err}"
    assert "Traceback" not in err
    if code in (3, 4):
        assert err.startswith("error: ")
        assert json or not out
    return code, out, err
