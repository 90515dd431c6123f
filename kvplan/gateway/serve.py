"""Runs a gateway application on uvicorn or granian, and takes it down without breaking what is running."""

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass

import uvicorn

from kvplan.gateway.admit import WeightedLedger
from kvplan.gateway.answers import AsgiApp
from kvplan.gateway.proxy import UpstreamDiedError

_LOOK_AGAIN_S = 0.05


@dataclass
class Drain:
    """Whether the server is going down. The one switch that admission, readiness and the server share."""

    is_draining: bool = False

    def __call__(self) -> bool:
        """True once the first signal to stop was seen."""
        return self.is_draining


class _QuietAboutUpstreams(logging.Filter):
    """An answer that broke off upstream is aborted by an exception on purpose; it is counted, not logged as a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], UpstreamDiedError)


async def serve(
    app: AsgiApp, ledger: WeightedLedger, drain: Drain, *, host: str, port: int, grace_s: float = 30.0
) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new work, let running requests finish for ``grace_s``, and stop."""
    logging.getLogger("uvicorn.error").addFilter(_QuietAboutUpstreams())
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 * 1024,
        server_header=False,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with contextlib.ExitStack() as stack:
        # uvicorn would take the signals for itself and stop at once; the drain decides when it stops.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        stack.callback(_remove_handlers, loop)
        serving = asyncio.create_task(server.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        drain.is_draining = True
        deadline_s = time.monotonic() + grace_s
        while ledger.reserved and not serving.done() and time.monotonic() < deadline_s:
            await asyncio.sleep(_LOOK_AGAIN_S)
        stopping.cancel()
        server.should_exit = True
        server.force_exit = bool(ledger.reserved)
        await serving


def _remove_handlers(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
