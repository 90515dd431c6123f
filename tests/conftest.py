"""Shared fixtures: only loopback connections, a plain environment, and the folder of recorded facts."""

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.tables import DATA

_LOOPBACK = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"}


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests of Ctrl-C need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``live``, ``live_engine`` or ``opt_in`` run only where ``-m`` names their mark."""
    asked = str(config.getoption("markexpr"))
    for item in items:
        for mark in ("live", "live_engine", "opt_in"):
            if item.get_closest_marker(mark) is not None and mark not in asked:
                item.add_marker(pytest.mark.skip(reason=f"off unless asked for with -m {mark}"))


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that would leave the machine fails its test."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in _LOOPBACK:
            pytest.fail(f"a test tried to reach {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides the developer's token, cache, colours and profile folder."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "NO_COLOR", "FORCE_COLOR", "KVPLAN_PROFILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.getbasetemp() / "hf_home"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Published configs, engine answers, logs and traces, in a folder beside the checkout."""
    if not DATA.is_dir():
        pytest.skip("the recorded facts (../shared/data) are not beside this checkout")
    return DATA
