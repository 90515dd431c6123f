"""SGLang's sparse MLA: bytes of a token by hand, by GPU and release; pages; layers that share an index."""

from dataclasses import replace

import pytest

from kvplan.engines.sglang.classes import Release
from kvplan.engines.sglang.rules import kv_types
from kvplan.engines.sglang.sparse import sparse_page, with_index_keys
from kvplan.errors import InputError
from kvplan.layers import IndexKeys, IndexTail, KdaState, LatentAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB
from tests.test_engines_others import LATENT, model_of, plan_of

HOPPER, DATACENTRE, WORKSTATION = (9, 0), (10, 0), (12, 0)
INDEX = IndexKeys(bytes_per_entry=132)
PLAIN = replace(model_of(LATENT, LATENT), layers=((LATENT, INDEX),) * 61, architecture="DeepseekV32ForCausalLM")
SHARING = replace(PLAIN, layers=((LATENT, INDEX), (LATENT,)) * 39, architecture="GlmMoeDsaForCausalLM")
BARE = LatentAttention(latent_dim=512, rope_dim=0)
POOLED = (BARE, IndexKeys(bytes_per_entry=132, tokens_per_entry=4), IndexTail(tokens=4, values_per_token=256))
FLASH = replace(
    PLAIN,
    layers=((KdaState(heads=64, dim=128, conv_kernel=4),), POOLED),
    architecture="Glm5NextForConditionalGeneration",
)


@pytest.mark.parametrize(
    ("model", "word", "capability", "release", "latent_bytes"),
    [
        (PLAIN, "auto", HOPPER, None, 1152),
        (PLAIN, "fp8", HOPPER, None, 656),
        (PLAIN, "auto", DATACENTRE, None, 576),
        (PLAIN, "auto", DATACENTRE, (0, 5, 9), 656),
        (PLAIN, "auto", WORKSTATION, None, 576),
        (SHARING, "auto", WORKSTATION, None, 656),
        (FLASH, "fp8", HOPPER, None, 528),
        (FLASH, "auto", DATACENTRE, None, 512),
    ],
)
def test_eight_bit_latents_have_scales_where_the_kernels_read_them(
    model: ModelSpec, word: str, capability: tuple[int, int], release: Release | None, latent_bytes: int
) -> None:
    latent = next(layer for kept in model.layers for layer in kept if isinstance(layer, LatentAttention))
    assert latent.growing_bytes_per_token(kv_types(model, word, capability, release)) == latent_bytes


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="bfloat16 or fp8_e4m3"):
        kv_types(PLAIN, "nvfp4")


def test_older_releases_allocate_the_index_of_every_layer() -> None:
    layers = [layer for kept in SHARING.layers for layer in kept]
    assert sum(layer == INDEX for layer in with_index_keys(layers, None)) == 39
    assert sum(layer == INDEX for layer in with_index_keys(layers, (0, 5, 16))) == 78
    newest, older = (plan_of(each, SHARING, kv_memory_bytes=10 * GIB) for each in ("sglang", "sglang@0.5.16"))
    assert newest.layout.bytes_per_block == 64 * (78 * 1152 + 39 * 132)
    assert older.layout.bytes_per_block == 64 * 78 * (1152 + 132)


def test_pages_hold_64_entries_and_pooled_keys_a_quarter() -> None:
    assert sparse_page(PLAIN) == 64
    plan = plan_of("sglang", FLASH, kv_memory_bytes=10 * GIB)
    assert plan.layout.block_tokens == 256
    assert plan.layout.bytes_per_block == 256 * (1024 + 33)
    assert plan.layout.groups[0].layers == 1


def test_a_draft_beside_sparse_latents_has_an_index_of_its_own() -> None:
    model = replace(SHARING, next_token_layers=((LATENT, INDEX),))
    plan = plan_of("sglang", model, kv_memory_bytes=10 * GIB, speculative_tokens=3)
    assert plan.layout.bytes_per_block == 64 * (79 * 1152 + 40 * 132)
