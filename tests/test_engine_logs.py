"""Start-up logs: lines written for these tests in the engines' own forms, clean and noisy.

The wordings are those of the published packages (named in ``kvplan/engine_logs/*.py``); the figures are invented,
except where a comment says otherwise.
"""

import gzip
import io
import json
from pathlib import Path

import pytest

from kvplan.calibration.misleading import misleading_lines
from kvplan.engine_logs import EngineStart, read_log, read_starts
from kvplan.engine_logs.lines import Wanted, clean_lines, clean_text
from kvplan.engine_logs.reader import TRIGGERS
from kvplan.errors import InputError
from kvplan.units import GIB, MIB


def starts_of(text: str) -> list[EngineStart]:
    return read_starts(clean_lines(io.BytesIO(text.encode())))


def gib(amount: float) -> int:
    return round(amount * GIB)


V1 = """
INFO 11-30 01:00:00 [api_server.py:1805] vLLM API server version 0.11.0
INFO 11-30 01:00:00 [utils.py:233] non-default args: {'model': 'org/eight-b', 'max_model_len': 32768, \
'gpu_memory_utilization': 0.9, 'max_num_seqs': 128}
INFO 11-30 01:00:05 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=272) INFO 11-30 01:00:06 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: \
model='org/eight-b', speculative_config=None, tokenizer='org/eight-b', dtype=torch.bfloat16, max_seq_len=32768, \
tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, \
kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching=True
(EngineCore_DP0 pid=272) INFO 11-30 01:00:08 [topk_topp_sampler.py:55] Using FlashInfer for top-p & top-k sampling.
(EngineCore_DP0 pid=272) INFO 11-30 01:00:30 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 12.1 seconds
(EngineCore_DP0 pid=272) INFO 11-30 01:00:50 [gpu_worker.py:298] Available KV cache memory: 50.96 GiB
(EngineCore_DP0 pid=272) INFO 11-30 01:00:51 [kv_cache_utils.py:1087] GPU KV cache size: 417,456 tokens
(EngineCore_DP0 pid=272) INFO 11-30 01:00:51 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per \
request: 12.74x
(EngineCore_DP0 pid=272) INFO 11-30 01:01:20 [gpu_model_runner.py:3480] Graph capturing finished in 20 secs, \
took 0.55 GiB
(EngineCore_DP0 pid=272) DEBUG 11-30 01:01:21 [gpu_worker.py:399] Free memory on device (78.68/79.18 GiB) on startup. \
Desired GPU memory utilization is (0.9, 71.26 GiB). Actual usage is 14.99 GiB for weight, 4.76 GiB for peak \
activation, \
0.13 GiB for non-torch memory, and 0.55 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with \
`--kv-cache-memory=54000000000` (50.29 GiB) to fit into requested memory, or `--kv-cache-memory=62000000000` \
(57.74 GiB) \
to fully utilize gpu memory. Current kv cache memory in use is 50.96 GiB.
INFO 11-30 01:01:22 [launcher.py:36] Route: /health, Methods: GET
"""


def test_a_vllm_v1_start() -> None:
    (start,) = starts_of(V1)
    assert (start.engine, start.version, start.model) == ("vllm", "0.11.0", "org/eight-b")
    assert (start.kv_dtype, start.quantization) == ("auto", None)
    assert (start.max_model_len, start.max_num_seqs, start.max_num_batched_tokens) == (32768, 128, 8192)
    assert (start.memory_utilization, start.tensor_parallel, start.prefix_caching) == (0.9, 1, True)
    assert start.enforce_eager is False
    assert (start.total_bytes, start.requested_bytes) == (gib(79.18), gib(71.26))
    assert (start.weight_bytes, start.activation_bytes) == (gib(14.99), gib(4.76))
    assert (start.non_torch_bytes, start.graph_bytes) == (gib(0.13), gib(0.55))
    assert (start.kv_bytes, start.kv_tokens) == (gib(50.96), 417456)
    assert (start.concurrency, start.concurrency_tokens) == (12.74, 32768)
    assert start.refusals == ()
    kv = start.line_of("kv_bytes")
    assert kv is not None
    assert (kv.line, kv.text[:28]) == (12, "(EngineCore_DP0 pid=272) DEB")


V0 = """
INFO 02-01 10:00:00 api_server.py:911] vLLM API server version 0.7.3
INFO 02-01 10:00:00 api_server.py:912] args: Namespace(host=None, model='org/small', max_model_len=2048, \
gpu_memory_utilization=0.69, max_num_seqs=160, tensor_parallel_size=1, enable_lora=True)
INFO 02-01 10:00:01 llm_engine.py:235] Initializing a V0 LLM engine (v0.7.3) with config: model='org/small', \
dtype=torch.float16, max_seq_len=2048, tensor_parallel_size=1, quantization=None, enforce_eager=False, \
kv_cache_dtype=auto
INFO 02-01 10:00:20 model_runner.py:1115] Loading model weights took 7.6334 GB
INFO 02-01 10:00:24 worker.py:267] Memory profiling takes 3.55 seconds
INFO 02-01 10:00:24 worker.py:267] the current vLLM instance can use total_gpu_memory (14.74GiB) x \
gpu_memory_utilization (0.69) = 10.22GiB
INFO 02-01 10:00:24 worker.py:267] model weights take 7.63GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak \
memory takes 0.88GiB; the rest of the memory reserved for KV Cache is 1.68GiB.
INFO 02-01 10:00:24 executor_base.py:111] # cuda blocks: 764, # CPU blocks: 1820
INFO 02-01 10:00:24 gpu_executor.py:122] # GPU blocks: 764, # CPU blocks: 1820
INFO 02-01 10:00:24 executor_base.py:116] Maximum concurrency for 2048 tokens per request: 5.97x
INFO 02-01 10:00:55 model_runner.py:1562] Graph capturing finished in 30 secs, took 0.34 GiB
"""


def test_a_vllm_v0_start() -> None:
    (start,) = starts_of(V0)
    assert (start.version, start.model, start.has_lora) == ("0.7.3", "org/small", True)
    assert (start.total_bytes, start.requested_bytes) == (gib(14.74), gib(10.22))
    assert (start.weight_bytes, start.activation_bytes) == (gib(7.63), gib(0.88))
    assert (start.non_torch_bytes, start.kv_bytes) == (gib(0.03), gib(1.68))
    assert (start.blocks, start.concurrency, start.concurrency_tokens) == (764, 5.97, 2048)
    assert start.graph_bytes == gib(0.34)


V033 = """
(APIServer pid=1) INFO 11-01 00:00:00 [api_server.py:1] vLLM API server version 0.33.0
(EngineCore pid=9) INFO 11-01 00:00:02 [core.py:139] Initializing a V1 LLM engine (v0.33.0) with config: model='m', \
dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=2, enforce_eager=False, kv_cache_dtype=fp8
(EngineCore pid=9) INFO 11-01 00:00:03 [scheduler.py:311] Asynchronous scheduling is enabled.
(Worker_TP0 pid=10) INFO 11-01 00:00:04 [interface.py:1109] Setting attention block size to 1072 tokens to ensure that
(Worker_TP0 pid=10) INFO 11-01 00:00:20 [gpu_model_runner.py:5089] Model loading took 28.46 GiB memory and 9.1 seconds
(Worker_TP1 pid=11) INFO 11-01 00:00:20 [gpu_model_runner.py:5089] Model loading took 28.47 GiB memory and 9.2 seconds
(Worker_TP0 pid=10) INFO 11-01 00:00:25 [gpu_model_runner.py:6410] Estimated CUDA graph memory: 0.15 GiB total
(Worker_TP0 pid=10) INFO 11-01 00:00:26 [gpu_worker.py:773] Available KV cache memory: 13.84 GiB
(Worker_TP1 pid=11) INFO 11-01 00:00:26 [gpu_worker.py:773] Available KV cache memory: 13.71 GiB
(Worker_TP0 pid=10) INFO 11-01 00:00:26 [gpu_worker.py:790] CUDA graph memory profiling is enabled (default since \
v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8981
(EngineCore pid=9) INFO 11-01 00:00:27 [kv_cache_utils.py:1147] GPU KV cache size: 151,216 tokens, Maximum concurrency \
for 131,072 tokens per request: 1.15x
(Worker_TP0 pid=10) INFO 11-01 00:00:40 [gpu_worker.py:1003] CUDA graph pool memory: 0.11 GiB (actual), 0.15 GiB \
(estimated), difference: 0.04 GiB (36.4%).
(Worker_TP0 pid=10) INFO 11-01 00:00:41 [gpu_worker.py:1045] Free memory on device (78.9/79.25 GiB) on startup. \
Desired \
GPU memory utilization is (0.9, 71.33 GiB). Actual usage is 57.11 GiB for consumed memory (weights + \
non-torch), 0.38 GiB \
for peak activation, and 0.11 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`
"""


def test_a_vllm_start_of_two_ranks_takes_the_smaller_pool_and_takes_the_graphs_out_of_the_peak() -> None:
    (start,) = starts_of(V033)
    assert (start.tensor_parallel, start.async_scheduling) == (2, True)
    assert (start.weight_bytes, start.kv_bytes) == (gib(28.47), gib(13.71))
    assert (start.graph_estimate_bytes, start.graph_bytes) == (gib(0.15), gib(0.11))
    # 0.38 GiB holds the estimate of 0.15 GiB: the peak of the activations is 0.23 GiB
    assert start.activation_bytes is not None
    assert abs(start.activation_bytes - gib(0.23)) <= 1
    assert start.consumed_bytes == gib(57.11)
    assert (start.block_tokens, start.concurrency, start.kv_tokens) == (1072, 1.15, 151216)


REFUSED = [
    (
        (
            "ERROR 01-01 00:00:00 [core.py:708] ValueError: To serve at least one request with the models's max seq "
            "len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (12.20 "
            "GiB). Based on the available memory, the estimated maximum model length is 99936. Try increasing"
        ),
        ("window_too_long", 131072, gib(16.0), gib(12.2), 99936, None),
    ),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GB KV cache is "
            "needed, which is larger than the available KV cache memory (0.50 GB). Try increasing"
        ),
        ("window_too_long", 8192, gib(1.0), gib(0.5), None, None),
    ),
    (
        (
            "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be "
            "stored in KV cache (23648). Try increasing `gpu_memory_utilization`"
        ),
        ("window_too_long", 29000, None, None, None, 23648),
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
        ("no_kv_memory", None, None, None, None, None),
    ),
    (
        (
            "ValueError: Free memory on device cuda:0 (102.2/121.69 GiB) on startup is less than desired GPU memory "
            "utilization (0.87, 105.87 GiB). Decrease GPU memory utilization or reduce GPU memory used by others."
        ),
        ("not_enough_free", None, gib(105.87), gib(102.2), None, None),
    ),
]


@pytest.mark.parametrize(("line", "expected"), REFUSED)
def test_vllm_refusals(line: str, expected: tuple[object, ...]) -> None:
    (start,) = starts_of(line)
    (refusal,) = start.refusals
    assert (
        refusal.reason,
        refusal.max_model_len,
        refusal.needed_bytes,
        refusal.available_bytes,
        refusal.estimated_max_model_len,
        refusal.pool_tokens,
    ) == expected


SGLANG = """
[2026-06-08 03:32:00] server_args=ServerArgs(model_path='org/mid', tokenizer_path='org/mid', dtype='auto', \
quantization=None, kv_cache_dtype='auto', mem_fraction_static=0.85, max_running_requests=None, \
chunked_prefill_size=4096, page_size=1, tp_size=2, pp_size=1, dp_size=1, context_length=None, disable_cuda_graph=False)
[2026-06-08 03:32:09 TP0] Load weight begin. avail mem=44.01 GB
[2026-06-08 03:32:09 TP1] Load weight begin. avail mem=44.05 GB
[2026-06-08 03:32:19 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=40.97 GB, mem \
usage=3.04 GB.
[2026-06-08 03:32:19 TP1] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=41.00 GB, mem \
usage=3.05 GB.
[2026-06-08 03:32:20 TP0] Using KV cache dtype: torch.bfloat16
[2026-06-08 03:32:20 TP0] KV Cache is allocated. #tokens: 1287482, K size: 17.19 GB, V size: 17.19 GB
[2026-06-08 03:32:20 TP1] KV Cache is allocated. #tokens: 1287482, K size: 17.19 GB, V size: 17.19 GB
[2026-06-08 03:32:20 TP0] Memory pool end. avail mem=6.01 GB
[2026-06-08 03:32:29 TP0] Capture cuda graph end. Time elapsed: 8.42 s. mem usage=0.18 GB. avail mem=5.83 GB.
[2026-06-08 03:32:30 TP0] max_total_num_tokens=1287482, chunked_prefill_size=4096, max_prefill_tokens=16384, \
max_running_requests=4096, context_len=32768, available_gpu_mem=4.77 GB
"""


def test_speculative_decoding_in_the_arguments_of_vllm() -> None:
    """An excerpt without the engine's own line (0.22): the arguments are a dict, the method may come after others."""
    (start,) = starts_of(
        """
(APIServer pid=1) INFO 05-30 07:09:38 [utils.py:278] non-default args: {'model': 'org/m', 'max_num_seqs': 8, \
'speculative_config': {'model': 'org/draft', 'method': 'dflash', 'num_speculative_tokens': 6}, 'kv_cache_dtype': 'fp8'}
(EngineCore pid=2) INFO 05-30 07:15:33 [gpu_worker.py:466] Available KV cache memory: 71.59 GiB
"""
    )
    assert (start.has_speculation, start.speculative_method, start.speculative_tokens) == (True, "dflash", 6)
    assert (start.model, start.kv_dtype) == ("org/m", "fp8")


def test_an_sglang_start() -> None:
    (start,) = starts_of(SGLANG)
    assert (start.engine, start.model, start.kv_dtype) == ("sglang", "org/mid", "bfloat16")
    assert (start.tensor_parallel, start.memory_utilization) == (2, 0.85)
    assert (start.free_before_bytes, start.free_after_load_bytes) == (gib(44.01), gib(40.97))
    assert start.weight_bytes == gib(3.05)
    assert (start.kv_tokens, start.kv_bytes) == (1287482, 2 * gib(17.19))
    assert (start.graph_bytes, start.max_num_seqs, start.max_model_len) == (gib(0.18), 4096, 32768)
    assert start.max_num_batched_tokens == 4096
    # 0.4.1 said the sizes alone
    (early,) = starts_of("[2025-01-23 19:35:20 TP0] KV Cache is allocated. K size: 27.13 GB, V size: 27.13 GB.")
    assert early.kv_bytes == 2 * gib(27.13)


def test_sglang_state_window_pools_and_a_draft_model() -> None:
    (start,) = starts_of(
        """
[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.8, tp_size=1)
[2026-01-01 00:00:01] Load weight begin. avail mem=61.10 GB
[2026-01-01 00:00:02] Load weight end. elapsed=1.20 s, type=M, quant=fp8, avail mem=50.00 GB, mem usage=11.10 GB.
[2026-01-01 00:00:03] Mamba Cache is allocated. max_mamba_cache_size: 1521, conv_state size: 0.84GB, ssm_state \
size: 17.84GB
[2026-01-01 00:00:03] Use sliding window memory pool. full_layer_tokens=40960, swa_layer_tokens=32768
[2026-01-01 00:00:03] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 40960, K size: 1.00 GB, V size: 1.00 GB
[2026-01-01 00:00:03] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 32768, K size: 2.00 GB, V size: 2.00 GB
[2026-01-01 00:00:04] Memory pool end. avail mem=12.00 GB
[2026-01-01 00:00:05] Load weight begin. avail mem=12.00 GB
[2026-01-01 00:00:06] Load weight end. type=Draft, avail mem=11.00 GB, mem usage=1.00 GB.
[2026-01-01 00:00:06] KV Cache is allocated. #tokens: 40960, K size: 0.10 GB, V size: 0.10 GB
[2026-01-01 00:00:07] max_total_num_tokens=40960, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=16, context_len=40960, available_gpu_mem=10.00 GB
"""
    )
    assert (start.free_before_bytes, start.weight_bytes) == (gib(61.10), gib(11.10))
    assert start.kv_bytes == 2 * gib(1.0) + 2 * gib(2.0)
    assert start.state_bytes == gib(0.84) + gib(17.84)
    assert (start.kv_tokens, start.window_pool_tokens) == (40960, 32768)


def test_sglang_pool_of_a_draft_whose_loading_is_left_out() -> None:
    """A practitioner's excerpt (0.5.17, Qwen3.8-27B): 171,008 tokens of 64 KiB, then a draft's one layer."""
    (start,) = starts_of(
        """
Mamba Cache is allocated. max_mamba_cache_size: 43, conv_state size: 0.12GB, ssm_state size: 3.09GB
KV Cache is allocated. #tokens: 171008, K size: 5.22 GB, V size: 5.22 GB
KV Cache is allocated. #tokens: 171008, K size: 0.33 GB, V size: 0.33 GB
"""
    )
    assert (start.kv_bytes, start.kv_tokens, start.state_bytes) == (2 * gib(5.22), 171_008, gib(0.12) + gib(3.09))


def test_sglang_mla_and_refusals() -> None:
    (start,) = starts_of(
        """
[2026-01-01 00:00:00 DP0 TP0 EP0] Load weight begin. avail mem=61.00 GB
[2026-01-01 00:00:00 DP1 TP1 EP1] Load weight begin. avail mem=61.20 GB
[2026-01-01 00:00:03 DP0 TP0 EP0] KV Cache is allocated. #tokens: 235008, KV size: 15.39 GB
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.88
"""
    )
    assert (start.kv_bytes, start.free_before_bytes) == (gib(15.39), gib(61.0))
    assert [refusal.reason for refusal in start.refusals] == ["no_kv_memory"]
    (small,) = starts_of(
        "ValueError: SWA pool (3072 tokens) cannot hold even one request: the prefill admission floor is"
    )
    assert small.refusals[0].pool_tokens == 3072


TRT = """
[TensorRT-LLM] TensorRT-LLM version: 0.17.0.post1
[TensorRT-LLM][INFO] Engine version 0.17.0 found in the config file, assuming engine(s) built by new builder API.
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64
[TensorRT-LLM][INFO] TRTGptModel maxSequenceLen: 4098
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 8192
[TensorRT-LLM][INFO] Capacity Scheduler Policy: GUARANTEED_NO_EVICT
[TensorRT-LLM][INFO] Loaded engine size: 15330 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 928.77 MiB for execution context memory.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, available: 17.83 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 8219
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
"""


def test_a_tensorrt_llm_start() -> None:
    """The pool's figures are those of a published log: 0.9 × 17.83 GiB = 16.05 GiB = 8,219 blocks of 32."""
    (start,) = starts_of(TRT)
    assert (start.engine, start.version) == ("tensorrt-llm", "0.17.0")
    assert (start.max_num_seqs, start.max_model_len, start.max_num_batched_tokens) == (64, 4098, 8192)
    assert (start.weight_bytes, start.total_bytes) == (15330 * MIB, gib(31.84))
    assert (start.free_after_load_bytes, start.kv_bytes) == (gib(17.83), gib(16.05))
    assert (start.blocks, start.block_tokens, start.kv_tokens) == (8219, 32, 263008)


def test_the_pytorch_backend_of_tensorrt_llm() -> None:
    (start,) = starts_of(
        """
[01/16/2026-06:20:10] [TRT-LLM] [I] TensorRT-LLM version: 1.2.0
[01/16/2026-06:20:15] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, \
available KV cache memory when calculating max tokens: 41.11 GiB, fraction is set 0.85, kv size per token is \
35136. device \
total memory 139.81 GiB, temporary kv cache memory during profiling 0.20 GiB
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 256 [window size=16384], tokens per block=64, primary \
blocks=19620, \
secondary blocks=0, max sequence length=16384
[01/16/2026-06:20:17] [TRT-LLM] [I] max_seq_len=16384, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
"""
    )
    assert (start.peak_bytes, start.kv_bytes, start.total_bytes) == (gib(91.46), gib(41.11), gib(139.81))
    assert (start.memory_utilization, start.blocks, start.block_tokens) == (0.85, 19620, 64)
    assert (start.max_model_len, start.max_num_seqs, start.max_num_batched_tokens) == (16384, 64, 8192)


LLAMA = """
build: 8999 (abcdef0) with cc for x86_64-linux-gnu
srv    load_model: loading model '/models/q.gguf'
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA RTX A6000) (0000:01:00.0) - 48260 MiB free
llama_model_load_from_file_impl: using device CUDA1 (NVIDIA RTX A6000) (0000:02:00.0) - 48260 MiB free
llama_model_loader: loaded meta data with 45 key-value pairs and 733 tensors from /models/q.gguf (version GGUF \
V3 (latest))
llama_model_loader: - kv   2:                               general.name str              = Q Model
print_info: file type   = Q8_0
load_tensors:   CPU_Mapped model buffer size =   272.00 MiB
load_tensors:        CUDA0 model buffer size = 16000.00 MiB
load_tensors:        CUDA1 model buffer size = 18667.52 MiB
llama_context: constructing llama_context
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 32768
llama_context: n_ctx_seq     = 32768
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: kv_unified    = true
llama_context:  CUDA_Host  output buffer size =     2.32 MiB
llama_kv_cache:      CUDA0 KV buffer size =   320.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =   320.00 MiB
llama_kv_cache: size =  640.00 MiB ( 32768 cells,  10 layers,  4/1 seqs), K (f16):  320.00 MiB, V (f16):  320.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =   117.25 MiB
llama_memory_recurrent:      CUDA1 RS buffer size =   134.00 MiB
llama_memory_recurrent: size =  251.25 MiB (     4 cells,  40 layers,  4 seqs  0 rs_seq), R (f32):   11.25 MiB, \
S (f32): \
240.00 MiB
sched_reserve:      CUDA0 compute buffer size =   300.00 MiB
sched_reserve:      CUDA0 compute buffer size =   372.06 MiB
sched_reserve:      CUDA1 compute buffer size =   637.07 MiB
sched_reserve:  CUDA_Host compute buffer size =    72.02 MiB
srv    load_model: initializing, n_slots = 4, n_ctx_slot = 32768, kv_unified = 'true'
"""


def test_a_llama_cpp_start_over_two_gpus() -> None:
    """Buffers add up over devices; a device's scratch that is reserved again counts once; host memory does not."""
    (start,) = starts_of(LLAMA)
    assert (start.engine, start.version, start.model) == ("llama.cpp", "8999", "Q Model")
    assert (start.gpu, start.quantization) == ("NVIDIA RTX A6000", "Q8_0")
    assert start.weight_bytes == round(34667.52 * MIB)
    assert (start.kv_bytes, start.key_bytes, start.value_bytes) == (640 * MIB, 320 * MIB, 320 * MIB)
    assert start.state_bytes == round(251.25 * MIB)
    assert start.compute_bytes == round(372.06 * MIB) + round(637.07 * MIB)
    assert (start.kv_tokens, start.slots, start.max_model_len, start.kv_unified) == (32768, 4, 32768, True)
    assert (start.kv_dtype, start.max_num_batched_tokens) == ("f16", 512)


def test_llama_cpp_windows_quantised_caches_and_old_wordings() -> None:
    (start,) = starts_of(
        """
llama_model_loader: loaded meta data with 40 key-value pairs and 444 tensors from gemma.gguf (version GGUF V3 (latest))
llama_kv_cache_iswa: creating non-SWA KV cache, size = 131072 cells
llama_kv_cache:      CUDA0 KV buffer size =  2560.00 MiB
llama_kv_cache: size = 2560.00 MiB (131072 cells,   5 layers,  1/1 seqs), K (q8_0): 1280.00 MiB, V (q4_0): 1280.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache:      CUDA0 KV buffer size =   174.00 MiB
llama_model_loader: loaded meta data with 20 key-value pairs and 100 tensors from draft.gguf (version GGUF V3 (latest))
llama_kv_cache:      CUDA0 KV buffer size =    99.00 MiB
"""
    )
    assert (start.kv_bytes, start.window_pool_tokens, start.kv_dtype) == (2734 * MIB, 1536, "q8_0/q4_0")
    (old,) = starts_of(
        """
llm_load_tensors:      CUDA0 buffer size =  4095.05 MiB
llama_new_context_with_model: n_ctx      = 8192
llama_kv_cache_init:      CUDA0 KV buffer size =  1024.00 MiB
llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   560.00 MiB
"""
    )
    assert (old.weight_bytes, old.kv_tokens, old.compute_bytes) == (round(4095.05 * MIB), 8192, 560 * MIB)
    assert old.kv_bytes == 1024 * MIB


def test_a_llama_cpp_start_with_layers_on_the_host_and_decimal_commas() -> None:
    """Weights of the host are left out; a card's whole memory is read where nothing is said of what is free."""
    (start,) = starts_of(
        """
ggml_cuda_init: found 1 CUDA devices (Total VRAM: 24123 MiB):
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes, VRAM: 24123 MiB
0.12.101.000 I llama_model_loader: loaded meta data with 33 key-value pairs and 339 tensors from q.gguf (version GGUF)
0.12.439.391 I load_tensors: offloaded 20/29 layers to GPU
0.12.439.391 I load_tensors:    CUDA_Host model buffer size =   787,50 MiB
0.12.439.391 I load_tensors:        CUDA0 model buffer size =  6637,63 MiB
0.12.912.966 I llama_kv_cache:        CPU KV buffer size =    72,00 MiB
0.12.912.971 I llama_kv_cache:      CUDA0 KV buffer size =   152,00 MiB
"""
    )
    assert (start.gpu, start.total_bytes) == ("NVIDIA GeForce RTX 3090", 24123 * MIB)
    assert (start.layers_on_gpu, start.layers) == (20, 29)
    assert (start.weight_bytes, start.kv_bytes) == (round(6637.63 * MIB), 224 * MIB)


TGI = """
2024-09-03T04:40:00.000000Z  INFO text_generation_launcher: Args {
    model_id: "org/llama",
    num_shard: Some(
        2,
    ),
    quantize: None,
    max_concurrent_requests: 128,
    max_total_tokens: Some(
        4096,
    ),
    cuda_memory_fraction: 0.95,
}
2024-09-03T04:40:18.377577Z  INFO text_generation_launcher: KV-cache blocks: 19056, size: 1
2024-09-03T04:40:19.370247Z  INFO text_generation_router::server: Setting max batch total tokens to 19056
"""


def test_tgi_in_text_and_in_json() -> None:
    (start,) = starts_of(TGI)
    assert (start.engine, start.model, start.tensor_parallel) == ("tgi", "org/llama", 2)
    assert (start.max_model_len, start.max_num_seqs, start.memory_utilization) == (4096, 128, 0.95)
    assert (start.kv_tokens, start.blocks, start.block_tokens) == (19056, 19056, 1)
    message = {
        "timestamp": "2024-03-09T05:08:19Z",
        "level": "INFO",
        "message": "Setting max batch total tokens to 133696",
    }
    (json_start,) = starts_of(json.dumps({**message, "target": "text_generation_router"}))
    assert json_start.kv_tokens == 133696


KINDS = ["docker", "cri", "journald", "compose", "kubectl", "ansi", "progress", "windows", "junk", "loki"]


def wrapped(kind: str, text: str) -> str:
    """``text`` as a container runtime, a service manager or a terminal would have kept it."""
    lines = text.strip().split("\n")
    shapes = {
        "docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-30T01:00:00.0Z"}),
        "cri": lambda line: f"2026-11-30T01:00:00.123456789Z stderr F {line}",
        "journald": lambda line: f"Nov 30 01:00:00 gpu-7 vllm[811]: {line}",
        "compose": lambda line: f"vllm-1  | {line}",
        "kubectl": lambda line: f"[pod/llm-0/vllm] {line}",
        "ansi": lambda line: f"\x1b[1;36m{line[:20]}\x1b[0;0m{line[20:]}\x1b[K",
        "progress": lambda line: f"Loading safetensors:  50%|##  | 1/2\rLoading safetensors: 100%|####| 2/2\r{line}",
        "windows": lambda line: f"{line}\r",
        "junk": lambda line: f"\x00\x07{line}",
        "loki": lambda line: f"2026-11-30T01:00:00.123456789Z stdout F vllm-1 | {line}",
    }
    return "\n".join(shapes[kind](line) for line in lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "clean", [V1, V0, V033, SGLANG, TRT, LLAMA, TGI], ids=["v1", "v0", "0.33", "sglang", "trt", "llama", "tgi"]
)
def test_noise_changes_nothing(kind: str, clean: str) -> None:
    expected = [figures_of(start) for start in starts_of(clean)]
    assert [figures_of(start) for start in starts_of(wrapped(kind, clean))] == expected


def figures_of(start: EngineStart) -> dict[str, object]:
    skipped = {"first_line", "last_line", "observations", "refusals"}
    return {name: value for name, value in vars(start).items() if name not in skipped}


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_log_is_read_as_if_every_line_were_cleaned(kind: str, tmp_path: Path) -> None:
    served = 'INFO: 10.0.3.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 3
    text = served.join(wrapped(kind, clean) + "\n" for clean in (V1, V0, V033, SGLANG, TRT, LLAMA, TGI))
    text += "\x1b[32mGPU KV ca\x1b[0mche size: 1,000 tokens\r\n" + served
    path = tmp_path / "server.log"
    path.write_bytes(text.encode())
    assert read_log(path) == starts_of(text)
    served_only = Wanted(words=TRIGGERS, all_now=lambda: False).places((served * 9).encode())
    assert list(served_only) == []


@pytest.mark.parametrize("clean", [V1, SGLANG, TRT, LLAMA, TGI], ids=["vllm", "sglang", "trt", "llama", "tgi"])
def test_two_starts_of_an_engine_are_two(clean: str) -> None:
    """A container that starts again writes into the same log; each start has its own figures and lines."""
    first, second = starts_of(wrapped("compose", clean) + "\n" + wrapped("ansi", clean))
    assert figures_of(first) == figures_of(second) == figures_of(starts_of(clean)[0])
    assert first.last_line < second.first_line


def test_several_starts_are_kept_apart() -> None:
    starts = starts_of(V1 + V0 + SGLANG + V033)
    assert [(start.engine, start.version) for start in starts] == [
        ("vllm", "0.11.0"),
        ("vllm", "0.7.3"),
        ("sglang", None),
        ("vllm", "0.33.0"),
    ]
    assert starts[1].kv_bytes == gib(1.68)


def test_binary_junk_between_lines_is_harmless() -> None:
    noisy = V1.encode().replace(b"\n", b"\n\xff\xfe\x00\x9c\x80 garbage \xc3\x28\n")
    (start,) = read_starts(clean_lines(io.BytesIO(noisy)))
    assert figures_of(start) == figures_of(starts_of(V1)[0])


def test_a_file_may_be_packed_and_its_lines_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(V1.encode()))
    (start,) = read_log(path)
    kv = start.line_of("concurrency")
    assert kv is not None
    assert (start.first_line, kv.line) == (2, 10)


def test_a_line_without_end_is_cut_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    path.write_bytes(b"x" * (9 << 20) + b"\n" + V0.encode())
    assert read_log(path)[0].kv_bytes == gib(1.68)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello\nworld\n", b"\x00\x01" * 1000, b"torch.OutOfMemoryError: CUDA out of memory."):
        path = tmp_path / "other.txt"
        path.write_bytes(content)
        with pytest.raises(InputError, match="no start-up lines") as caught:
            read_log(path)
        assert caught.value.file == str(path)
    with pytest.raises(InputError, match="is a folder"):
        read_log(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "absent.log")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(V1.encode())[:200])
    with pytest.raises(InputError, match="cannot be read"):
        read_log(cut)


def test_prefixes_are_taken_off_and_nothing_else() -> None:
    assert (
        clean_text("INFO 01-01 00:00:00 worker.py:1] # GPU blocks: 5")
        == "INFO 01-01 00:00:00 worker.py:1] # GPU blocks: 5"
    )
    assert clean_text('{"not": "a log line"}') == '{"not": "a log line"}'
    assert clean_text("{broken json}") == "{broken json}"
    assert clean_text('["a list"]') == '["a list"]'


BANNER = """
(APIServer pid=46) INFO 02-27 20:31:36 [utils.py:287]        █     █     █▄   ▄█
(APIServer pid=46) INFO 02-27 20:31:36 [utils.py:287]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.16.0
(APIServer pid=46) INFO 02-27 20:31:36 [utils.py:287]   █▄█▀ █     █     █     █  model   org/seventy-b-awq
(APIServer pid=46) INFO 02-27 20:31:36 [utils.py:223] non-default args: {'model_tag': 'org/seventy-b-awq', \
'block_size': 128, 'async_scheduling': False, 'tensor_parallel_size': 2}
(EngineCore_DP0 pid=9) INFO 02-27 20:33:00 [kv_cache_utils.py:829] Overriding num_gpu_blocks=0 with \
num_gpu_blocks_override=512
(Worker_TP0 pid=10) WARNING 02-27 20:33:01 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the \
PyTorch-native implementation of top-p & top-k sampling.
(Worker_TP0 pid=10) WARNING 02-27 20:33:01 [fused_moe.py:1071] Using default MoE config. Config file not found at \
/x/configs/E=256,N=512,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json
(Worker_TP0 pid=10) INFO 02-27 20:33:05 [gpu_worker.py:373] Available KV cache memory: 20.26 GiB
(Worker_TP1 pid=11) INFO 02-27 20:33:05 [gpu_worker.py:373] Available KV cache memory: 20.16 GiB
(EngineCore_DP0 pid=9) INFO 02-27 20:33:05 [kv_cache_utils.py:1307] GPU KV cache size: 132,784 tokens
(EngineCore_DP0 pid=9) INFO 02-27 20:33:05 [kv_cache_utils.py:1312] Maximum concurrency for 8,192 tokens per request: \
16.21x
(EngineCore_DP0 pid=9) INFO 02-27 20:33:05 [kv_cache_utils.py:1307] GPU KV cache size: 132,128 tokens
(EngineCore_DP0 pid=9) INFO 02-27 20:33:05 [kv_cache_utils.py:1312] Maximum concurrency for 8,192 tokens per request: \
16.13x
(EngineCore_DP0 pid=9) INFO 02-27 20:33:05 [kv_cache_utils.py:1307] GPU KV cache size: 133,008 tokens
"""


def test_the_banner_the_card_and_the_smallest_rank() -> None:
    """0.16's banner; 512 blocks that graphs were tried with; ranks whose capacity the core prints without a name."""
    (start,) = starts_of(BANNER)
    assert (start.version, start.model, start.gpu) == ("0.16.0", "org/seventy-b-awq", "NVIDIA_L40S")
    assert (start.asked_block_tokens, start.async_scheduling) == (128, False)
    assert (start.blocks, start.kv_bytes) == (None, gib(20.16))
    assert (start.kv_tokens, start.concurrency) == (132128, 16.13)
    said = {found.line: found.reason for found in misleading_lines(start)}
    assert any("before there was a pool" in reason for reason in said.values())
    assert any("the smallest's, 132,128 tokens" in reason for reason in said.values())


OTHER_SUMMARIES = [
    pytest.param(
        """
INFO 04-28 04:07:51 model_runner.py:1077] Loading model weights took 2.0512 GB
INFO 04-28 04:07:51 worker.py:232] Memory profiling results: total_gpu_memory=139.80GiB \
initial_memory_usage=2.71GiB peak_torch_memory=2.38GiB memory_usage_post_profile=2.81GiB non_torch_memory=0.73GiB \
kv_cache_size=122.71GiB gpu_memory_utilization=0.90
INFO 04-28 04:07:52 gpu_executor.py:113] # GPU blocks: 365549, # CPU blocks: 11915
""",
        {"total_bytes": 139.80, "activation_bytes": 2.38 - 2.0512, "non_torch_bytes": 0.73, "kv_bytes": 122.71},
        id="0.6.4",
    ),
    pytest.param(
        """
(EngineCore pid=7) INFO [gpu_worker.py:391] Free memory on device (78.66/79.19 GiB) on startup. Desired GPU memory \
utilization is (0.9, 71.27 GiB). Actual usage is 14.08 GiB for weight, 1.97 GiB for peak activation, 0.07 GiB for \
non-torch memory, and 0.67 GiB for CUDAGraph memory. Current kv cache memory in use is 59212694937 bytes.
""",
        {"weight_bytes": 14.08, "kv_bytes": 59212694937 / GIB, "graph_bytes": 0.67},
        id="0.10.2",
    ),
    pytest.param(
        """
(EngineCore pid=7) DEBUG [gpu_worker.py:9] Memory profiling takes 1.2 seconds. Total non KV cache memory: 17.50GiB; \
torch peak memory increase: 1.20GiB; total consumed (from mem_get_info): 16.00GiB; weights memory: 15.30GiB.
""",
        {"activation_bytes": 1.20, "consumed_bytes": 16.00, "weight_bytes": 15.30},
        id="0.28-debug",
    ),
    pytest.param(
        """
(EngineCore pid=7) INFO [worker.py:546] Free memory on device (60.89/61.27 GiB) on startup. Desired GPU memory \
utilization is (0.92, 56.37 GiB). Actual usage: 1.14 GiB for weights, 0.22 GiB for peak activation, 0.03 GiB for \
non-torch memory, 0.09 GiB for NPU graph memory. Replace gpu_memory_utilization with `--kv-cache-memory=1` (54.75 \
GiB). Current KV cache memory: 54.98 GiB.
""",
        {"weight_bytes": 1.14, "activation_bytes": 0.22, "graph_bytes": 0.09, "kv_bytes": 54.98, "total_bytes": 61.27},
        id="ascend",
    ),
    pytest.param(
        """
INFO  Free memory on device (22.6/24.0 GiB) on startup.
INFO  Desired GPU memory utilization is (0.7, 16.8 GiB).
INFO  Actual usage is 10.7 GiB for consumed memory (weights + non-torch), 1.54 GiB for peak activation, and 0.54 GiB \
for CUDAGraph memory.
""",
        {"free_before_bytes": 22.6, "total_bytes": 24.0, "requested_bytes": 16.8, "consumed_bytes": 10.7},
        id="one-sentence-a-line",
    ),
]


@pytest.mark.parametrize(("text", "expected"), OTHER_SUMMARIES)
def test_summaries_of_other_releases(text: str, expected: dict[str, float]) -> None:
    (start,) = starts_of(text.replace("\\\n", ""))
    for name, amount in expected.items():
        assert abs(getattr(start, name) - gib(amount)) <= 2, name


def test_blocks_by_the_platforms_names() -> None:
    """V0 names the device: "# CUDA blocks", "# cuda blocks"; Unsloth names the card above it."""
    (start,) = starts_of(
        """
   \\\\   /|    Tesla T4. Num GPUs = 1. Max memory: 14.563 GB. Platform: Linux.
INFO 05-30 06:39:59 llm_engine.py:234] Initializing a V0 LLM engine (v0.7.2) with config: model='m', max_seq_len=32768
INFO 05-30 06:40:49 model_runner.py:1115] Loading model weights took 2.8884 GB
INFO 05-30 06:40:55 executor_base.py:110] # CUDA blocks: 5517, # CPU blocks: 9362
"""
    )
    assert (start.blocks, start.gpu, start.total_bytes) == (5517, "Tesla T4", gib(14.563))


def test_a_second_data_parallel_engine_is_no_second_start() -> None:
    text = "".join(
        f"(EngineCore_DP{rank} pid={rank}) INFO Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
        f"data_parallel_size=2\n(EngineCore_DP{rank} pid={rank}) INFO Available KV cache memory: {9 - rank}.00 GiB\n"
        for rank in range(2)
    )
    (start,) = starts_of(text)
    assert (start.kv_bytes, start.data_parallel) == (gib(8), 2)
    assert len(starts_of(text + text)) == 2


PREFIXED = [
    "2026-05-14 12:43:20.134 | (EngineCore pid=219) INFO Available KV cache memory: 4.58 GiB",
    "авг 18 14:15:02 llm python3[28145]: (Worker_TP0 pid=28145) INFO Available KV cache memory: 4.58 GiB",
    "[1;36m(VllmWorker rank=1 pid=219)[0;0m INFO Available KV cache memory: 4.58 GiB\r",
    '{"textPayload": "INFO Available KV cache memory: 4.58 GiB", "severity": "INFO"}',
    "67:(EngineCore pid=492078) INFO Available KV cache memory: 4.58 GiB",
]


@pytest.mark.parametrize("line", PREFIXED)
def test_more_prefixes(line: str) -> None:
    (start,) = starts_of(line)
    assert start.kv_bytes == gib(4.58)
    (clean,) = clean_lines(io.BytesIO(line.encode()))
    assert not clean.text.startswith(("2026", "авг", "[1;36m", "{"))


OFFLINE = """
INFO 01-16 14:19:51 [utils.py:253] non-default args: {'max_model_len': 2048, 'gpu_memory_utilization': 0.95, \
'model': 'org/small'}
INFO 01-16 14:20:00 [model.py:1661] Using max model len 2048
INFO 01-16 14:20:00 [scheduler.py:230] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=9) INFO 01-16 14:20:12 [core.py:93] Initializing a V1 LLM engine (v0.13.0) with config: \
model='org/small', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1
(EngineCore_DP0 pid=9) INFO 01-16 14:20:17 [gpu_model_runner.py:3659] Model loading took 1.9148 GiB memory and 1 seconds
(EngineCore_DP0 pid=9) INFO 01-16 14:20:25 [gpu_worker.py:375] Available KV cache memory: 25.39 GiB
(EngineCore_DP0 pid=9) INFO 01-16 14:20:25 [kv_cache_utils.py:1291] GPU KV cache size: 950,864 tokens
"""


def test_settings_before_the_first_marker_belong_to_the_start() -> None:
    """VLLM's offline API (``LLM(…)``) prints its arguments before the line that begins a start, each time."""
    smaller = OFFLINE.replace("0.95", "0.5").replace("=8192", "=2048").replace("25.39", "12.00")
    first, second = starts_of(OFFLINE + smaller)
    assert (first.memory_utilization, first.max_num_batched_tokens, first.kv_bytes) == (0.95, 8192, gib(25.39))
    assert (second.memory_utilization, second.max_num_batched_tokens, second.kv_bytes) == (0.5, 2048, gib(12))
    assert (first.first_line, first.last_line, second.first_line) == (2, 8, 10)
    # without a second marker they are one more print of the same start's
    (alone,) = starts_of(OFFLINE + OFFLINE.splitlines()[2] + "\n")
    assert (alone.max_model_len, alone.last_line) == (2048, 9)


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        # 0.17.1 and later, and 0.13 to 0.17.0: the end of the last range
        ("'compile_ranges_endpoints': [512, 2048], 'x': [1]", {"max_num_batched_tokens": 2048}),
        ("'compile_ranges_split_points': [8192]", {"max_num_batched_tokens": 8192}),
        ("'x': 1}, 'performance_mode': 'throughput'", {"performance_mode": "throughput"}),
    ],
)
def test_settings_of_the_engine_s_config(line: str, figures: dict[str, object]) -> None:
    engine = (
        f"INFO core.py:1] Initializing a V1 LLM engine (v0.22.1) with config: model='m', compilation_config={{{line}}}"
    )
    (start,) = starts_of(engine)
    assert {name: getattr(start, name) for name in figures} == figures


def test_lines_of_excerpts_without_a_head() -> None:
    """Wrapped by a terminal, or without the lines that name the engine."""
    wrapped = "   The current --gpu-memory-utilization=0.8000 is equivalent to\n--gpu-memory-utilization=0.76 without"
    loading = (
        "INFO 1 gpu_model_runner.py:1] Starting to load model /m/org/small...\nAvailable KV cache memory: 1.00 GiB\n"
    )
    (start,) = starts_of(loading + loading.replace("small", "draft") + wrapped)
    assert (start.model, start.memory_utilization) == ("/m/org/small", 0.8)
    (llama,) = starts_of(
        "llama_kv_cache: size = 416.00 MiB ( 32768 cells, 13 layers, 1/1 seqs), "
        "K (f16): 208.00 MiB, V (f16): 208.00 MiB\n"
        "llama_kv_cache: size =  97.50 MiB (  2560 cells, 39 layers, 1/1 seqs), "
        "K (f16):  48.75 MiB, V (f16):  48.75 MiB\n"
    )
    assert (llama.engine, llama.kv_bytes, llama.kv_dtype) == ("llama.cpp", round(513.5 * MIB), "f16")
    assert llama.kv_tokens == 32768


def test_a_v0_log_without_a_release_is_of_the_last_that_began_it_by_default() -> None:
    (start,) = starts_of("\n".join(line for line in V0.splitlines() if "0.7.3" not in line))
    assert start.version == "0.7.3"
    assert starts_of(V0.replace("0.7.3", "0.6.6"))[0].version == "0.6.6"
