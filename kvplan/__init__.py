"""kvplan: how much work can this model take on these GPUs, and what happens when more arrives?

>>> import kvplan
>>> model = kvplan.read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
>>> kvplan.price(model, kvplan.Deployment()).bytes_per_token
Fraction(131072, 1)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.api import *  # noqa: F403 - a type checker sees what ``__getattr__`` fetches

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """The names of ``kvplan.api``, loaded when the first is used, and the list of them for ``import *`` and help()."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    from importlib import import_module

    api = import_module("kvplan.api")
    if name == "__all__":
        return api.__all__
    if name not in api.__all__:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}; it has {', '.join(api.__all__)}")
    # All at once: a function (check, compare, recommend) then stands before the package of its room.
    globals().update({each: getattr(api, each) for each in api.__all__})
    value: object = globals()[name]
    return value


def __dir__() -> list[str]:
    from importlib import import_module

    return ["__version__", *import_module("kvplan.api").__all__]
