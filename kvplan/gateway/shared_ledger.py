"""One ledger in Redis for several gateways in front of one engine: weighted reservations with leases.

A running gateway renews what it holds four times per lease; what a killed one held is free when its leases expire.
"""

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Hashable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from kvplan.errors import InputError
from kvplan.gateway.admission import LedgerDownError

if TYPE_CHECKING:
    from redis.asyncio import Redis

LEASE_S = 10.0
MIN_LEASE_S = 1.0

_LOG = logging.getLogger("kvplan.gateway")
_ADDRESS = re.compile(r"unix://|rediss?://[^/?#]*/?\d*(?:[?#]|$)")
_EXAMPLE = "redis://127.0.0.1:6379/0"
_TIMEOUT_S = 1.0
_TRY_AGAIN_S = 0.25
_RELEASED = -1


class SharedLedger:
    """Reservations against a ``capacity`` shared through Redis; open it inside a running loop, close it at the end.

    While Redis is down: without ``admits_local`` everything is refused (LedgerDownError); with it, this gateway admits
    up to its even share of the capacity, by the number of gateways last seen. What a gateway already held above its
    share comes on top until it ends. A gateway that alone loses Redis for longer than a lease may hold more than the
    ledger knows, until it is back.
    """

    def __init__(self, client: "Redis", name: str, capacity: int, *, lease_s: float, admits_local: bool) -> None:
        self._client = client
        self._keys = [f"kvplan:{{{name}}}:{part}" for part in ("weights", "leases", "state", "gateways")]
        self._gateway = uuid.uuid4().hex
        self._capacity = capacity
        self._lease_s = lease_s
        self._admits_local = admits_local
        self._script = client.register_script(files(__package__).joinpath("shared_ledger.lua").read_text("utf-8"))
        self._weights: dict[Hashable, int] = {}
        self._held = 0
        self._reserved_by_all = 0
        self._gateways = 1
        self._is_down = False
        self._is_open = False
        self._reductions: dict[Hashable, int] = {}
        self._wake = asyncio.Event()
        self._due_s = 0.0
        self._is_closed = False
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, address: str, capacity: int, *, name: str = "engine", lease_s: float = LEASE_S, admits_local: bool = False
    ) -> Self:
        """Connect to ``address`` (redis://, rediss://, unix://). Raises InputError if it cannot."""
        try:
            from redis.exceptions import AuthenticationError, RedisError
        except ModuleNotFoundError as error:
            raise InputError("a shared ledger needs redis, which is not installed", hint="pip install redis") from error
        try:
            client = _client(address)
        except (ValueError, TypeError) as error:
            raise InputError(  # without the address, since it may contain a password
                "--ledger is not the address of a Redis server", hint=f"--ledger {_EXAMPLE}", key="--ledger"
            ) from error
        ledger = cls(client, name, capacity, lease_s=lease_s, admits_local=admits_local)
        try:
            await ledger._call("hold")
        except (RedisError, OSError, TimeoutError) as error:
            await client.aclose()
            if isinstance(error, AuthenticationError):
                raise InputError(
                    "the Redis server of --ledger requires another user or password",
                    hint="--ledger redis://USER:PASSWORD@HOST:PORT",
                    key="--ledger",
                ) from error
            raise InputError(
                f"the Redis server of --ledger does not answer as expected: {error}",
                hint="start it first, or correct --ledger (rediss:// for TLS)",
                key="--ledger",
            ) from error
        ledger._keeper = asyncio.get_running_loop().create_task(ledger._keep())
        return ledger

    @property
    def capacity(self) -> int:
        """The most that all gateways may reserve together."""
        return self._capacity

    @property
    def reserved(self) -> int:
        """Weight of all gateways' reservations, as last reported by Redis."""
        return self._reserved_by_all

    @property
    def free(self) -> int:
        """Weight that a new reservation may still take, as last reported by Redis."""
        return max(0, self._capacity - self._reserved_by_all)

    def answers(self) -> bool:
        """Whether Redis answered last time and its ledger is open (one lease after Redis lost its memory)."""
        return not self._is_down and self._is_open

    async def acquire(self, holder: Hashable, weight: int) -> bool:
        """Reserve ``weight`` if that much is free. A caller cancelled while waiting holds nothing."""
        if self._is_down:
            return self._acquire_local(holder, weight)
        asking = asyncio.get_running_loop().create_task(self._reserve(holder, weight))
        try:
            granted = await asyncio.shield(asking)
        except BaseException:
            asking.add_done_callback(lambda done: self._undo(holder, weight, done))
            raise
        if granted is None:
            return self._acquire_local(holder, weight)
        if granted:
            self._take(holder, weight)
        return granted

    def _undo(self, holder: Hashable, weight: int, done: "asyncio.Task[bool | None]") -> None:
        if not done.cancelled() and done.exception() is None and done.result():
            self._reductions[holder] = _RELEASED
            self._wake.set()

    def _acquire_local(self, holder: Hashable, weight: int) -> bool:
        if not self._admits_local:
            raise LedgerDownError
        if self._held + weight > self._capacity // max(1, self._gateways):
            return False
        self._take(holder, weight)
        self._due_s = 0.0  # tell Redis at once, if it is up: as soon as it opens, others reserve too
        self._wake.set()
        return True

    def _take(self, holder: Hashable, weight: int) -> None:
        self._weights[holder] = weight
        self._held += weight

    def weight_of(self, holder: Hashable) -> int | None:
        """What ``holder`` has reserved here; None if nothing."""
        return self._weights.get(holder)

    def shrink(self, holder: Hashable, weight: int) -> bool:
        """Lower the reservation of ``holder``; it never grows. Redis is told soon after."""
        held = self._weights.get(holder)
        if held is None or weight >= held:
            return False
        self._weights[holder] = weight
        self._held -= held - weight
        self._reductions[holder] = weight
        self._wake.set()
        return True

    def release(self, holder: Hashable) -> bool:
        """Give back what ``holder`` reserved, once. Redis is told soon after; at the latest the lease expires."""
        weight = self._weights.pop(holder, None)
        if weight is None:
            return False
        self._held -= weight
        self._reductions[holder] = _RELEASED
        self._wake.set()
        return True

    async def close(self) -> None:
        """Give back what is still held, and disconnect."""
        if self._keeper is not None:
            self._is_closed = True  # a cancellation that coincides with a timeout inside redis can be lost
            self._wake.set()
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        for holder in list(self._weights):
            self.release(holder)
        await self._try("lower", self._take_reductions())
        await self._client.aclose()

    async def _keep(self) -> None:
        """The only writer besides ``_reserve``: reductions as they come, and all that is held every quarter of a lease.

        The two take turns here, so that no renewal can bring a released holder back.
        """
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            wait_s = _TRY_AGAIN_S if self._is_down else max(0.0, self._due_s - loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            if self._is_down:
                await asyncio.sleep(_TRY_AGAIN_S)
                # The old connections are dead, and each would look like another outage.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            elif self._reductions:
                await self._try("lower", self._take_reductions())
            if self._is_down or loop.time() >= self._due_s:
                self._due_s = loop.time() + self._lease_s / 4
                await self._try("hold", dict(self._weights))

    def _take_reductions(self) -> dict[Hashable, int]:
        reductions, self._reductions = self._reductions, {}
        return reductions

    async def _try(self, operation: str, weights: dict[Hashable, int]) -> None:
        from redis.exceptions import RedisError

        try:
            await self._call(operation, weights)
        except (RedisError, OSError, TimeoutError) as error:
            if operation == "lower":  # still true when sent late: a later reduction of the same holder is smaller
                self._reductions = {**weights, **self._reductions}
            self._note_down(error)
        else:
            if self._is_down:
                _LOG.warning("the shared ledger answers again")
            self._is_down = False
            if self._reductions:
                self._wake.set()

    async def _reserve(self, holder: Hashable, weight: int) -> bool | None:
        """True: granted; False: no room; None: Redis is down, or its ledger is not open yet."""
        from redis.exceptions import RedisError

        try:
            result = await self._call("reserve", {holder: weight})
        except (RedisError, OSError, TimeoutError) as error:
            self._note_down(error)
            return None
        return None if result < 0 else bool(result)

    async def _call(self, operation: str, weights: dict[Hashable, int] | None = None) -> int:
        arguments: list[Any] = [operation, int(self._lease_s * 1000), self._capacity, self._gateway]
        for holder, weight in (weights or {}).items():
            arguments += (f"{self._gateway}:{holder}", weight)
        result, self._reserved_by_all, gateways = await self._script(keys=self._keys, args=arguments)
        self._is_open = result >= 0
        # While it is not open, not every running gateway has reported yet.
        self._gateways = gateways if self._is_open else max(gateways, self._gateways)
        return int(result)

    def _note_down(self, error: Exception) -> None:
        if not self._is_down:
            _LOG.warning("the shared ledger cannot be reached (%s)", type(error).__name__)
        self._is_down = True
        self._wake.set()


def _client(address: str) -> "Redis":
    """A client that never retries. Raises ValueError or TypeError if ``address`` is not one."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    if not _ADDRESS.match(address):
        raise ValueError("the path is not the number of a database")
    retry = Retry(NoBackoff(), 0)
    client = Redis.from_url(address, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=retry)
    client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # reads the options in the address
    return client
