"""What one layer keeps for one sequence: a frozen dataclass per kind, each stating its own bytes.

A sequence is priced by ``bytes_for(tokens)``: some layers grow with every token, some stop at a window, some hold a
fixed amount. No layer knows an engine or a page.
"""

from kvplan.layers.attention import (
    ChunkedAttention,
    CompressedKv,
    CompressedWindow,
    CompressorState,
    CrossAttention,
    FullAttention,
    HeadLayer,
    IndexKeys,
    IndexTail,
    LatentAttention,
    SharedKv,
    SlidingAttention,
)
from kvplan.layers.base import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FP8,
    MXFP8,
    NVFP4,
    KvTypes,
    Layer,
    StoredType,
    share,
)
from kvplan.layers.recurrent import (
    GatedDeltaState,
    KdaState,
    LightningState,
    Mamba1State,
    Mamba2State,
    NgramConvState,
    RecurrentLayer,
    RgLruState,
    RwkvState,
    ShortConvState,
)

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FP8",
    "MXFP8",
    "NVFP4",
    "ChunkedAttention",
    "CompressedKv",
    "CompressedWindow",
    "CompressorState",
    "CrossAttention",
    "FullAttention",
    "GatedDeltaState",
    "HeadLayer",
    "IndexKeys",
    "IndexTail",
    "KdaState",
    "KvTypes",
    "LatentAttention",
    "Layer",
    "LightningState",
    "Mamba1State",
    "Mamba2State",
    "NgramConvState",
    "RecurrentLayer",
    "RgLruState",
    "RwkvState",
    "SharedKv",
    "ShortConvState",
    "SlidingAttention",
    "StoredType",
    "share",
]
