"""What each strategy charges a request, and which requests can never be served."""

from collections.abc import Callable
from dataclasses import dataclass

PROMPT_EXCEEDS_WINDOW = "prompt_exceeds_window"
RESERVATION_EXCEEDS_POOL = "reservation_exceeds_pool"


def promised_blocks(blocks: int, safety_fraction: float, reserved_blocks: int = 1) -> int:
    """Blocks that the ledger may promise: floor((blocks − reserved) × safety_fraction).

    The engine always has the whole pool; only the ledger is kept below it. The fraction is taken as the decimal that
    was written, so that binary rounding does not change 0.9 of 26,568.

    >>> promised_blocks(26_569, 0.90), promised_blocks(11, 0.3)
    (23911, 3)
    """
    scaled = round(safety_fraction * 10**9)
    return (blocks - reserved_blocks) * scaled // 10**9


def effective_cap(
    prompt_tokens: int, max_tokens: int | None, window_tokens: int, default_max_tokens: int | None = None
) -> int:
    """Tokens that the answer can reach: min(max_tokens, window − prompt).

    Without ``max_tokens`` it is the default, where the server has one (and forwards it), else the rest of the window.
    Zero or less means that the prompt leaves no room for an answer.

    >>> effective_cap(1_000, 4_096, 32_768), effective_cap(30_000, 4_096, 32_768), effective_cap(1_000, None, 32_768)
    (4096, 2768, 31768)
    >>> effective_cap(1_000, None, 32_768, default_max_tokens=1_024)
    1024
    """
    asked = max_tokens if max_tokens is not None else default_max_tokens
    room = window_tokens - prompt_tokens
    return room if asked is None else min(asked, room)


def permanent_refusal(prompt_tokens: int, window_tokens: int, weight: int, capacity: int) -> str | None:
    """Why a request can never be served here, or None; such a request must not be told to try again.

    >>> permanent_refusal(40_000, 32_768, 1, 100), permanent_refusal(10, 32_768, 101, 100)
    ('prompt_exceeds_window', 'reservation_exceeds_pool')
    >>> permanent_refusal(10, 32_768, 100, 100) is None
    True
    """
    if prompt_tokens >= window_tokens:
        return PROMPT_EXCEEDS_WINDOW
    return RESERVATION_EXCEEDS_POOL if weight > capacity else None


@dataclass(frozen=True, kw_only=True)
class RequestSize:
    """What a strategy knows of a request: its prompt, its effective cap, and the p95 of the answers of its class, which
    is at most the cap."""

    prompt_tokens: int
    cap_tokens: int
    expected_output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One admission rule.

    ``counts`` is the unit of the ledger: ``blocks`` (what the engine takes for ``tokens(size)`` tokens), ``requests``
    (one each) or ``nothing``. ``fills_default_cap``: requests without a cap get the default, in the engine too.
    ``engine_caps``: the engine itself refuses when its queue is full.
    """

    name: str
    counts: str
    summary: str
    tokens: Callable[[RequestSize], int] | None = None
    fills_default_cap: bool = False
    engine_caps: bool = False


def _worst_case(size: RequestSize) -> int:
    return size.prompt_tokens + size.cap_tokens


def _prompt_only(size: RequestSize) -> int:
    return size.prompt_tokens


def _ratio(size: RequestSize) -> int:
    """The prompt + 0.7 × the cap, rounded up; 0.7 is the initial new-token ratio of SGLang."""
    return size.prompt_tokens + -(-7 * size.cap_tokens // 10)


def _quantile(size: RequestSize) -> int:
    return size.prompt_tokens + size.expected_output_tokens


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="worst_case",
            counts="blocks",
            summary="prompt + effective cap, held whole to the end",
            tokens=_worst_case,
        ),
        Strategy(
            name="worst_case_default_cap",
            counts="blocks",
            summary="the same, with a default cap for clients that send none",
            tokens=_worst_case,
            fills_default_cap=True,
        ),
        Strategy(name="prompt_only", counts="blocks", summary="the prompt alone", tokens=_prompt_only),
        Strategy(name="concurrency", counts="requests", summary="a number of requests, whatever their size"),
        Strategy(name="none", counts="nothing", summary="everything; the engine queues and preempts"),
        Strategy(
            name="ratio", counts="blocks", summary="prompt + 0.7 × effective cap, as SGLang starts", tokens=_ratio
        ),
        Strategy(
            name="quantile", counts="blocks", summary="prompt + the class's p95 of output tokens", tokens=_quantile
        ),
        Strategy(
            name="engine_queue",
            counts="nothing",
            summary="the engine's own caps on queued requests and tokens",
            engine_caps=True,
        ),
    )
}
DEFAULT_STRATEGIES = ("worst_case", "worst_case_default_cap", "prompt_only", "concurrency", "none")


def charge(strategy: Strategy, size: RequestSize, request_blocks: Callable[[int], int]) -> int:
    """The weight of a request in the ledger: blocks of the tokens that the strategy counts, one, or nothing.

    >>> size = RequestSize(prompt_tokens=100, cap_tokens=60, expected_output_tokens=20)
    >>> def blocks(tokens: int) -> int:
    ...     return -(-tokens // 16)
    >>> [charge(strategy, size, blocks) for strategy in STRATEGIES.values()]
    [10, 10, 7, 1, 0, 9, 8, 0]
    """
    if strategy.counts == "requests":
        return 1
    return 0 if strategy.tokens is None else request_blocks(strategy.tokens(size))
