"""A traffic file in front of a measured pool, small enough that every strategy shows its weakness."""

_TEXT = """\
deployment:
  kv_pool: {{blocks: 400, block_tokens: 16}}
  service: {{base_s: 0.01, prefill_token_s: 1.0e-5, decode_sequence_s: 1.0e-4, kv_token_s: 1.0e-7}}
  max_model_len: 2048
  max_num_seqs: 32
  max_num_batched_tokens: 512
admission: {admission}
traffic:
  duration: {duration}
  seed: 3
  classes:
    - name: chat
      rate: {rate}
      prompt_tokens: {{lognormal: {{p50: 200, p95: 600}}}}
      output_tokens: {{lognormal: {{p50: 100, p95: 400}}}}
      max_tokens: {max_tokens}
      client: openai-python
"""


def small_pool(
    *,
    admission: str = "{default_max_tokens: 256}",
    duration: str = "2m",
    rate: str = "4/s",
    max_tokens: str = "{choices: [{unset: true, share: 0.5}, {value: 512, share: 0.5}]}",
) -> str:
    """The file's text; a class of its own may follow, or limits."""
    return _TEXT.format(admission=admission, duration=duration, rate=rate, max_tokens=max_tokens)
