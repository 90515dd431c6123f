"""The shape of a vision encoder, from the keys of published configs."""

from typing import Any

import pytest

from kvplan.hf_config.shape import encoder_shape
from kvplan.model import EncoderShape


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        # Qwen/Qwen2-VL-7B-Instruct: hidden_size is the text model's
        (
            {"model_type": "qwen2_vl", "vision_config": {"embed_dim": 1280, "hidden_size": 3584, "depth": 32}},
            EncoderShape(hidden=1280, intermediate=5120, patches_per_token=4, item_tokens=16384),
        ),
        # Qwen/Qwen2.5-VL-7B-Instruct
        (
            {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280, "intermediate_size": 3420}},
            EncoderShape(hidden=1280, intermediate=3420, patches_per_token=4, item_tokens=16384),
        ),
        # Qwen/Qwen3-VL-30B-A3B-Instruct: three more vectors a token
        (
            {
                "model_type": "qwen3_vl_moe",
                "vision_config": {
                    "hidden_size": 1152,
                    "intermediate_size": 4304,
                    "spatial_merge_size": 2,
                    "deepstack_visual_indexes": [8, 16, 24],
                },
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=4, item_tokens=16384, outputs=4),
        ),
        # google/gemma-3-4b-it: 64 × 64 patches are 256 tokens
        (
            {
                "model_type": "gemma3",
                "mm_tokens_per_image": 256,
                "vision_config": {
                    "model_type": "siglip_vision_model",
                    "hidden_size": 1152,
                    "intermediate_size": 4304,
                    "image_size": 896,
                    "patch_size": 14,
                },
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=16, item_tokens=256),
        ),
        # google/gemma-4-26B-A4B-it: pools 3 × 3; logs print 2,496 tokens of a video
        (
            {
                "model_type": "gemma4",
                "vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304},
            },
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=9, item_tokens=2496),
        ),
        # llava-hf/llava-1.5-7b-hf: 24 × 24 patches, each a token
        (
            {
                "model_type": "llava",
                "vision_config": {
                    "hidden_size": 1024,
                    "intermediate_size": 4096,
                    "image_size": 336,
                    "patch_size": 14,
                },
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=1, item_tokens=576),
        ),
        # mistralai/Mistral-Small-3.1-24B-Instruct-2503 merges 2 × 2; OpenGVLab/InternVL2-8B shuffles them
        (
            {
                "model_type": "mistral3",
                "spatial_merge_size": 2,
                "vision_config": {"hidden_size": 1024, "intermediate_size": 4096},
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=4),
        ),
        # google/gemma-3-27b-it with the class's own 256 tokens
        (
            {"model_type": "gemma3", "vision_config": {}},
            EncoderShape(hidden=1152, intermediate=4304, patches_per_token=16, item_tokens=256),
        ),
        (
            {
                "model_type": "internvl_chat",
                "downsample_ratio": 0.5,
                "vision_config": {"hidden_size": 1024, "intermediate_size": 4096},
            },
            EncoderShape(hidden=1024, intermediate=4096, patches_per_token=4),
        ),
        ({"model_type": "llama", "hidden_size": 4096}, None),
    ],
)
def test_by_family(config: dict[str, Any], shape: EncoderShape | None) -> None:
    assert encoder_shape(config) == shape
