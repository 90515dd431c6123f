"""The plan, enforced: an ASGI middleware that admits a request only while its worst case fits, and a reverse proxy
built on it, which needs the extra ``gateway``. Nothing of it is imported by the planner."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.gateway.admit import Admission, OwnLedger, Promise
    from kvplan.gateway.middleware import AdmissionMiddleware

__all__ = ["Admission", "AdmissionMiddleware", "OwnLedger", "Promise"]

_HOMES = {
    "Admission": "kvplan.gateway.admit",
    "AdmissionMiddleware": "kvplan.gateway.middleware",
    "OwnLedger": "kvplan.gateway.admit",
    "Promise": "kvplan.gateway.admit",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
