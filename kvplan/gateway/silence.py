"""Answers that an engine stopped writing: one timer for all, because one for each costs CPU with every token."""

import asyncio

import aiohttp


class Reading:
    """One answer that is being read, and since when its next piece is waited for."""

    __slots__ = ("response", "since_s")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.since_s: float | None = None


class SilenceGuard:
    """Closes the connection of an answer of which nothing came for ``longest_s``; its reader then sees it break off."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._readings: set[Reading] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reading: Reading) -> None:
        """Watch ``reading`` until it is discarded."""
        self._readings.add(reading)
        if self._timer is None:
            self._arm()

    def discard(self, reading: Reading) -> None:
        """Stop watching ``reading``."""
        self._readings.discard(reading)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._longest_s / 4, self._look)

    def _look(self) -> None:
        self._timer = None
        oldest_s = asyncio.get_running_loop().time() - self._longest_s
        for reading in list(self._readings):
            if reading.since_s is not None and reading.since_s < oldest_s:
                reading.response.close()
        if self._readings:
            self._arm()
