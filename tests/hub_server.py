"""A loopback server that speaks the Hub's endpoints a config fetch uses, with its faults on demand."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """One model repository: its small files, the sizes of its large ones, and who may read it."""

    files: dict[str, bytes]
    sizes: dict[str, int] = field(default_factory=dict)
    elements: dict[str, int] | None = None
    gated: bool = False
    private: bool = False
    token: str | None = None
    revisions: tuple[str, ...] = ("main", COMMIT)


@dataclass
class Fault:
    """What happens instead of an answer to paths that contain ``where``."""

    where: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    cut: bool = False


@dataclass
class Seen:
    """One request as the server saw it."""

    method: str
    path: str
    token: str | None


class HubServer(ThreadingHTTPServer):
    """The repositories, the faults and the log of requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.stopping = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what several tests are about."""


@contextmanager
def serve() -> Iterator[HubServer]:
    """The server in a thread of its own, stopped at the end."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def only_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[HubServer]:
    """The server as the only Hub that kvplan knows: no proxy, and an empty cache under ``home``."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(home / "hf"))
        yield server


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """The log is ``server.seen``."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        held = self.headers.get("Authorization")
        token = held.removeprefix("Bearer ") if held else None
        self.server.seen.append(Seen(method=self.command, path=path, token=token))
        fault = next((fault for fault in self.server.faults if fault.where in path), None)
        if fault is not None:
            self._fail(fault)
        elif path.startswith("/api/models/"):
            name, slash, _ = path.removeprefix("/api/models/").partition("/tree/")
            if slash and name in self.server.repositories:
                self._send(200, json.dumps(_tree(self.server.repositories[name])).encode(), {})
                return
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self._answer_info(name, revision or "main", token)
        else:
            name, _, rest = path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            self._answer_file(name, revision, file, token)

    def _fail(self, fault: Fault) -> None:
        if fault.hang:
            self.server.stopping.wait(30)
            self.close_connection = True
            return
        headers = dict(fault.headers)
        if fault.cut:
            headers["Content-Length"] = str(len(fault.body) + 100)
            self.close_connection = True
        self._send(fault.status, fault.body, headers)

    def _answer_info(self, name: str, revision: str, token: str | None) -> None:
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and token != repository.token):
            # The real Hub does not tell a stranger whether a repository exists.
            status = 401 if token is None else 404
            self._error(status, "RepoNotFound", "Repository not found" if token else "Invalid username or password.")
        elif revision not in repository.revisions:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            self._send(200, json.dumps(_info(name, repository)).encode(), {"Content-Type": "application/json"})

    def _answer_file(self, name: str, revision: str, file: str, token: str | None) -> None:
        repository = self.server.repositories.get(name)
        if repository is None:
            self._error(404, "RepoNotFound", "Repository not found")
        elif repository.gated and (token is None or token != repository.token):
            said = f"Access to model {name} is restricted. You must have access to it and be authenticated."
            self._error(401 if token is None else 403, "GatedRepo", said)
        elif revision not in repository.revisions:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif file not in repository.files:
            self._error(404, "EntryNotFound", "Entry not found")
        else:
            self._send_part(repository.files[file])

    def _send_part(self, body: bytes) -> None:
        """The whole file, or the range that was asked for, as the Hub's file servers do."""
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, body, {"X-Repo-Commit": COMMIT})
            return
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        if first >= len(body):
            self._send(416, b"", {"Content-Range": f"bytes */{len(body)}"})
            return
        part = body[first : last + 1]
        place = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(body)}", "X-Repo-Commit": COMMIT}
        self._send(206, part, place)

    def _error(self, status: int, code: str, said: str) -> None:
        body = json.dumps({"error": said}).encode()
        self._send(status, body, {"X-Error-Code": code, "X-Error-Message": said})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


def _sizes(repository: Repository) -> dict[str, int]:
    return {file: len(body) for file, body in repository.files.items()} | repository.sizes


def _tree(repository: Repository) -> list[dict[str, object]]:
    """The answer of ``/api/models/{id}/tree/{revision}``, which other programs ask for."""
    return [{"type": "file", "path": file, "size": size} for file, size in _sizes(repository).items()]


def _info(name: str, repository: Repository) -> dict[str, object]:
    """The answer of ``/api/models/{id}?blobs=true``, less the keys that nobody reads."""
    info: dict[str, object] = {
        "_id": "1",
        "id": name,
        "modelId": name,
        "sha": COMMIT,
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [{"rfilename": file, "size": size} for file, size in _sizes(repository).items()],
    }
    if repository.elements is not None:
        info["safetensors"] = {"parameters": repository.elements, "total": sum(repository.elements.values())}
    return info
