"""How many CUDA graphs vLLM captures, and what they hold."""

from kvplan.engines.vllm.budget_constants import GRAPH_BASE, GRAPH_EACH


def capture_sizes(sequences: int, query_tokens: int = 1, *, ceiling: int = 512) -> tuple[int, ...]:
    """Batch sizes (in tokens) that get a graph: 1, 2, 4, then steps of 8 to 256 and of 16 up to
    min(2 × sequences × query tokens, ceiling). Source: vLLM 0.33, ``VllmConfig._set_cudagraph_sizes``.

    >>> capture_sizes(16)
    (1, 2, 4, 8, 16, 24, 32)
    >>> len(capture_sizes(256))
    51
    """
    largest = min(2 * sequences * query_tokens, ceiling)
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, 16)
    return tuple(sizes)


def graph_ceiling(capability: tuple[int, int] | None) -> int:
    """The largest batch that gets a graph by default: 1,024 on compute capability 10, else 512 (vLLM 0.33).

    >>> graph_ceiling((10, 0)), graph_ceiling((9, 0)), graph_ceiling(None)
    (1024, 512, 512)
    """
    return 1024 if capability is not None and capability[0] == 10 else 512


def captured_graphs(sequences: int, query_tokens: int = 1, *, ceiling: int = 512) -> int:
    """Graphs in all: one per size for mixed batches, and one per size up to ``sequences × query_tokens`` for decodes.

    >>> captured_graphs(16), captured_graphs(256)
    (12, 86)
    """
    sizes = capture_sizes(sequences, query_tokens, ceiling=ceiling)
    return len(sizes) + sum(size <= sequences * query_tokens for size in sizes)


def drafter_graphs(sequences: int, query_tokens: int, *, ceiling: int = 512) -> int:
    """Graphs of a drafter that is captured: its first token runs in steps like the model's own, the others in steps of
    one token a sequence. Source: vLLM 0.33, ``TargetDependentARSpeculator.init_cudagraph_manager``; GLM-5.1 on 8 GPUs
    printed 1.2 GiB of graphs alone and 2.2 to 2.4 with its drafter.

    >>> captured_graphs(16, 4), drafter_graphs(16, 4)
    (30, 35)
    """
    others = sum(size <= sequences for size in capture_sizes(sequences, query_tokens, ceiling=ceiling))
    return captured_graphs(sequences, query_tokens, ceiling=ceiling) + others


def graph_bytes(graphs: int) -> int:
    """0.10 GiB + 0.0042 GiB × graphs, as vLLM's own estimate behaves on real logs (0.15 GiB at 12, 0.46 at 86)."""
    return GRAPH_BASE + GRAPH_EACH * graphs if graphs else 0
