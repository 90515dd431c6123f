"""The Hub as a client sees it: what is asked, how often, what is kept, and what each failure says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplan.errors import InputError, ModelUnavailableError
from kvplan.hub import HubUnavailableError, fetch_facts
from kvplan.hub.cache import hub_cache_folder
from kvplan.hub.fetch import HubFacts
from kvplan.model import Source
from kvplan.sources import read_model
from tests.gguf_files import gguf_bytes
from tests.hub_server import COMMIT, Fault, HubServer, Repository, only_hub, serve
from tests.test_gguf import LLAMA_8B

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 64}
BODY = json.dumps(CONFIG).encode()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub with one open model of two shards, and an empty cache."""
    with only_hub(monkeypatch, tmp_path) as server:
        server.repositories["org/open"] = Repository(
            files={"config.json": BODY},
            sizes={"model-00001-of-00002.safetensors": 1_000_000, "model-00002-of-00002.safetensors": 600_100},
            elements={"BF16": 800_000},
        )
        yield server


def paths(server: HubServer) -> list[str]:
    return [seen.path for seen in server.seen]


def failure(model_id: str = "org/open", revision: str | None = None, token: str | None = None) -> HubUnavailableError:
    with pytest.raises(HubUnavailableError) as caught:
        fetch_facts(model_id, revision=revision, token=token)
    assert caught.value.exit_code == 4
    assert isinstance(caught.value, ModelUnavailableError)
    assert caught.value.hint
    return caught.value


def test_two_requests_give_config_parameters_and_bytes(hub: HubServer) -> None:
    facts = fetch_facts("org/open")
    assert facts == HubFacts(
        config=CONFIG,
        quantization=None,
        parameters=800_000,
        weight_bytes=1_600_000,  # 800,000 × 2 B; the files are 100 B of headers longer
        source=Source(name=f"Hub at {hub.endpoint}", revision=COMMIT),
    )
    assert paths(hub) == ["/api/models/org/open", f"/org/open/resolve/{COMMIT}/config.json"]


def test_163_shards_and_a_quantization_file_cost_three_requests(hub: HubServer) -> None:
    hub.repositories["org/large"] = Repository(
        files={"config.json": BODY, "hf_quant_config.json": b'{"quantization": {"quant_algo": "FP8"}}'},
        sizes={f"model-{part:05d}-of-000163.safetensors": 4_000_000_000 for part in range(1, 164)},
    )
    facts = fetch_facts("org/large")
    assert (facts.parameters, facts.weight_bytes) == (None, 163 * 4_000_000_000)
    assert facts.quantization == {"quantization": {"quant_algo": "FP8"}}
    assert len(hub.seen) == 3
    assert not any("safetensors" in path for path in paths(hub))


def test_packed_weights_have_bytes_but_no_parameter_count(hub: HubServer) -> None:
    hub.repositories["org/packed"] = Repository(
        files={"config.json": BODY}, sizes={"model.safetensors": 5_000_500}, elements={"I32": 1_000_000, "F16": 500_000}
    )
    facts = fetch_facts("org/packed")
    assert (facts.parameters, facts.weight_bytes) == (None, 1_000_000 * 4 + 500_000 * 2)


def test_the_same_weights_in_a_second_format_are_not_counted(hub: HubServer) -> None:
    sizes = {"model.safetensors": 100, "consolidated.safetensors": 100, "pytorch_model.bin": 100, "original/a.pth": 100}
    hub.repositories["org/twice"] = Repository(files={"config.json": BODY}, sizes=sizes)
    assert fetch_facts("org/twice").weight_bytes == 100


def test_a_second_call_asks_nothing(hub: HubServer) -> None:
    first = fetch_facts("org/open")
    asked = len(hub.seen)
    second = fetch_facts("org/open")
    assert len(hub.seen) == asked
    assert second.source == Source(name="Hub cache", revision=COMMIT)
    assert (second.config, second.parameters, second.weight_bytes) == (first.config, 800_000, 1_600_000)
    assert fetch_facts("org/open", offline=True) == second


def test_a_revision_is_fetched_and_kept_apart_from_main(hub: HubServer) -> None:
    hub.repositories["org/open"].revisions = ("main", "v2", "refs/pr/1", COMMIT)
    for revision in ("v2", "refs/pr/1"):
        fetch_facts("org/open", revision=revision)
        assert hub.seen[-2].path == f"/api/models/org/open/revision/{revision}"
    asked = len(hub.seen)
    fetch_facts("org/open", revision="v2")
    assert len(hub.seen) == asked
    fetch_facts("org/open")
    assert len(hub.seen) == asked + 2


def test_a_revision_that_does_not_exist_is_named_and_main_is_not_taken(hub: HubServer) -> None:
    fetch_facts("org/open")
    error = failure(revision="no-such-branch")
    assert error.message == "org/open has no revision 'no-such-branch' (404)"
    assert not error.catalogue_may_answer


def test_the_hubs_own_cache_is_read_before_the_hub_is_asked(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "hub" / "models--org--open"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(b'{"model_type": "cached"}')
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for revision in (None, "main", COMMIT):
        facts = fetch_facts("org/open", revision=revision)
        assert (facts.config, facts.source.revision, facts.source.name) == (
            {"model_type": "cached"},
            COMMIT,
            "Hub cache",
        )
    assert hub.seen == []
    fetch_facts("org/open", revision="main", offline=True)
    error_free = fetch_facts("org/open", revision=COMMIT, offline=True)
    assert error_free.source.revision == COMMIT


def test_the_shards_of_a_cached_model_are_looked_into_once(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "hub" / "models--org--open"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_bytes(BODY)
    header = json.dumps({"a": {"dtype": "BF16", "shape": [10, 20], "data_offsets": [0, 400]}}).encode()
    (snapshot / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert (fetch_facts("org/open").parameters, fetch_facts("org/open").weight_bytes) == (200, 400)
    (snapshot / "model.safetensors").write_bytes(b"no longer looked into")
    (snapshot / "config.json").write_bytes(b'{"model_type": "edited"}')  # the config itself is read every time
    facts = fetch_facts("org/open")
    assert (facts.config, facts.parameters, facts.weight_bytes) == ({"model_type": "edited"}, 200, 400)
    assert hub.seen == []


def test_a_token_given_wins_over_the_environments(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/gated"] = Repository(files={"config.json": BODY}, gated=True, token="hf_given")
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    assert fetch_facts("org/gated", token="hf_given").config == CONFIG
    assert {seen.token for seen in hub.seen} == {"hf_given"}


def test_the_environments_token_is_sent_where_none_is_given(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/gated"] = Repository(files={"config.json": BODY}, gated=True, token="hf_environment")
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    fetch_facts("org/gated")
    assert {seen.token for seen in hub.seen} == {"hf_environment"}


def test_a_gated_model_without_a_token(hub: HubServer) -> None:
    hub.repositories["org/gated"] = Repository(files={"config.json": BODY}, gated=True, token="hf_right")
    error = failure("org/gated")
    assert error.message == "org/gated is gated, and no token was sent that has access (401)"
    hint = error.hint or ""
    assert all(way in hint for way in ("set a token (HF_TOKEN)", "hf auth login", "or give a local config.json"))
    assert error.catalogue_may_answer
    error = failure("org/gated", token="hf_other")
    assert error.message == "org/gated is gated, and the token's account has no access (403)"
    assert error.catalogue_may_answer


def test_a_private_or_unknown_model(hub: HubServer) -> None:
    error = failure("org/none")
    assert error.message == "org/none is private, gated or does not exist: the Hub asks for a token (401)"
    error = failure("org/none", token="hf_any")
    assert error.message == f"there is no model org/none at {hub.endpoint} (404)"
    assert not error.catalogue_may_answer


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (401, "Invalid credentials in Authorization header", "the Hub does not accept the token, or org/open does not"),
        (403, "", "access to org/open is forbidden (403)"),
        (500, "Internal Error", " failed (500): Internal Error"),
    ],
)
def test_a_status_and_what_is_said_of_it(hub: HubServer, status: int, said: str, message: str) -> None:
    hub.faults.append(Fault(where="/api/", status=status, headers={"X-Error-Message": said} if said else {}))
    assert message in failure(token="hf_old").message
    assert len(hub.seen) == 1


@pytest.mark.parametrize(
    ("headers", "when"),
    [
        ({"Retry-After": "17"}, "in 17 s"),
        ({"Retry-After": "Mon, 30 Nov 2026 00:00:00 GMT"}, "after Mon, 30 Nov 2026 00:00:00 GMT"),
        ({}, "in a few minutes"),
    ],
)
def test_a_rate_limit_says_when_to_come_back(hub: HubServer, headers: dict[str, str], when: str) -> None:
    hub.faults.append(Fault(where="/resolve/", status=429, headers=headers))
    error = failure()
    assert error.message == f"the Hub limits the rate of requests (429); try again {when}"
    assert len(hub.seen) == 2  # asked once, not again and again


@pytest.mark.parametrize("where", ["/api/", "/resolve/"])
def test_a_hang(hub: HubServer, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.3")
    hub.faults.append(Fault(where=where, hang=True))
    error = failure()
    assert error.message == f"the Hub at {hub.endpoint} did not answer within 0.3 s"
    assert error.catalogue_may_answer


@pytest.mark.parametrize("where", ["/api/", "/resolve/"])
def test_a_body_that_ends_early(hub: HubServer, where: str) -> None:
    hub.faults.append(Fault(where=where, body=BODY[:20], cut=True))
    error = failure()
    assert error.message.startswith(f"{hub.endpoint} sent no usable ")
    assert "the download broke off" in error.message
    hub.faults.clear()
    assert fetch_facts("org/open").config == CONFIG  # nothing of it was kept


@pytest.mark.parametrize("where", ["/api/", "/resolve/"])
@pytest.mark.parametrize("body", [b"<html>please log in</html>", b"[1]", b'"text"', BODY[:20], b""])
def test_an_answer_that_is_something_else(hub: HubServer, where: str, body: bytes) -> None:
    hub.faults.append(Fault(where=where, body=body))
    assert "sent no usable" in failure().message or "has no config.json" in failure().message


def test_a_config_without_end_is_not_read_to_its_end(hub: HubServer) -> None:
    hub.faults.append(Fault(where="/resolve/", body=b" " * (17 * 2**20)))
    assert "more than 16,777,216 bytes" in failure().message


def test_a_redirect_to_a_renamed_repository_is_followed(hub: HubServer) -> None:
    moved = {"Location": f"{hub.endpoint}/api/models/org/open"}
    hub.faults.append(Fault(where="/api/models/old/name", status=307, headers=moved))
    hub.faults.append(
        Fault(where="/old/name/resolve", status=307, headers={"Location": f"/org/open/resolve/{COMMIT}/config.json"})
    )
    assert fetch_facts("old/name").config == CONFIG


def test_a_redirect_in_a_circle_ends(hub: HubServer) -> None:
    hub.faults.append(Fault(where="/api/", status=307, headers={"Location": f"{hub.endpoint}/api/models/org/open"}))
    assert failure().message.startswith(f"the Hub at {hub.endpoint} ")


def test_a_redirect_to_another_host_does_not_take_the_token_along(hub: HubServer) -> None:
    with serve() as other:
        other.repositories = hub.repositories
        moved = {"Location": f"{other.endpoint}/org/open/resolve/{COMMIT}/config.json"}
        hub.faults.append(Fault(where="/resolve/", status=302, headers=moved))
        fetch_facts("org/open", token="hf_given")
        assert [seen.token for seen in other.seen] == [None]


def test_a_repository_of_gguf_files(hub: HubServer) -> None:
    hub.repositories["org/quants"] = Repository(files={"README.md": b""}, sizes={"model-Q4_K_M.gguf": 10})
    error = failure("org/quants")
    assert error.message == "org/quants has no config.json"
    assert error.hint is not None
    assert "name one, such as org/quants/model-Q4_K_M.gguf" in error.hint
    assert len(hub.seen) == 1


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", None])
def test_offline_and_not_cached_asks_nothing(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(HubUnavailableError) as caught:
        fetch_facts("org/open", offline=variable is None)
    assert caught.value.message == "org/open is not in the Hub's cache, and offline mode is on"
    assert caught.value.hint is not None
    assert "hf download org/open config.json" in caught.value.hint
    assert hub.seen == []


def test_nobody_listens(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:9")  # a password is never shown
    error = failure()
    assert error.message == "the Hub at http://127.0.0.1:9 cannot be reached: Connection refused"
    assert error.hint is not None
    assert "HF_ENDPOINT" in error.hint


@pytest.mark.parametrize("written", ["me:secret@hub", "http://me:secret@hub:port", "http://me:secret@"])
def test_an_endpoint_that_is_not_a_url_hides_its_password(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", written)
    with pytest.raises(InputError, match=r"^HF_ENDPOINT is '[^@]*', not a URL$") as caught:
        fetch_facts("org/open")
    assert "secret" not in caught.value.message


def test_the_five_causes_are_five_messages(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/gated"] = Repository(files={"config.json": BODY}, gated=True, token="hf_right")
    errors = [failure("org/gated"), failure("org/gated", token="hf_other"), failure("org/none", token="hf_other")]
    hub.faults.append(Fault(where="/api/", hang=True))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")
    errors.append(failure())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    errors.append(failure())
    assert len({error.message for error in errors}) == 5
    assert len({error.hint for error in errors}) == 5


def test_a_cache_folder_that_cannot_be_written_costs_no_answer(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A file where the folder would be: unwritable for root too, for whom permissions do not count.
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("HF_HOME", str(blocked))
    assert fetch_facts("org/open").config == CONFIG
    assert fetch_facts("org/open").config == CONFIG


def test_a_damaged_fact_of_ours_is_fetched_again(hub: HubServer, tmp_path: Path) -> None:
    fetch_facts("org/open")
    kept = tmp_path / "hf" / "assets" / "kvplan" / "models--org--open" / "main.json"
    kept.write_text(kept.read_text()[:40])
    assert fetch_facts("org/open").source.name == f"Hub at {hub.endpoint}"


def test_a_proxy_of_the_environment_is_used(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    run = "from kvplan.hub import fetch_facts; print(fetch_facts('org/open').config['model_type'])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("llama\n", 0), done.stderr


@pytest.mark.parametrize("written", ["garbage:::", "ftp://proxy.invalid:21"])
def test_a_proxy_that_is_no_address_is_the_users_to_mend(hub: HubServer, written: str) -> None:
    run = "from kvplan.cli import main; raise SystemExit(main(['model', 'org/open']))"
    done = subprocess.run(
        [sys.executable, "-c", run],
        env={**os.environ, "HTTP_PROXY": written, "HF_ENDPOINT": hub.endpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "HTTPS_PROXY, HTTP_PROXY and ALL_PROXY like" in done.stderr


def test_a_cached_model_needs_no_third_party_import(hub: HubServer) -> None:
    fetch_facts("org/open")
    run = (
        "import sys; from kvplan.hub import fetch_facts; fetch_facts('org/open'); "
        "print([name for name in ('huggingface_hub', 'yaml', 'pydantic', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


# --- GGUF files: the header by ranges of bytes -----------------------------------------------------------------------

GGUF = "q4/llama-Q4_K_M.gguf"
GGUF_REFERENCE = f"org/llama-GGUF/{GGUF}"


@pytest.fixture(scope="module")
def whole() -> bytes:
    tokens = [f"token {number:06d} with some length" for number in range(320_000)]
    return gguf_bytes({**LLAMA_8B, "tokenizer.ggml.tokens": tokens}, {"w": ((1 << 22,), 0, 1 << 24)})


@pytest.fixture
def gguf_hub(whole: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub with one GGUF file, and an empty cache."""
    with only_hub(monkeypatch, tmp_path) as server:
        server.repositories["org/llama-GGUF"] = Repository(files={GGUF: whole})
        yield server


def test_only_the_header_is_read(gguf_hub: HubServer) -> None:
    """11 MB of vocabulary take two requests; the tensors behind it are never asked for as a whole."""
    model = read_model(GGUF_REFERENCE)
    assert model.id == GGUF_REFERENCE
    assert model.shape.vocabulary == 128_256
    assert model.weights.stored_bytes == 1 << 24
    assert [seen.path for seen in gguf_hub.seen] == [f"/org/llama-GGUF/resolve/main/{GGUF}"] * 2
    assert model.source.name == f"Hub, the header of {GGUF}"


def test_a_server_without_ranges_is_read_as_far_as_needed(gguf_hub: HubServer) -> None:
    body = gguf_hub.repositories["org/llama-GGUF"].files[GGUF]
    gguf_hub.faults.append(Fault(where=".gguf", body=body))
    assert read_model(GGUF_REFERENCE).weights.stored_bytes == 1 << 24


def test_a_remote_file_that_was_cut_is_an_input_error(gguf_hub: HubServer) -> None:
    files = gguf_hub.repositories["org/llama-GGUF"].files
    files[GGUF] = files[GGUF][: 9 << 20]
    with pytest.raises(InputError, match="in the middle of its header"):
        read_model(GGUF_REFERENCE)


@pytest.mark.parametrize(
    ("reference", "change", "words"),
    [
        (GGUF_REFERENCE.replace("Q4", "Q8"), {}, "has no file q4/llama-Q8_K_M.gguf"),
        (f"{GGUF_REFERENCE}@nowhere", {}, "nowhere"),
        (GGUF_REFERENCE, {"gated": True, "token": "t"}, "terms|gated|restricted"),
    ],
)
def test_refusals_are_messages(gguf_hub: HubServer, reference: str, change: dict[str, object], words: str) -> None:
    for name, value in change.items():
        setattr(gguf_hub.repositories["org/llama-GGUF"], name, value)
    with pytest.raises(ModelUnavailableError, match=words) as caught:
        read_model(reference)
    assert caught.value.hint


def test_offline_takes_a_file_that_was_downloaded(gguf_hub: HubServer) -> None:
    with pytest.raises(ModelUnavailableError, match="offline"):
        read_model(GGUF_REFERENCE, offline=True)
    folder = hub_cache_folder() / "models--org--llama-GGUF"
    path = folder / "snapshots" / COMMIT / GGUF
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(LLAMA_8B, {"w": ((64,), 0, 256)}))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    assert read_model(GGUF_REFERENCE, offline=True).weights.stored_bytes == 256
    assert gguf_hub.seen == []


def test_a_local_path_stays_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "m.gguf").write_bytes(gguf_bytes(LLAMA_8B))
    assert read_model("org/name/m.gguf").id == "m.gguf"
