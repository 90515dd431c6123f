"""How each class slides where a config does not say it layer by layer: one table from family to rule."""

from collections.abc import Mapping
from dataclasses import dataclass

PERIOD_NAMES = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
"""Keys that say how many layers make a period."""


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """The habits of one class.

    ``switched``: slides only where ``use_sliding_window`` is true, which it is not by default. ``from_layer``: slides
    from layer ``max_window_layers`` on, this one where the key is absent. ``period``: one layer of so many is full, the
    last one, or the first with ``full_first``; with ``counted_back``, periods are counted from the last layer of the
    model. ``ends_full``: the last layer is full, whatever a list says. ``full_unless_listed``: all layers are full
    unless ``layer_types`` says otherwise. ``one_window``: the class gives every layer the same window, so with a list
    that mixes kinds all layers keep everything. ``extra_tokens`` are kept beyond the window that the file says.

    Sources: ``layer_types`` as the config classes of transformers 5.20 build it, which vLLM 0.33's model classes read;
    for ``one_window`` and ``extra_tokens``, those model classes.
    """

    switched: bool = False
    from_layer: int | None = None
    period: int | None = None
    full_first: bool = False
    counted_back: bool = False
    ends_full: bool = False
    full_unless_listed: bool = False
    one_window: bool = False
    extra_tokens: int = 0


NO_RULE = WindowRule()
_ONE_WINDOW = (
    "bailing_moe", "chatglm", "clip_text_model", "cohere", "deepseek", "ernie4_5_moe", "ernie4_5_vl_moe_text",
    "exaone", "falcon", "gemma", "glm4", "glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_ocr_text", "gpt2", "gptj",
    "hy_v3", "hyperclovax", "internlm2", "k2_horizon", "mimo", "minicpm", "minimax_m2", "mixtral", "molmo",
    "molmo2_text", "nemotron", "olmoe", "opt", "orion", "pangu", "param2moe", "phimoe", "qwen3_vl_text", "sarvam",
    "solar", "stablelm", "step1", "step3_text",
)  # fmt: skip

WINDOW_RULES: Mapping[str, WindowRule] = {
    **dict.fromkeys(_ONE_WINDOW, WindowRule(one_window=True)),
    "afmoe": WindowRule(period=4),
    "cohere2": WindowRule(period=4, extra_tokens=1),
    "cohere2_moe": WindowRule(period=4, extra_tokens=1),
    "cwm": WindowRule(period=4, full_first=True),
    "diffusion_gemma_text": WindowRule(period=6, ends_full=True),
    "dots1": WindowRule(from_layer=62),
    "exaone4": WindowRule(period=4),
    "exaone_moe": WindowRule(period=4),
    "gemma2": WindowRule(period=2),
    "gemma3_text": WindowRule(period=6),
    "gemma3n_text": WindowRule(period=5),
    "gemma4_text": WindowRule(period=6, ends_full=True),
    "gemma4_unified_text": WindowRule(period=6, ends_full=True),
    "gpt_oss": WindowRule(period=2),
    "granite_swa": WindowRule(period=4, full_first=True),
    "granitemoe_swa": WindowRule(period=4, full_first=True),
    "kolibri1": WindowRule(period=5),
    "laguna": WindowRule(full_unless_listed=True),
    "mellum": WindowRule(full_unless_listed=True),
    "muse_glimmer_text": WindowRule(period=4, counted_back=True),
    "olmo3": WindowRule(period=4),
    "qwen2": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen2_5_omni_text": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen2_5_vl_text": WindowRule(switched=True, from_layer=80, one_window=True),
    # its config class mixes kinds where none are listed, which its model class does not read
    "qwen2_moe": WindowRule(switched=True, full_unless_listed=True, one_window=True),
    "qwen2_vl_text": WindowRule(switched=True, from_layer=80, one_window=True),
    "qwen3": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen3_moe": WindowRule(switched=True, one_window=True),
    "qwen3_omni_moe_text": WindowRule(switched=True, one_window=True),
    "qwen3_vl_moe_text": WindowRule(switched=True, one_window=True),
    "smollm3": WindowRule(switched=True),
    "step3p5": WindowRule(full_unless_listed=True),
    "vaultgemma": WindowRule(period=2),
}
