"""A precision debugger for neural networks on Ascend NPUs: finds the operator that computes incorrectly.

Training scripts import `precision_tool.tf_config`, on Python 3.7 and newer. The analysis needs Python 3.11:
the names of `__all__` are loaded when first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

#: The public names of `precision_tool.lib.api`.
__all__ = ["CompareOptions", "Resources", "compare", "load_graph", "open_data", "run"]

TYPE_CHECKING = False  # type checkers read it as true; importing it from typing would cost start-up time
if TYPE_CHECKING:
    from precision_tool.lib.api import CompareOptions, Resources, compare, load_graph, open_data, run
    from precision_tool.lib.version import __version__ as __version__


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name == "__version__":
        from precision_tool.lib import version

        return version.__version__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    if sys.version_info < (3, 11):
        running = ".".join(map(str, sys.version_info[:3]))
        raise ImportError(f"precision_tool.{name} needs Python 3.11 or newer, this is Python {running}")
    from precision_tool.lib import api

    value: object = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
