"""The catalogues: every file loads, is written in the one canonical form, has its source, and is found by its names."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from kvplan.api import deploy, fit, read_model
from kvplan.catalogue import TrafficRow, listing
from kvplan.errors import InputError
from kvplan.model import Source
from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.profiles.loader import (
    ALIASES_FILE,
    alias_table,
    list_names,
    load_client,
    load_gpu,
    load_model_facts,
    nearest_names,
    plain_name,
    profile_folders,
    traffic_path,
)
from kvplan.profiles.reader import read_profile
from tests.golden_files import check_file
from tests.profile_text import KINDS, profile_schema, schema_text, traffic_schema, write_profile

FOLDER = profile_folders()[-1]
FILES = [(sort, path) for sort in KINDS for path in sorted((FOLDER / sort).glob("*.yaml"))]


@pytest.mark.parametrize(("sort", "path"), FILES, ids=[f"{sort}/{path.stem}" for sort, path in FILES])
def test_a_profile_is_canonical_and_has_its_source(sort: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    profile: GpuProfile | ClientProfile | BundledModel = read_profile(KINDS[sort], text, str(path))
    assert write_profile(profile, sort) == text
    assert profile.sources
    assert date(2024, 1, 1) <= date.fromisoformat(profile.checked) <= date(2100, 1, 1)
    assert len(text) < 40_000


@pytest.mark.parametrize("sort", KINDS)
def test_the_schema_of_a_catalogue_is_the_one_its_dataclass_gives(sort: str) -> None:
    check_file(FOLDER / "schema" / f"{sort}.json", schema_text(profile_schema(sort)))


def test_the_schema_of_a_traffic_file_is_the_one_its_sections_give() -> None:
    check_file(FOLDER / "schema" / "traffic.json", schema_text(traffic_schema(), sort_keys=True))


def test_the_table_of_aliases_is_current() -> None:
    table = alias_table(FOLDER, "gpus")
    check_file(FOLDER / "gpus" / ALIASES_FILE, json.dumps(table, indent=0, sort_keys=True) + "\n")


def test_the_catalogues_are_as_large_as_promised() -> None:
    assert len(list_names("gpus")) >= 40
    assert len(list_names("models")) >= 150
    assert len(list_names("clients")) >= 12


def test_a_bundled_mix_is_listed_with_its_whole_first_sentence() -> None:
    summaries = {row.name: row.summary for row in listing("traffic").rows if isinstance(row, TrafficRow)}
    assert all(one.endswith(".") and ". " not in one for one in summaries.values())
    assert summaries["chat"].endswith("one answer in 270 that never ends by itself."), "it goes on in the next line"


def test_every_name_and_alias_names_one_gpu() -> None:
    seen: dict[str, str] = {}
    for name in list_names("gpus"):
        profile = load_gpu(name)
        for alias in (profile.name, *profile.aliases):
            assert plain_name(alias) == alias
            assert seen.setdefault(alias, name) == name
            assert load_gpu(alias) == profile


@pytest.mark.parametrize("name", list_names("gpus"))
def test_a_gpu_is_one_that_could_be_built(name: str) -> None:
    profile = load_gpu(name)
    largest, slowest, weakest = (400, 60, 2) if profile.vendor == "apple" else (300, 100, 10)
    assert 4 * 2**30 <= profile.memory_bytes <= largest * 2**30
    assert slowest * 10**9 <= profile.bandwidth_bytes_per_s <= 10 * 10**12
    assert profile.flops_per_s["float16"] >= weakest * 10**12
    assert (profile.compute_capability is None) == (profile.vendor != "nvidia")
    if profile.compute_capability is not None and profile.compute_capability < (8, 0):
        assert "bfloat16" not in profile.flops_per_s  # no tensor cores for it before Ampere
    if "fp8" in profile.flops_per_s:
        assert profile.flops_per_s["fp8"] == pytest.approx(2 * profile.flops_per_s["float16"], rel=0.03)
    box = re.search(r"-(\d+)gb", name)
    if box and "mig" not in name:  # the driver reports less than the box says, in binary units
        assert 0.85 <= profile.memory_bytes / (int(box[1]) * 2**30) <= 1.0


@pytest.mark.parametrize(
    ("alias", "name", "gib"),
    [  # the figures: total memory in engines' start-up logs
        ("h100", "h100-80gb-sxm", 79.18),
        ("a100", "a100-80gb-sxm", 79.25),
        ("a100-40gb", "a100-40gb-sxm", 39.5),
        ("NVIDIA L40S", "l40s-48gb", 44.39),
        ("l4", "l4-24gb", 22.16),
        ("Tesla T4", "t4-16gb", 14.74),
        ("NVIDIA GeForce RTX 3090", "rtx-3090-24gb", 23.58),
        ("4090", "rtx-4090-24gb", 23.63),
        ("h200", "h200-141gb-sxm", 139.8),
        ("gb10", "gb10", 121.69),
        ("MI300X", "mi300x-192gb", 191.98),
    ],
)
def test_memory_is_what_the_driver_reports(alias: str, name: str, gib: float) -> None:
    profile = load_gpu(alias)
    assert profile.name == name
    assert profile.memory_bytes == int(gib * 2**30 + 1e-3)


def test_an_unknown_gpu_lists_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_gpu("h1000")
    assert caught.value.message == "'h1000' is not a known GPU"
    assert caught.value.hint is not None
    assert "h100-80gb-sxm" in caught.value.hint
    assert nearest_names("gpus", "rtx 4090")[0] == "rtx-4090-24gb"


@pytest.mark.parametrize("name", ["../gpus/gb10", "", "..", "a/b"])
def test_a_name_is_not_a_path(name: str) -> None:
    with pytest.raises(InputError):
        load_client(name)
    assert traffic_path(name) is None


def test_a_client_says_what_it_does_when_refused() -> None:
    client = load_client("openai-python")
    assert (client.tries, client.longest_honoured_s, client.when_longer) == (3, 120.0, "give_up")
    assert load_client("naive").tries is None


@pytest.mark.parametrize("model_id", list_names("models"))
def test_every_bundled_model_can_be_planned(model_id: str) -> None:
    from kvplan.hf_config import read_config

    facts = load_model_facts(model_id)
    assert facts is not None
    assert facts.id == model_id
    spec = read_config(
        facts.config,
        model_id=facts.id,
        source=Source(name="bundled facts", checked=facts.checked),
        quantization=facts.quantization,
        parameters=facts.parameters,
        weight_bytes=facts.weight_bytes,
    )
    assert spec.layers
    counted = sum(part.parameters for part in spec.weights.parts)
    if facts.parameters is not None and counted:
        # The published total also holds what is not a text model's: vision towers, next-token layers, an untied copy.
        assert 0.995 * counted <= facts.parameters <= 1.14 * counted


def test_a_model_is_found_in_any_case_and_none_under_a_wrong_name() -> None:
    found = load_model_facts("meta-llama/llama-3.1-8b-instruct")
    assert found is not None
    assert found.id == "meta-llama/Llama-3.1-8B-Instruct"
    assert load_model_facts("meta-llama/Llama-9") is None


GPU = """name: mine
vendor: nvidia
family: hopper
memory: 10 GiB
bandwidth: 3.35 TB/s
flops: {float16: 1 PFLOP/s}
sources: [me]
checked: 2026-11-30
aliases: [h100]
"""


def write_gpu(folder: Path, text: str, name: str = "mine") -> Path:
    (folder / "gpus").mkdir(exist_ok=True)
    path = folder / "gpus" / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_folder_of_the_user_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gpu(tmp_path, GPU)
    assert load_gpu("mine", extra_folder=tmp_path) == GpuProfile(
        name="mine",
        vendor="nvidia",
        family="hopper",
        memory_bytes=10 * 2**30,
        bandwidth_bytes_per_s=3_350 * 10**9,
        flops_per_s={"float16": 10**15},
        sources=("me",),
        checked="2026-11-30",
        aliases=("h100",),
    )
    assert load_gpu("h100").name == "h100-80gb-sxm"
    assert load_gpu("h100", extra_folder=tmp_path).name == "mine"
    monkeypatch.setenv("KVPLAN_PROFILES", str(tmp_path))
    assert load_gpu("h100").name == "mine"
    assert "mine" in list_names("gpus")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        load_gpu("h100", extra_folder=tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "line", "key", "says"),
    [
        (("memory:", "memry:"), 4, "memry", "unknown key 'memry'"),
        (("10 GiB", "10"), 4, "memory", "memory: 10 has no unit"),
        (("10 GiB", "10 GiBB"), 4, "memory", "memory: '10 GiBB' is not an amount of memory"),
        (("10 GiB", "-10 GiB"), 4, "memory", "memory: '-10 GiB' is not an amount of memory"),
        (("3.35 TB/s", "3.35 TB"), 5, "bandwidth", "bandwidth: '3.35 TB' has no unit that is accepted here"),
        (("[me]", "me"), 7, "sources", "sources: 'me' is not a list"),
        (("hopper", "[1]"), 3, "family", "family: [1] is not text"),
        (("hopper", "hopper\nfamily: ada"), 4, None, "not valid YAML: the key 'family' appears twice"),
        (("name: mine", "name: other"), None, "name", "name 'other' differs from the file's name"),
        (("name: mine\n", ""), None, "name", "the key 'name' is missing"),
        (("name: mine", "\tname: mine"), 1, None, "not valid YAML"),
        (("{float16: 1 PFLOP/s}", "none"), 6, "flops", "flops: 'none' is not a mapping"),
    ],
)
def test_a_wrong_file_names_line_and_key(
    tmp_path: Path, change: tuple[str, str], line: int | None, key: str | None, says: str
) -> None:
    path = write_gpu(tmp_path, GPU.replace(*change, 1))
    with pytest.raises(InputError) as caught:
        load_gpu("mine", extra_folder=tmp_path)
    assert caught.value.message.startswith(says)
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), line, key)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "text", "# only a comment\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    write_gpu(tmp_path, text)
    with pytest.raises(InputError, match="the file has no keys and values"):
        load_gpu("mine", extra_folder=tmp_path)


def test_a_value_outside_the_choices_is_refused() -> None:
    text = "name: a\nsources: [b]\nchecked: 2026-11-30\ntries: 1\nhonours_retry_after: maybe\n"
    with pytest.raises(InputError, match="honours_retry_after: 'maybe' is not one of 'exact', 'whole_seconds', 'no'"):
        read_profile(ClientProfile, text, "a.yaml")


def test_a_model_is_written_and_read_back() -> None:
    model = BundledModel(
        id="org/name",
        sources=("https://example.org/a page",),
        checked="2026-11-30",
        config={"architectures": ["A"], "sliding_window": None, "rope_scaling": {"factor": 8.0}, "layers": ["a"] * 3},
        quantization={"quantization": {"exclude_modules": ["lm_head", "a: b"]}},
        parameters=1,
        weight_bytes=2**31,
    )
    text = write_profile(model, "models")
    assert read_profile(BundledModel, text, "x") == model
    assert "weight: 2 GiB\n" in text


@pytest.mark.parametrize(
    ("name", "mebibytes"),
    [
        # 24,576 − 1/16 − 16 − 1/16 for error correction − 128 / 2 that fit on the card
        ("l40s-24q", 21_424),
        ("NVIDIA L40S-48Q", 49_152 - 3072 - 16 - 3072 - 128),
        ("a10-24c", 24_576 - 1536 - 16 - 1536 - 128),
        # HBM: error correction takes nothing; A100 is the 40 GB card there, A100D the one with 80
        ("A100-20C", 20_480 - 1280 - 16 - 64),
        ("a100d-80c", 81_920 - 5120 - 16 - 128),
        ("h100-40c", 40_960 - 2560 - 16 - 64),
        # Turing keeps some more for compression
        ("t4-16q", 16_384 - 1024 - 16 - 1024 - 128 - 28),
        # what Metal recommends, as llama.cpp prints it
        ("m1-16gb", 10_922),
        ("Apple M1 Max 32GB", 21_845),
        ("m2-max-96gb", 73_728),
        ("m3-max-128gb", 98_304),
        ("m3-ultra-512gb", 393_216),
    ],
)
def test_a_slice_has_its_share_of_the_memory(name: str, mebibytes: int) -> None:
    """vGPUs: NVIDIA AI Enterprise, max-reserved-fb. Apple: github.com/ggml-org/llama.cpp/pull/2011, issues/3213."""
    assert load_gpu(name).memory_bytes // 2**20 == mebibytes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("l40s-96q", "larger than a l40s-48gb"),
        ("m1-64gb", "no m1 has 64 GB"),
        ("m3-max-4gb", "no m3-max has 4 GB"),
        ("k80-12q", "'k80-12q' is not a known GPU"),
        ("m9-ultra-128gb", "'m9-ultra-128gb' is not a known GPU"),
        ("mi300x-24q", "'mi300x-24q' is not a known GPU"),
        ("4090-12q", "'4090-12q' is not a known GPU"),
        ("l40s-24b", "'l40s-24b' is not a known GPU"),
    ],
)
def test_an_impossible_slice_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_gpu(name)


def test_engines_run_on_what_they_were_made_for() -> None:
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    on_a_mac = deploy("m3-max-64gb", engine="llama.cpp", max_model_len=8192)
    assert fit(model, on_a_mac).verdict == "fits"
    for engine, gpu in (("vllm", "m3-max-64gb"), ("sglang", "m4"), ("tensorrt-llm", "mi300x")):
        with pytest.raises(InputError, match=f"{engine} does not run on"):
            fit(model, deploy(gpu, engine=engine, max_model_len=8192))


def test_a_slice_is_found_in_the_list_of_gpus() -> None:
    (row,) = listing("gpus", "L40S-24Q").rows
    assert row == load_gpu("l40s-24q")
    assert listing("gpus", "l40s-24x").rows == ()


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb-mig-3g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 2g.20gb", "h100-80gb-mig-2g.20gb"),
        ("NVIDIA A100 80GB PCIe MIG 1g.10gb", "a100-80gb-mig-1g.10gb"),
        ("h100-mig-1g.10gb", "h100-80gb-mig-1g.10gb"),
        ("a100-mig-2g.10gb", "a100-40gb-mig-2g.10gb"),
        ("h100-mig-7g.80gb", "h100-80gb-sxm"),
        ("NVIDIA H100 NVL MIG 1g.12gb", "h100-94gb-mig-1g.12gb"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb",
            "rtx-pro-6000-server-96gb-mig-1g.24gb",
        ),
        ("GRID T4-8C", "t4-8c"),
    ],
)
def test_a_slice_answers_to_the_drivers_name(said: str, name: str) -> None:
    """``torch.cuda.get_device_name`` puts ``MIG`` and the slice behind the card; 7g is all of it."""
    assert load_gpu(said).name == name


@pytest.mark.parametrize("said", ["h100-mig-1g.12gb", "h100-80gb-mig-9g.99gb", "l4-mig-1g.5gb", "foo-mig-1g.5gb"])
def test_a_slice_that_no_card_has_is_not_known(said: str) -> None:
    with pytest.raises(InputError, match=f"{said!r} is not a known GPU"):
        load_gpu(said)
