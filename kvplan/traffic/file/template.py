"""The commented traffic file of ``kvplan init``: it runs as it stands, and every line says what to change."""

TEMPLATE = """\
# A kvplan traffic file. It runs as it stands: kvplan simulate FILE, check FILE.
# Every key and its unit:  kvplan explain traffic

model: meta-llama/Llama-3.1-8B-Instruct   # or a folder, or a .gguf file

deployment:
  gpu: h100                  # kvplan list gpus
  tensor_parallel: 1
  replicas: 1                # engines behind a router
  engine: vllm               # or vllm@0.20
  max_model_len: 32768       # prompt + answer; shorter makes room for more
  max_num_seqs: 256
  max_num_batched_tokens: 8192
  # kv_pool: {blocks: 26569, block_tokens: 16}   # measured, as a log says
  # service:                   # a step's time, measured
  #   base_s: 0.008
  #   prefill_token_s: 2.5e-5
  #   decode_sequence_s: 4.0e-5
  #   kv_token_s: 4.0e-8

admission:
  policy: worst_case_default_cap   # what kvplan check judges
  safety_fraction: 0.95            # share of the pool that may be promised
  default_max_tokens: 1024         # given to requests that come without one
  retry_after: {estimate: drain, jitter: 0.25}

traffic:
  duration: 10m
  seed: 7
  classes:
    - name: chat
      rate: 4/s
      arrivals: poisson            # or {gamma: {cv: 2.5}}, {diurnal: …}
      prompt_tokens: {lognormal: {p50: 1020, p95: 4083}}
      output_tokens: {lognormal: {p50: 129, p95: 451}}
      # No trace records what clients ask for; most SDKs send nothing.
      max_tokens:
        choices: [{unset: true, share: 0.55}, {value: 4096, share: 0.45}]
      # n: 4                       # answers that each request asks for
      client: openai-python        # kvplan list clients: how it retries
      timeout: 600s
    # - name: replay
    #   trace: azure_conv.csv      # Azure, BurstGPT, Mooncake, Bailian, plain
    #   max_tokens: {value: 1024}

reservation_quantile: 0.95         # the prompt that prices a worst case

limits:                            # kvplan check: exit 0 when all hold, else 1
  refused_share: {max: 0.05}
  truncated_share: {max: 0.02}
  preemptions: {max: 0}
  ttft_p99_s: {max: 10}
  worst_case_reservations: {class: chat, min: 10}
"""
