"""The command line: arguments in, text and an exit code out.

Only the module of the requested command is imported, so ``kvplan --help`` costs no more than an empty app.
"""

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvplan.errors import KvplanError

INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run kvplan with ``arguments`` (the process's own by default) and return its exit code.

    0 answered (and yes), 1 answered no, 2 a command line that cannot be parsed, 3 to 5 the errors of
    ``kvplan.errors``, 70 a bug in kvplan, 130 interrupted. Typer runs without its own error handling: it would turn
    every exception into 1, and a crash must never look like a failed check.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A start makes many objects and leaves none behind: looking for garbage at every 700th costs a tenth of the time.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _open_closed_streams()
    try:
        code = _run(given)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # a reader that has seen enough of a help text
        from kvplan.cli.output import discard_output

        discard_output(sys.stdout, sys.stderr)
        code = 0
    except KvplanError as error:
        from kvplan.cli.failures import report_error

        code = report_error(error, given)
    except OSError as error:
        from kvplan.cli.failures import report_refused

        code = report_refused(error, given)
    except Exception as error:  # noqa: BLE001 - the one place where a bug may surface
        from kvplan.cli.failures import report_bug

        code = report_bug(error, given)
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    if arguments is None:
        gc.freeze()  # nor is it looked for at the end, when the process gives everything back at once
    return _flush(code)


def _run(arguments: list[str]) -> int:
    """Build the app around the command that ``arguments`` name and run it."""
    import typer

    from kvplan.cli.app import build_app

    completing = "_KVPLAN_COMPLETE" in os.environ
    app = build_app(None if completing else arguments)
    try:
        code = app(arguments, prog_name="kvplan", standalone_mode=False, obj=arguments)
    except typer.Abort:
        return INTERRUPTED
    except typer.TyperException as error:
        from kvplan.cli.failures import report_usage

        return report_usage(error, arguments)
    except SystemExit:
        if completing:
            raise
        return 0  # Typer leaves so where the reader of a help text has gone
    return code if isinstance(code, int) else 0


def _flush(code: int) -> int:
    """Write out what is still buffered; a reader that has left (``| head``) changes neither the answer nor the code."""
    from kvplan.cli.output import quietly

    try:
        with quietly():
            sys.stdout.flush()
    except KvplanError as error:
        from kvplan.cli.failures import report_error

        return report_error(error, ())
    return code


def _open_closed_streams() -> None:
    """Python has None for a stdout or stderr that was closed at start (``>&-``): let what is written there vanish."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end
