"""What a simulated request costs, against (a) a SimPy model of the same ledger and (b) the step-by-step reference.

``pytest tests/benchmarks/test_simulation.py --benchmark-enable -s`` measures a million requests, ``worst_case`` in
front of the engine, below its capacity; without the option a few hundred are played once, and only the answers are
compared. The SimPy model has no engine: it is told how long each request stays, which the kernel has to find out.
``python -m tests.benchmarks.test_simulation profile`` shows where the time of a simulation goes.
"""

import cProfile
import itertools
import json
import pstats
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from math import inf
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import simpy
from pytest_benchmark.fixture import BenchmarkFixture

from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.simulate import simulate
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Outcome, Requests, Run
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.spec import StepCost
from tests.benchmarks.comparison import compare
from tests.reference_engine import ReferenceEngine, Sequence

MILLION = 1_000_000
PLAIN = 20_000
ROUNDS = 3
STEPPED = 2_000
ONCE = 300
MAX_BYTES = 400 * 2**20
BLOCKS = 26_569
SETUP = EngineSetup(
    blocks=BLOCKS,
    layout=CacheLayout(
        block_tokens=16,
        bytes_per_block=2**21,
        groups=(CacheGroup(kind="full", layers=32, rule="full", block_tokens=16, page_bytes=2**21),),
        in_flight_tokens=16_384,
    ),
    max_model_len=32_768,
    max_num_seqs=256,
    max_num_batched_tokens=8_192,
    step=StepCost(base_s=0.008, prefill_token_s=2.5e-5, decode_sequence_s=4.0e-5, kv_token_s=4.0e-8),
    async_scheduling=True,
    prefix_caching=True,
)


def worst_case(count: int, rate_per_s: float = 6.0) -> tuple[Requests, FrontDoor]:
    """Chat: lognormal prompts and answers, a cap of 1,024, charged whole."""
    rng = np.random.default_rng(7)
    prompt = np.clip(rng.lognormal(np.log(1020), 0.843, count), 1, 16_000).astype(np.int64)
    answer = np.clip(rng.lognormal(np.log(129), 0.761, count), 1, 16_000).astype(np.int64)
    cap = np.full(count, 1_024)
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, count))
    return Requests.uncharged(
        arrival_s,
        prompt,
        answer,
        cap,
        charge=-(-(prompt + cap) // 16),
        client_draw=rng.random(count),
        server_draw=rng.random(count),
    ), FrontDoor(capacity=(BLOCKS - 1) * 9 // 10)


def kernel(requests: Requests, door: FrontDoor, *, compiled: bool) -> Run:
    return run_kernel(requests, SETUP, door, [ClientRule()], compiled=compiled)


def simpy_ledger(requests: Requests, capacity: int, stays_s: list[float]) -> list[bool]:
    """Who is let in by a ledger of ``capacity``, where a request stays as long as it is told."""
    environment = simpy.Environment()
    ledger = simpy.Container(environment, capacity=capacity, init=capacity)
    let_in = [False] * len(stays_s)
    charges = requests.charge.tolist()

    def request(i: int) -> Generator[simpy.Event, None, None]:
        if charges[i] > ledger.level:
            return
        let_in[i] = True
        yield ledger.get(charges[i])
        yield environment.timeout(stays_s[i])
        yield ledger.put(charges[i])

    def arrivals() -> Generator[simpy.Event, None, None]:
        for i, arrival_s in enumerate(requests.arrival_s.tolist()):
            yield environment.timeout(arrival_s - environment.now)
            environment.process(request(i))

    environment.process(arrivals())
    environment.run()
    return let_in


def reference(requests: Requests, run: Run) -> list[float]:
    """Finish times of those that the door let in, step by step."""
    engine = ReferenceEngine(SETUP)
    sequences = []
    for i in np.flatnonzero(~np.isnan(run.rows.admitted_s)).tolist():
        prompt, answer, cap = (
            int(column[i]) for column in (requests.prompt_tokens, requests.output_tokens, requests.cap_tokens)
        )
        sequences.append(Sequence(serial=i, prompt=prompt, answer=answer, cap=cap))
        engine.add(float(requests.arrival_s[i]), sequences[-1])
    engine.run(inf)
    return [sequence.finish_s for sequence in sequences]


def stays(run: Run) -> list[float]:
    stay_s: list[float] = np.nan_to_num(run.rows.finish_s - run.rows.admitted_s).tolist()
    return stay_s


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds of this process for ``action``."""
    before_s = time.process_time()
    action()
    return time.process_time() - before_s


def test_rivals_agree() -> None:
    """All three let the same requests in, and finish them at the same time; at a load that refuses some."""
    requests, door = worst_case(ONCE, rate_per_s=60.0)
    run = kernel(requests, door, compiled=False)
    assert 0 < (run.rows.outcome == Outcome.GAVE_UP).sum() < ONCE
    assert simpy_ledger(requests, door.capacity, stays(run)) == (run.rows.outcome == Outcome.COMPLETED).tolist()
    finish_s = run.rows.finish_s[~np.isnan(run.rows.finish_s)]
    assert reference(requests, run) == finish_s.tolist()


def alone(count: int) -> dict[str, float]:
    """CPU seconds of the compiled kernel and peak bytes of a process that does nothing else."""
    command = (sys.executable, "-m", "tests.benchmarks.test_simulation", str(count))
    answer: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return answer


def test_a_million_requests(benchmark: BenchmarkFixture) -> None:
    """The compiled kernel's CPU and memory, and the cost of one request as a ratio to each rival's."""
    if benchmark.disabled:
        pytest.skip("measured with --benchmark-enable")
    pytest.importorskip("numba")
    alone(ONCE)  # compiles it, in a process of its own: children are told the peak of the process they come from
    figures = benchmark.pedantic(alone, args=(MILLION,), rounds=1)  # type: ignore[no-untyped-call]
    requests, door = worst_case(PLAIN)
    fewer, _ = worst_case(STEPPED)
    plain, stepped = kernel(requests, door, compiled=False), kernel(fewer, door, compiled=False)
    stay_s = stays(plain)
    each_us: dict[str, list[float]] = {"compiled": [], "uncompiled": [], "SimPy ledger": [], "stepped": []}
    for _ in range(ROUNDS):
        each_us["compiled"].append(alone(MILLION)["cpu_s"])  # of a million, in seconds: microseconds of one
        each_us["uncompiled"].append(1e6 * cpu_s(lambda: kernel(requests, door, compiled=False)) / PLAIN)
        each_us["SimPy ledger"].append(1e6 * cpu_s(lambda: simpy_ledger(requests, door.capacity, stay_s)) / PLAIN)
        each_us["stepped"].append(1e6 * cpu_s(lambda: reference(fewer, stepped)) / STEPPED)
    print(f"\na million: {statistics.median(each_us['compiled']):.2f} s of CPU", end="")
    print(f", peak memory {figures['peak_bytes'] / 2**20:.0f} MiB, the requests' own arrays included")
    for name in ("SimPy ledger", "stepped"):
        rival = {"SimPy ledger": "SimPy ledger without an engine", "stepped": "step-by-step reference"}[name]
        compare(benchmark, "simulation, compiled", rival, "µs a request", each_us["compiled"], each_us[name])
        compare(benchmark, "simulation, not compiled", rival, "µs a request", each_us["uncompiled"], each_us[name])
    show_profile()
    benchmark.extra_info.update(figures)
    assert figures["peak_bytes"] <= MAX_BYTES
    medians = {name: statistics.median(values) for name, values in each_us.items()}
    assert medians["compiled"] < medians["SimPy ledger"] < medians["stepped"]


MIX = """
deployment:
  {max_model_len: 32768, max_num_seqs: 256, kv_pool: {blocks: 26569, block_tokens: 16},
   service: {base_s: 0.008, prefill_token_s: 2.5e-5, decode_sequence_s: 4.0e-5, kv_token_s: 4.0e-8}}
traffic:
  duration: 46h
  classes:
    - {name: chat, rate: 6/s, prompt_tokens: {lognormal: {p50: 1020, p95: 4080}},
       output_tokens: {lognormal: {p50: 129, p95: 451}}, max_tokens: 1024}
"""
PARTS = {
    "sample": "the traffic is drawn",
    "requests_for": "requests are capped and charged",
    "sustainable_per_s": "the closed-form bound",
    "run_kernel": "the kernel plays, compiled",
    "measure": "figures are made of rows",
}
ROOMS = {
    "who arrives, is admitted, retries": ("event_loop", "front_door"),
    "jumps from event to event": ("advance", "clock"),
    "batches that prefill, admit or preempt": ("batch", "waiting", "running"),
    "ends and blocks given back": ("leaving", "prefix_cache"),
    "blocks counted": ("blocks",),
    "heaps and lists": ("state", "heappush", "heappop"),
}


def where_time_goes() -> Iterator[tuple[str, float]]:
    """Parts of a simulation of a million requests with their seconds, then the uncompiled kernel's own."""
    traffic = parse_traffic(MIX, file="mix.yaml")
    kernel(*worst_case(ONCE), compiled=True)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(simulate, traffic, strategies=("worst_case",), seeds=1, workers=1)
    yield "a million requests", 0.0
    for (file, _, name), (_, calls, _, total_s, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name in PARTS and "/kvplan/" in file:
            yield f"{PARTS[name]} ({calls} ×)" if calls > 1 else PARTS[name], total_s
    requests, door = worst_case(PLAIN)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(kernel, requests, door, compiled=False)
    yield f"the kernel, uncompiled, {PLAIN:,} requests", 0.0
    own = Counter[str]()
    for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        own[Path(file).stem if "/kernel/" in file else name.rpartition(".")[2].strip(">")] += own_s
    for room, modules in ROOMS.items():
        yield room, sum(own[module] for module in modules)


def show_profile() -> None:
    """The parts as a table: seconds, and shares of their heading's sum."""
    found = list(where_time_goes())
    starts = [place for place, (_, seconds) in enumerate(found) if not seconds] + [len(found)]
    for start, end in itertools.pairwise(starts):
        total_s = sum(seconds for _, seconds in found[start:end])
        print(f"{found[start][0]}: {total_s:.2f} s of CPU under the profiler")
        for part, seconds in sorted(found[start + 1 : end], key=itemgetter(1), reverse=True):
            print(f"  {seconds / total_s:5.0%}  {seconds:6.2f} s  {part}")


if __name__ == "__main__":
    if sys.argv[1:] == ["profile"]:
        show_profile()
        sys.exit()
    kernel(*worst_case(ONCE), compiled=True)
    asked, ledger = worst_case(int(sys.argv[1]))
    used_s = cpu_s(lambda: kernel(asked, ledger, compiled=True))
    print(json.dumps({"cpu_s": used_s, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
