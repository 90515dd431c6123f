"""What vLLM's start-up takes besides weights and KV, as constants with a physical meaning, fitted to start-up logs.

Every figure is a least-squares or central value over real logs of vLLM 0.6 to 0.29 (T4 to H100). The remaining error
is printed by ``tests/tables/budget.py``, and the relative uncertainties below make the band around a budget.
"""

from collections.abc import Mapping
from fractions import Fraction

from kvplan.model import EncoderShape
from kvplan.units import GIB, MIB


def _gib(amount: str) -> int:
    """Bytes of a decimal number of GiB."""
    return int(Fraction(amount) * GIB)


# The sampler at start-up sees logits of min(S, T) rows. Counted in float32 copies of [rows, vocabulary]:
SAMPLER_COPIES_TORCH = Fraction(96, 10)
"""Sorting top-k/top-p in PyTorch: the logits twice (16 and 32 bit), sorted values, 64-bit indices, the sort's own
workspace, probabilities, their sum and masks. Printed activation peaks lie between 9.6 and 9.8 copies."""
SAMPLER_COPIES_TRITON = Fraction(7, 2)
"""The Triton top-k/top-p sampler (0.17 and later, on every GPU that Triton compiles for) works on the logits in place:
logits in 16 and 32 bit, then their probabilities and as many random numbers (``random_sample``)."""
SAMPLER_COPIES_FLASHINFER = Fraction(3)
"""FlashInfer's sampling kernels: the logits, their probabilities and one working copy."""
FIRST_TRITON_SAMPLER = (0, 17)
FIRST_FLASHINFER_SAMPLER = (0, 22)
"""FlashInfer is then a requirement, and its sampler the default from compute capability 8.0 (0.24's ``envs.py`` and
``requirements/cuda.txt``; logs of 0.22 and 0.23 say that it is used; 0.19 enables it by a variable)."""
SAMPLER_COPIES_LOGITS = Fraction(1, 2)
"""The second runner's start-up run samples without parameters (0.24 to 0.32): the logits in 16 bit, nothing else."""
FIRST_WARM_UP_PASS = (0, 33)
SAMPLER_COPIES_WARM_UP: Mapping[str, Fraction] = {
    "torch": SAMPLER_COPIES_TORCH,
    "triton": Fraction(3, 2),
    "flashinfer": Fraction(7, 2),
}
"""From then on it also samples with all parameters: logits in 16 and 32 bit, which Triton works on in place; FlashInfer
adds the masked logits and the probabilities."""
PENALTY_ROW_BYTES = Fraction(33, 8)
"""The second runner counts each request's output tokens (4 B per vocabulary entry) and marks its prompt tokens (1 bit):
``PenaltiesState`` of 0.24 to 0.33, allocated at start for max_num_seqs requests."""

FORWARD_INTERMEDIATES = 3
"""Vectors of the MLP's width alive at once: gate, up and their product (a model without a gate has fewer)."""
FORWARD_HIDDENS = 3
"""Vectors of hidden width alive at once: residual, the layer's input and its output."""
DELTA_CHUNK_TOKENS = 64
"""Tokens of a gated delta net's chunk; each chunk has a matrix of its tokens' products, and a state."""
EXPERT_WORKSPACES = 2
"""Buffers per routed token, each as wide as the wider of an expert's input, gate-and-up and output."""
EXPERT_CHUNK_TOKENS = 32 * 1024
FIRST_WHOLE_EXPERTS = (0, 17)
"""Before it, experts processed this many tokens at a time (``VLLM_FUSED_MOE_CHUNK_SIZE``; vllm-project/vllm pulls 7995
and 34086)."""
FIRST_COMPILE_BENCHMARK = (0, 13)
"""From then on torch.compile times its combined kernels on buffers of its own (``benchmark_combo_kernel``), one of them
as large as the embedding table, inside the profiled run; a start with a warm compile cache does not."""
ACTIVATION_BYTES = 2

NON_TORCH_BEFORE_CONTEXT_SMALL = _gib("0.06")
NON_TORCH_BEFORE_CONTEXT_LARGE = _gib("0.12")
"""CUDA modules and library workspaces loaded while profiling; memory was first measured after the CUDA context existed.
Large cards need more (more multiprocessors, more local memory of kernels)."""
NON_TORCH_BEFORE_CONTEXT_ROCM = _gib("0.5")
"""ROCm's libraries and code objects: 0.8.5 prints 0.46 GiB on a Radeon; pools of MI300X say 0.8 (0.17) and more."""
NON_TORCH_WITH_CONTEXT = _gib("0.33")
NON_TORCH_WITH_CONTEXT_TURING = _gib("0.10")
"""From 0.19 the first measurement is before the CUDA context, which then counts; on a T4 it is smaller."""
FIRST_CONTEXT_COUNTED = (0, 19)
CONTEXT_COUNTED_ONCE = ((0, 6), (0, 6, 5))
"""0.6 before its fifth release counted all that the device held ("Memory profiling results": 0.15 to 0.73 GiB)."""
FIRST_ALL_COUNTED = (0, 27)
"""From then on everything that left the device's free memory counts, not the sum of what torch and others report."""
LARGE_CARD_BYTES = 39 * GIB
NON_TORCH_UNIFIED = _gib("2.5")
"""Unified memory (GB10): what the engine's own processes hold in host memory counts as used on the device."""

COMMUNICATION: Mapping[int, int] = {1: 0, 2: _gib("0.15"), 4: _gib("0.2"), 8: _gib("2.5")}
"""NCCL channels and all-reduce buffers by tensor-parallel size: printed pools of 7B to 120B models on A100 at 2 and 4;
at 8 the print of 8 × A100 (2.1 with all else) and the pools of 8 × RTX PRO 6000 (2.9)."""
COMMUNICATION_HOPPER: Mapping[int, int] = {1: 0, 2: _gib("1.3"), 4: _gib("2.2"), 8: _gib("2.3")}
"""Linked Hopper cards open more channels, and NCCL adds multicast buffers: 2 × H200 print 1.38 non-torch where one H100
prints 0.07; pools of 4 × H100 (Qwen3-235B-FP8) and 8 × H100 (Qwen3-32B)."""
COMMUNICATION_THROUGH_HOST: Mapping[int, int] = {1: 0, 2: _gib("0.15")}
"""Cards before Blackwell without NVLink exchange data through host memory, whatever their number: 2 × 4090 (0.25), 8 ×
L40S (0.21) and 16 × RTX 3090 (0.20) print this above one card's non-torch memory."""
COMMUNICATION_PER_PEER = _gib("2.5") // 7
COMMUNICATION_OVER_PCIE: Mapping[int, int] = {ranks: COMMUNICATION_PER_PEER * (ranks - 1) for ranks in (1, 2, 4, 8)}
"""Blackwell cards without NVLink keep buffers for each peer that they reach over PCIe: pools of 8 (2.5 GiB) and of
4 × RTX PRO 6000 (Qwen3-235B-A22B: 1.2)."""
HOPPER = (9, 0)
BLACKWELL = (10, 0)
COMMUNICATION_PER_NODE_PAIR = _gib("1.5")
"""Network transport buffers of one GPU where its ranks span two nodes or more."""
GPUS_PER_NODE = 8

GRAPH_BASE = _gib("0.10")
GRAPH_EACH = int(Fraction("0.0042") * GIB)
"""A captured CUDA graph keeps its launch parameters and workspaces; the graph pool adds a fixed part."""
FIRST_GRAPHS_INSIDE = (0, 20)
"""Their messages say 0.21; 0.20.0's ``envs.py`` already has it on, and its start-up logs too."""
FIRST_GRAPHS_OF_SECOND_RUNNER = (0, 29)
"""Before it, the second runner's estimate is 0 (``profile_cudagraph_memory`` of 0.24 to 0.28): graphs lie outside."""

FLASHINFER_WORKSPACE = 394 * MIB
"""``VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE``."""
SPARSE_PREFILL_FACTOR = 5
"""Sparse MLA gathers up to 5 × window latents of 16 bit for a prefill (``sparse_mla_prefill_workspace_factor``)."""
SPARSE_LOGITS = 512 * MIB
"""Upper bound of the indexer's score matrix (``VLLM_SPARSE_INDEXER_MAX_LOGITS_MB``)."""
LATENT_CONTEXT_TOKENS = 64 * 1024
"""MLA's prefill turns at most this many cached latents into K and V at a time."""

PLAIN_ENCODER = EncoderShape(hidden=1152, intermediate=4304, patches_per_token=4)
"""Where a config says that there is one and not which: the ViT (So400m) that most vision models use, 2 × 2 merged."""

WIDE_VIDEO_RELEASE = (0, 11)
WIDE_VIDEO_TOKENS = 153_600
"""That release reserves 12.5 times the 12,288 tokens that Qwen3-VL makes of a video ("a budget of 153600 tokens", its
``get_max_video_tokens``)."""

# Uncertainties of the terms, which add in squares; each from the residuals of start-up logs named beside it.
SAMPLER_SHARE = Fraction(15, 100)
SAMPLER_SHARE_PRINTED = Fraction(8, 100)
"""Peaks printed with PyTorch's sampler on NVIDIA (0.6 to 0.11) lie within 8%; of the others only pools are known."""
FORWARD_SHARE = Fraction(35, 100)
ENCODER_SHARE = Fraction(1)
"""Of the encoder's whole peak: widths differ between towers, and videos are profiled longer than images (Gemma 4 on an
RTX 5090, Qwen3.6 with steps of 65,536 tokens)."""
COMPILE_SHARE = Fraction(1)
"""A warm compile cache takes it away whole."""
GRAPH_SHARE = Fraction(1)
GRAPH_SHARE_EXPERTS = Fraction(5)
"""Graphs of one card or of dense models take up to twice the formula. Where several ranks share experts, its 0.46 to
0.86 GiB were printed as 1.9 (4 × A100), 2.1 and 2.4 (2 cards), 3.5 (8 × L40S), 4.1 (4 × B300)."""
FIRST_DELTA_TRANSIENT = (0, 26)
"""From then on the first runner's estimate of graphs also counts a transient of gated delta nets that grows with the
tokens of a step: 128 KiB a token for Qwen3.5-122B-A10B, a byte per value of its recurrent width (vllm-project/vllm
issue 50780). Qwen3.8-27B prints 1.55 and 1.94 GiB where its graphs take 0.71 and 0.94."""
WORKSPACE_SHARE = Fraction(1)
"""Whether FlashInfer's kernels run at all: attention backends other than the default moved one pool by 2.3 GiB."""
COMMUNICATION_SHARE = Fraction(35, 100)
COMMUNICATION_SHARE_UNLINKED = Fraction(1)
"""Whether cards without NVLink reach each other over PCIe (buffers on the card) depends on the host."""
NON_TORCH_BAND_BEFORE_CONTEXT = _gib("0.25")
"""0.6.5 to 0.18: prints lie from 0.12 below to 0.14 above the constants, pools of one card within 0.25."""
NON_TORCH_BAND_ROCM = _gib("0.7")
"""Before 0.19, planned pools of one AMD card are off by 0.1 to 0.7 with that constant."""
NON_TORCH_BAND_COUNTED_ONCE = _gib("0.45")
"""0.6 before its fifth release printed 0.15 to 0.73 of all that the device held."""
NON_TORCH_BAND_WITH_CONTEXT = _gib("0.7")
"""From 0.19 on, loaded kernels and attention backends count too: planned pools are off by up to 0.7."""
UNIFIED_BAND = _gib("3.0")
"""Host memory of the engine and of everything else counts: GB10 and Thor needed 0.4 less to 3 GiB more than planned."""
