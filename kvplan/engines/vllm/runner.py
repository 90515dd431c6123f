"""Which of vLLM's two model runners a release starts a model with: they keep other buffers and profile otherwise.

Source: ``VllmConfig.use_v2_model_runner`` and ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES`` of 0.24, 0.26, 0.28, 0.29, 0.31
and 0.33 (0.19: off unless asked for).
"""

FIRST_LISTED = (0, 24)
FIRST_DENSE = (0, 26)
FIRST_EVERY = (0, 29)

_DENSE_LISTED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"})
_EXPERTS_LISTED = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})


def is_second_runner(
    release: tuple[int, ...], architecture: str, *, has_experts: bool, has_states: bool, is_pooling: bool
) -> bool:
    """Whether the second runner (``Using V2 Model Runner``) is the default.

    0.24: for a few architectures; 0.26: for generating models without experts and without recurrent state, and for a
    few with experts; 0.29: for every model.

    >>> qwen = {"architecture": "Qwen2ForCausalLM", "has_experts": False, "has_states": False, "is_pooling": False}
    >>> [is_second_runner(release, **qwen) for release in ((0, 24), (0, 27, 1), (0, 33))]
    [False, True, True]
    """
    if release >= FIRST_EVERY:
        return True
    if release < FIRST_LISTED or is_pooling or has_states:
        return False
    if release < FIRST_DENSE:
        return architecture in _DENSE_LISTED | _EXPERTS_LISTED
    return not has_experts or architecture in _EXPERTS_LISTED
