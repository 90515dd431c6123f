"""``kvplan gateway`` as a person runs it: what it refuses, how it starts, and how it shuts down."""

import asyncio
import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
from rich.console import Console

from kvplan.admission import STRATEGIES
from kvplan.cli import main
from kvplan.cli.gateway_demo import scene, table_of, verdict
from kvplan.errors import InputError
from kvplan.gateway import demo
from kvplan.gateway.admission import GatewayPlan
from kvplan.gateway.engine_queries import ReportedPool, check_pool
from kvplan.gateway.server import listen
from tests.fake_engine import FakeEngine
from tests.gateway_server import CHAT, promise
from tests.golden_files import check_golden

KVPLAN = str(Path(sys.executable).with_name("kvplan"))
TRAFFIC = """\
deployment:
  max_model_len: 1024
  kv_pool: {blocks: 129, block_tokens: 16}
  service: {base_s: 0.008, prefill_token_s: 2.5e-5, decode_sequence_s: 4.0e-5, kv_token_s: 4.0e-8}
admission: {policy: worst_case, safety_fraction: 1.0}
traffic:
  duration: 1m
  classes: [{name: chat, rate: 1/s, prompt_tokens: 100, output_tokens: 10}]
"""


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    """A plan of 128 usable blocks."""
    path = tmp_path / "traffic.yaml"
    path.write_text(TRAFFIC)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "an engine and a plan"),
        (["--upstream", "127.0.0.1:8000"], "not the address of a server"),
        (["--upstream", "ftp://x"], "not the address of a server"),
        (["--upstream", "http://"], "not the address of a server"),
        (["--upstream", "http://x:99999"], "not the address of a server"),
        (["--too-long-status", "200"], "400, as engines answer, or 413"),
        (["--ledger-lease", "10ms"], "too short to be renewed"),
        (["--grace", "soon"], "not a duration"),
        (["--body-memory", "1MiB"], "try: --body-memory 268435456B"),
        (["--body-memory", "some"], "error: --body-memory: 'some' is not"),
        (["--safety-fraction", "1.5"], "error: --safety-fraction: must be"),
        (["--upstream", "http://me:secret@x"], "must not contain a user name or password"),
        (["--upstream", "ftp://me:secret@x"], "'ftp://x' is not the address of a server"),
        (["--upstream", "http://me:secret@x:99999"], "not the address of a server"),
        (["--body-limit", "many"], "not an amount of memory"),
        (["--image-tokens", "0"], "image-tokens"),
        (["--upstream", "http://127.0.0.1:9"], "does not answer"),
        (["--trust-plan", "--host", "no.such.host.invalid"], "not an address of this machine"),
        (["--trust-plan", "--ledger", "http://x"], "not the address of a Redis server"),
        (["--trust-plan", "--ledger", "redis://127.0.0.1:9"], "does not answer"),
        (["--trust-plan", "--ledger", "redis://127.0.0.1:9/first"], "not the address of a Redis server"),
        (["--trust-plan", "--ledger", "redis://127.0.0.1:9/0?bogus=1"], "not the address of a Redis server"),
        (["--trust-plan", "--ledger", "redis://:secret@127.0.0.1:99999"], "not the address of a Redis server"),
        (["--traffic", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_a_wrong_option_is_reported_in_one_sentence(
    traffic: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["--upstream", "http://127.0.0.1:8000", "--traffic", traffic] if arguments else []
    assert main(["gateway", "--offline", *plan, *arguments]) == 3
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert "secret" not in error


def test_a_port_in_use_is_reported(traffic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        plan = ["--upstream", "http://127.0.0.1:9", "--traffic", traffic, "--trust-plan"]
        assert main(["gateway", *plan, "--port", port]) == 3
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, list[str]]]:
    """The command in its own process, once it listens: its address and what it printed."""
    process = await asyncio.create_subprocess_exec(
        KVPLAN, "gateway", "--port", "0", *arguments, stderr=asyncio.subprocess.PIPE
    )
    said: list[str] = []
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while line := (await process.stderr.readline()).decode():
                said.append(line.strip())
                if found := re.search(r"listening on (http://\S+)", line):
                    yield process, found[1], said
                    break
            else:
                yield process, "", said
        said += (await process.stderr.read()).decode().splitlines()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


@pytest.mark.parametrize(("server", "number"), [("uvicorn", signal.SIGTERM), ("granian", signal.SIGINT)])
def test_it_shuts_down_without_breaking_requests_in_flight(traffic: str, server: str, number: signal.Signals) -> None:
    async def whole() -> None:
        async with (
            FakeEngine(blocks=129) as engine,
            started("--upstream", engine.url, "--traffic", traffic, "--server", server) as (process, url, said),
            aiohttp.ClientSession() as client,
        ):
            assert said[0] == "the engine has 129 blocks, the plan uses 129"
            assert said[1:] == ["worst_case promises 128 of 129 blocks", f"listening on {url}"]
            await _until_ready(client, url)
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 10}
            slow = {**body, "fake": {"tokens": 10, "gap_s": 0.15}}
            async with client.post(url + CHAT, json=slow) as running:
                assert running.status == 200
                process.send_signal(number)
                await asyncio.sleep(0.4)
                async with client.post(url + CHAT, json=body) as late:
                    assert late.status == 503
                    assert (await late.json())["error"]["code"] == "draining"
                assert (await running.read()).endswith(b"data: [DONE]\n\n")
            assert await asyncio.wait_for(process.wait(), 10) == 0
            assert len(engine.bodies) == 1
        assert said[-1] == "stopped", said

    asyncio.run(whole())


async def _until_ready(client: aiohttp.ClientSession, url: str) -> None:
    for _ in range(300):
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with client.get(url + "/readyz") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.02)
    raise AssertionError("not ready")


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_start_up_lines_fit_a_narrow_terminal(name: str) -> None:
    blocks = 234_567
    plan = GatewayPlan(promise=promise(capacity=blocks, strategy=STRATEGIES[name]), blocks=blocks, block_tokens=16)
    pool = ReportedPool(tokens=16 * blocks, blocks=blocks, block_tokens=32)
    checked = check_pool(planned_blocks=blocks, block_tokens=16, reported=pool)
    assert max(len(checked), len(str(plan))) <= 60


@pytest.mark.parametrize("server", ["uvicorn", "granian"])
def test_the_grace_period_ends(traffic: str, server: str) -> None:
    async def whole() -> None:
        async with (
            FakeEngine(blocks=129) as engine,
            started(
                "--upstream", engine.url, "--traffic", traffic, "--server", server, "--grace", "300ms", "--trust-plan"
            ) as (process, url, said),
            aiohttp.ClientSession() as client,
        ):
            await _until_ready(client, url)
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 1000}
            async with client.post(url + CHAT, json={**body, "fake": {"tokens": 1000, "gap_s": 0.1}}) as running:
                process.send_signal(signal.SIGTERM)
                with pytest.raises(aiohttp.ClientError):
                    await running.read()
            assert await asyncio.wait_for(process.wait(), 10) == 0
            for _ in range(200):
                if not engine.running:
                    break
                await asyncio.sleep(0.01)
            assert engine.running == 0
        assert "requests cut off: 1" in said[-1]

    asyncio.run(whole())


@pytest.mark.parametrize(("blocks", "starts"), [(129, True), (128, False)])
def test_it_starts_only_if_the_engine_has_what_was_planned(traffic: str, blocks: int, starts: bool) -> None:
    async def whole() -> None:
        async with FakeEngine(blocks=blocks) as engine:
            async with started("--upstream", engine.url, "--traffic", traffic) as (process, url, said):
                assert bool(url) == starts
                if starts:
                    process.terminate()
                code = await process.wait()
            assert code == (0 if starts else 3)
            if not starts:
                assert "the plan promises 129 blocks; the engine has 128" in said[0]
                async with started("--upstream", engine.url, "--traffic", traffic, "--trust-plan") as found:
                    process, url, said = found
                    assert url
                    process.terminate()
                    assert said[0] == "the plan is trusted: the engine was not asked for its pool"

    asyncio.run(whole())


def test_the_demo_shows_one_policy_running_out_and_the_other_holding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(demo, "RATE_PER_S", 5.0)  # so that a few seconds show it
    assert main(["gateway", "--demo", "--demo-time", "5s"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 60 for line in out.splitlines())
    last = {words[1]: words for words in map(str.split, out.splitlines()) if words and words[0].endswith("s")}
    assert int(last["prompt_only"][-1]) > 0, out
    assert int(last["worst_case"][-1]) == 0, out
    assert int(last["worst_case"][-3]) > 0, "refused instead"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_demo_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    figures = {"running": 99, "waiting": 99, "completed": 9999, "preemptions": 999, "recomputed_tokens": 999_999}
    engine, ledger = Mock(blocks=240, used_blocks=240, **figures), Mock(reserved=240)
    sides = [
        demo.Side(policy=policy, engine=engine, ledger=ledger, refusals=9999, gave_up=999) for policy in demo.POLICIES
    ]
    console = Console(width=width, file=io.StringIO(), legacy_windows=False)
    console.print(table_of(sides, 30.0))
    assert isinstance(console.file, io.StringIO)
    table = console.file.getvalue().splitlines()
    assert len(table) == 11, "a title, a head and nine rows"
    shown = ["$ kvplan gateway --demo", *scene().splitlines(), "", *table, *verdict(sides).splitlines(), "$"]
    assert max(map(len, shown)) <= width
    assert len(shown) <= 24 or width < 80, "nothing scrolls away on a screen of 80 by 24"


def test_the_demo_ends_on_ctrl_c_with_its_conclusion() -> None:
    process = subprocess.Popen([KVPLAN, "gateway", "--demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("policy" in line for line in iter(process.stdout.readline, ""))
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "prompt_only takes the overload into the engine" in said, "it still says what it showed"
    assert "Traceback" not in error


PLANNER = (
    "import kvplan.api, kvplan.cli.app, kvplan.simulation.simulate, kvplan.recommend, kvplan.capacity",
    "from kvplan.cli import main; main(['fit', 'meta-llama/Llama-3.1-8B-Instruct', '--gpu', 'h100', '--offline'])",
    "from kvplan.cli import main; main(['gateway', '--help'])",
    "import kvplan.gateway",
    "from kvplan.gateway import Admission, AdmissionMiddleware, OwnLedger, Promise",
)


@pytest.mark.parametrize("code", PLANNER)
def test_the_planner_does_not_pay_for_the_gateway(code: str) -> None:
    heavy = ["aiohttp", "httptools", "uvicorn", "prometheus_client", "redis", "granian", "uvloop", "yarl"]
    script = f"import sys, json\n{code}\nprint(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_help_at_every_width(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["gateway", "--help-all"]) == 0
    check_golden(f"cli/gateway_help_{width}.txt", capsys.readouterr().out)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_beyond_the_last_is_refused_not_cut_to_sixteen_bits(port: int) -> None:
    with pytest.raises(InputError, match=f"--port {port} is not a port"):
        listen("127.0.0.1", port)
