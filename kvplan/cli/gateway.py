"""``kvplan gateway``: the plan, enforced in front of a running engine."""

from typing import Annotated, Literal

import typer

from kvplan.cli import options
from kvplan.cli.help import Grouped, grouped
from kvplan.cli.output import talk
from kvplan.engines.option_types import read_count
from kvplan.errors import InputError

SERVER, COUNTS, LEDGER, DEMO = "server", "counts", "ledger", "demo"
"""Groups of rarer options."""

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan gateway --upstream http://127.0.0.1:8000 --traffic traffic.yaml"


def _shown(group: str, name: str, metavar: str, help: str) -> Grouped:
    """A rarer option that shows its default."""
    return grouped(group, name, metavar=metavar, show_default=True, help=help)


def run(
    upstream: Annotated[
        str | None, typer.Option("--upstream", metavar="URL", help="The engine's OpenAI-compatible server.")
    ] = None,
    traffic: Annotated[
        str | None, typer.Option("--traffic", metavar="FILE", help="The plan: a traffic file, or a bundled mix.")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port to listen on.")] = 8080,
    server: Annotated[
        Literal["uvicorn", "granian"],
        _shown(SERVER, "--server", "NAME", "uvicorn, or granian (refuses chunked bodies: 411)."),
    ] = "uvicorn",
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="redis://HOST:PORT", help="Share one ledger among gateways."),
    ] = None,
    ledger_down: Annotated[
        Literal["refuse", "admit-local"],
        _shown(LEDGER, "--ledger-down", "POLICY", "While Redis is down, refuse or admit-local."),
    ] = "refuse",
    ledger_lease: Annotated[
        str, _shown(LEDGER, "--ledger-lease", "TIME", "A killed gateway's reservations expire after this.")
    ] = "10s",
    count: Annotated[
        bool, grouped(COUNTS, "--count/--no-count", help="Shrink reservations to the engine's own counts.")
    ] = True,
    image_tokens: Annotated[
        int | None, grouped(COUNTS, "--image-tokens", metavar="N", help="The engine's maximum per image.")
    ] = None,
    audio_tokens: Annotated[
        int | None, grouped(COUNTS, "--audio-tokens", metavar="N", help="The engine's maximum per audio clip.")
    ] = None,
    video_tokens: Annotated[
        int | None, grouped(COUNTS, "--video-tokens", metavar="N", help="The engine's maximum per video.")
    ] = None,
    body_limit: Annotated[str, _shown(SERVER, "--body-limit", "BYTES", "Refuse larger request bodies.")] = "32MiB",
    body_memory: Annotated[
        str, _shown(SERVER, "--body-memory", "BYTES", "Limit of all bodies held at once.")
    ] = "256MiB",
    too_long_status: Annotated[
        int, _shown(SERVER, "--too-long-status", "N", "For what can never fit: 400 or 413.")
    ] = 400,
    engine_aborts: Annotated[
        Literal["all", "streams", "nothing"],
        _shown(
            SERVER, "--engine-aborts", "WHAT", "What the engine stops when its client leaves: all, streams, nothing."
        ),
    ] = "all",
    grace: Annotated[str, _shown(SERVER, "--grace", "TIME", "How long running requests may take to finish.")] = "30s",
    upstream_timeout: Annotated[
        str, _shown(SERVER, "--upstream-timeout", "TIME", "Give up on an engine that is silent for this long.")
    ] = "10m",
    trust_plan: Annotated[
        bool, typer.Option("--trust-plan", help="Start even if the pool is smaller or unreported.")
    ] = False,
    safety_fraction: options.SafetyFraction = None,
    default_max_tokens: options.DefaultMaxTokens = None,
    set_keys: options.Set = None,
    demo: Annotated[bool, typer.Option("--demo", help="Demonstrate it with made-up engines and clients.")] = False,
    demo_time: Annotated[str, _shown(DEMO, "--demo-time", "TIME", "How long the demo runs.")] = "30s",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Admit a request only while its worst case fits the planned pool; answer 429 with a Retry-After otherwise.

    /healthz and /readyz are for probes, /metrics is for Prometheus.
    """
    try:
        from kvplan.gateway import app, command

        if demo:
            from kvplan.cli.gateway_demo import show_demo

            return show_demo(options.parse_time(demo_time, "--demo-time"))
    except ModuleNotFoundError as error:
        raise InputError(
            f"the gateway needs {error.name}, which is not installed",
            hint="pip install aiohttp uvicorn prometheus-client httptools uvloop",
        ) from error
    if upstream is None or traffic is None:
        raise InputError(
            "the gateway needs an engine and a plan",
            hint="kvplan gateway --upstream http://127.0.0.1:8000 --traffic traffic.yaml, or kvplan gateway --demo",
        )
    media = {"image": image_tokens, "audio": audio_tokens, "video": video_tokens}
    changed = options.changes(set_keys, safety_fraction=safety_fraction, default_max_tokens=default_max_tokens)
    wanted = app.GatewayOptions(
        upstream=upstream,
        traffic=traffic,
        host=host,
        port=port,
        server=server,
        ledger=ledger,
        ledger_down=ledger_down,
        ledger_lease_s=options.parse_time(ledger_lease, "--ledger-lease"),
        count=count,
        media_tokens={name: read_count(n, f"--{name}-tokens") for name, n in media.items() if n is not None},
        body_limit_bytes=options.parse_size(body_limit, "--body-limit"),
        body_memory_bytes=options.parse_size(body_memory, "--body-memory"),
        too_long_status=too_long_status,
        engine_aborts=engine_aborts,
        grace_s=options.parse_time(grace, "--grace"),
        upstream_timeout_s=options.parse_time(upstream_timeout, "--upstream-timeout"),
        trust_plan=trust_plan,
        overrides=changed,
        offline=offline,
        profiles_folder=options.profiles_folder(profiles),
    )
    with options.reported_as_options(changed):
        return command.run(wanted, talk)
