"""A connection to the Hub: its address, the token, the time-out, and its failures as kvplan's errors."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from kvplan import __version__
from kvplan.errors import InputError
from kvplan.hub import failures
from kvplan.hub.cache import is_offline, is_set
from kvplan.hub.failures import Target

_PUBLIC_HUB = "https://huggingface.co"
_TIMEOUT_S = 10.0  # the Hub client's own default
_LONGEST_PROBE_S = 5.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session for one model. ``target`` is what error messages name."""

    target: Target
    token: str | None
    timeout_s: float

    @property
    def hub_name(self) -> str:
        """The Hub, or the mirror in its place, as shown to the user."""
        return "Hub" if self.target.endpoint == _PUBLIC_HUB else f"Hub at {self.target.shown_endpoint}"

    @contextmanager
    def get(self, url: str, file: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
        """The answer to one request, with its body not yet read; messages call it ``file``.

        It is untyped because the client's HTTP library differs between its major versions. The connection is the
        client's (proxies, certificates, whatever the user configured); the headers are not, because building them costs
        the client another request to the Hub, for a list of coding agents.
        """
        own = {"user-agent": f"kvplan/{__version__}", **(headers or {})}
        if self.token:
            own["authorization"] = f"Bearer {self.token}"
        with (
            self._translated(file),
            _client().stream("GET", url, headers=own, timeout=self.timeout_s, follow_redirects=True) as response,
        ):
            yield response

    @contextmanager
    def _translated(self, file: str) -> Iterator[None]:
        """Turns the client's exceptions into kvplan's.

        The client's own exception derives from the HTTP library's base exception and from OSError.
        """
        from huggingface_hub.errors import HfHubHTTPError

        transport: tuple[type[BaseException], ...] = HfHubHTTPError.__bases__
        try:
            yield
        except ImportError as error:  # a SOCKS proxy needs a package of its own
            raise failures.unreachable(self.target, str(error)) from error
        except transport as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "TimeoutException" in kinds or isinstance(error, TimeoutError):
                raise failures.timed_out(self.target, self.timeout_s) from error
            if "RemoteProtocolError" in kinds:
                raise failures.broken_off(self.target, file, str(error)) from error
            raise failures.unreachable(self.target, str(error)) from error


def _client() -> Any:
    """The Hub client's connection. It reads the proxy variables and raises its own errors for malformed addresses."""
    from huggingface_hub import get_session

    try:
        return get_session()
    except ImportError:
        raise
    except Exception as error:
        raise InputError(
            f"the connection to the Hub cannot be set up: {error}",
            hint="write HTTPS_PROXY, HTTP_PROXY and ALL_PROXY like http://proxy.example.org:3128",
        ) from error


def open_session(model_id: str, revision: str | None, *, offline: bool, token: str | None) -> Session:
    """A session for ``model_id``; HubUnavailableError in offline mode or where the Hub cannot be reached.

    ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and the proxy variables are honoured; ``token`` wins over the
    environment's.
    """
    endpoint = (os.environ.get("HF_ENDPOINT") or _PUBLIC_HUB).rstrip("/")
    target = Target(model_id=model_id, revision=revision, endpoint=endpoint, with_token=token is not None)
    if offline or is_offline():
        raise failures.offline(target)
    timeout_s = _timeout_s()
    _probe(target, timeout_s)
    held = token or _own_token()
    return Session(target=replace(target, with_token=held is not None), token=held, timeout_s=timeout_s)


def _own_token() -> str | None:
    """The token of ``HF_TOKEN`` or ``hf auth login``, unless the user disabled sending it implicitly."""
    from huggingface_hub import get_token

    return None if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") else get_token()


def _timeout_s() -> float:
    """Seconds to wait for an answer, from the Hub client's own variable."""
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT")
    try:
        seconds = float(text) if text else _TIMEOUT_S
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise InputError(
            f"HF_HUB_DOWNLOAD_TIMEOUT is {text!r}, not a number of seconds",
            hint="write it like HF_HUB_DOWNLOAD_TIMEOUT=30",
        )
    return seconds


def _probe(target: Target, timeout_s: float) -> None:
    """Fails at once where the Hub cannot be reached, before the client is imported (half a second, cold).

    Skipped where a proxy is set: then the Hub's own name need not resolve here.
    """
    if any(os.environ.get(name) for name in _PROXIES):
        return
    parts = urlsplit(target.endpoint)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port is None:
        raise InputError(
            f"HF_ENDPOINT is {target.shown_endpoint!r}, not a URL",
            hint="write it like HF_ENDPOINT=https://hub.example.org",
        )
    seconds = min(timeout_s, _LONGEST_PROBE_S)
    try:
        socket.create_connection((parts.hostname, port), timeout=seconds).close()
    except TimeoutError as error:
        raise failures.timed_out(target, seconds) from error
    except OSError as error:
        raise failures.unreachable(target, error.strerror or str(error)) from error
