"""Many requests with random faults: clients that leave or time out, engines that die, malformed bodies.

    python -m tests.gateway_chaos --requests 100000 --at-once 200 --seconds 600

Prints what happened, the highest reservation, and what is left over: reservations, tasks, sockets, memory. Exits with 1
where anything is left, the memory grew, nothing was refused, or the pool was not used to its brim.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvplan.gateway.server import loop_factory
from tests.gateway_server import CHAT, Served, promise, raw_post, served

CAPACITY = 600
"""Blocks: less than a third of what 200 clients hold together, so that many are refused, also on a busy machine."""
GROWTH_LIMIT_BYTES = 16 * 2**20
"""Resident memory may grow by this much after the first fifth of the requests, however many follow."""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What a run leaves behind, and what it did."""

    outcomes: dict[str, int]
    elapsed_s: float
    capacity: int
    peak_reserved: int
    reserved: int
    holders: int
    engine_running: int
    tasks_before: int
    tasks_after: int
    sockets_before: int
    sockets_after: int
    warm_bytes: int
    end_bytes: int

    def complaints(self) -> list[str]:
        """What is left over, and what the run failed to show."""
        found = {
            f"{self.reserved} blocks are still reserved": self.reserved,
            f"{self.holders} holders are left": self.holders,
            f"{self.engine_running} requests still run in the engine": self.engine_running,
            f"{self.tasks_after - self.tasks_before} more tasks": self.tasks_after > self.tasks_before,
            f"{self.sockets_after - self.sockets_before} more sockets": self.sockets_after > self.sockets_before,
            "a fifth of the requests was not reached, so memory was not compared": not self.warm_bytes,
            f"memory grew by more than {GROWTH_LIMIT_BYTES // 2**20} MiB": (
                self.warm_bytes and self.end_bytes - self.warm_bytes > GROWTH_LIMIT_BYTES
            ),
            "nothing was refused (429)": not self.outcomes.get("429"),
            "more was reserved than the capacity": self.peak_reserved > self.capacity,
            "the highest reservation is under 0.9 of the capacity": self.peak_reserved < 0.9 * self.capacity,
        }
        return [text for text, is_wrong in found.items() if is_wrong]


def _sockets() -> int:
    folder = Path("/proc/self/fd")
    count = 0
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            count += str(entry.readlink()).startswith("socket:")
    return count


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _chat(generator: random.Random, **fake: Any) -> bytes:
    script = {"tokens": generator.randint(1, 8), "gap_s": generator.choice((0, 0, 0.002, 0.01)), **fake}
    body = {
        "messages": [{"role": "user", "content": "x" * generator.randint(1, 400)}],
        "stream": generator.random() < 0.7,
        "fake": script,
    }
    if generator.random() < 0.7:
        body["max_tokens"] = generator.randint(1, 200)
    return json.dumps(body).encode()


BAD_BODIES = (
    b"",
    b"{",
    b"[]",
    b'{"messages": 3}',
    b'{"messages": [], "max_tokens": -4}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "1"}',
    b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
    b'{"messages": [{"role": "user", "content": "x"}], "n": 400}',
    b"\xff" * 100,
    b" " * 70_000,
)


async def _one(gateway: Served, generator: random.Random) -> str:
    """One request of a random kind, and how it ended."""
    kind = generator.choices(("plain", "leaves", "cut", "dies", "timeout", "bad", "half"), (50, 15, 8, 10, 5, 8, 4))[0]
    if kind in ("cut", "half"):
        return await _raw(gateway, generator, kind)
    if kind == "bad":
        body = generator.choice(BAD_BODIES)
    elif kind == "dies":
        body = _chat(generator, die_after=generator.choice((-2, 0, 1, 3)), tokens=8)
    elif kind in ("leaves", "timeout"):
        body = _chat(generator, tokens=50, gap_s=0.02)
    else:
        body = _chat(generator)
    timeout = aiohttp.ClientTimeout(total=generator.uniform(0.01, 0.3) if kind == "timeout" else 60)
    try:
        async with gateway.client.post(gateway.url + CHAT, data=body, timeout=timeout) as response:
            if kind == "leaves" and response.status == 200:
                for _ in range(generator.randint(0, 3)):
                    await response.content.readany()
                response.close()
                return "left"
            await response.read()
            return str(response.status)
    except TimeoutError:
        return "timed out"
    except aiohttp.ClientPayloadError:
        return "broken off"
    except aiohttp.ClientError as error:
        return type(error).__name__


async def _raw(gateway: Served, generator: random.Random, kind: str) -> str:
    """A request that stops in the middle of its body, or whose connection is reset at a random byte of the answer."""
    body = _chat(generator, tokens=8, gap_s=0.002)
    request = raw_post(body)
    sent = request[: generator.randint(1, len(request) - 1)] if kind == "half" else request
    reader, writer = await gateway.open(sent)
    if kind == "cut":
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.5):
                await reader.read(generator.randint(1, 2000))
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return kind


async def run_chaos(requests: int, at_once: int, seconds: float, seed: int = 7) -> Leftovers:
    """Send ``requests``, ``at_once`` at any time, for ``seconds`` at most; then see what is left."""
    outcomes: Counter[str] = Counter()
    limits: dict[str, Any] = {"body_limit_bytes": 65536}
    async with served(promise(capacity=CAPACITY), **limits) as gateway:
        await gateway.client.close()
        gateway.client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        for _ in range(20):
            outcomes[await _one(gateway, random.Random(seed))] += 0
        await gateway.is_idle()
        tasks_before, sockets_before = len(asyncio.all_tasks()), _sockets()
        start_s, left, warm = time.monotonic(), requests, 0

        async def client(number: int) -> None:
            nonlocal left, warm
            generator = random.Random(f"{seed} {number}")
            while left > 0 and time.monotonic() - start_s < seconds:
                left -= 1
                if left == requests * 4 // 5:
                    warm = _resident_bytes()
                outcomes[await _one(gateway, generator)] += 1
                gateway.engine.bodies.clear()
                gateway.engine.headers.clear()

        await asyncio.gather(*(client(number) for number in range(at_once)))
        elapsed_s = time.monotonic() - start_s
        await gateway.client.close()
        await gateway.is_idle(10)
        for _ in range(100):  # idle connections to the engine are kept for four seconds, and looked at as often
            if _sockets() <= sockets_before and len(asyncio.all_tasks()) <= tasks_before:
                break
            await asyncio.sleep(0.1)
        gc.collect()
        return Leftovers(
            outcomes=dict(outcomes.most_common()),
            elapsed_s=elapsed_s,
            capacity=CAPACITY,
            peak_reserved=gateway.ledger.peak,
            reserved=gateway.ledger.reserved,
            holders=gateway.ledger.holders,
            engine_running=gateway.engine.running,
            tasks_before=tasks_before,
            tasks_after=len(asyncio.all_tasks()),
            sockets_before=sockets_before,
            sockets_after=_sockets(),
            warm_bytes=warm,
            end_bytes=_resident_bytes(),
        )


def main() -> int:
    """Print the figures; 1 if there are complaints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(run_chaos(options.requests, options.at_once, options.seconds))
    sent = sum(found.outcomes.values())
    print(f"{sent:,} requests in {found.elapsed_s:.0f} s on {os.cpu_count()} cores, {options.at_once} at once")
    print("  " + ", ".join(f"{count:,} {name}" for name, count in found.outcomes.items() if count))
    print(f"highest reservation {found.peak_reserved} of {found.capacity} blocks")
    print(f"left: {found.reserved} blocks, {found.holders} holders, {found.engine_running} running in the engine")
    print(f"tasks {found.tasks_before} → {found.tasks_after}, sockets {found.sockets_before} → {found.sockets_after}")
    warm, end = found.warm_bytes / 2**20, found.end_bytes / 2**20
    print(f"resident memory {warm:.1f} MiB after a fifth of the requests, {end:.1f} MiB at the end")
    complaints = found.complaints()
    for complaint in complaints:
        print(f"WRONG: {complaint}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
