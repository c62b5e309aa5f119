"""Sets the switches that are given from outside in PyTorch. This module runs on Python 3.7."""

import difflib
import functools
import os
from typing import Any, Callable, Dict, List, Tuple

from precision_tool.lib.training.given_switches import given_switches
from precision_tool.lib.training.keep_in_float32 import keep_in_float32
from precision_tool.lib.training.packages import ScriptError

#: Makes sums over ranks repeat themselves.
_HCCL = "HCCL_DETERMINISTIC"


def configure(model: Any) -> Any:
    """`model` with what is given. Raises ScriptError for a module that it has not."""
    given = given_switches()
    if not given:
        return model
    import torch

    paths: List[str] = given.get("float32_modules", [])
    modules = dict(model.named_modules())
    for path in paths:
        if path not in modules:
            close = difflib.get_close_matches(path, modules, n=3)
            raise ScriptError("training.given.no_module", name=path, close=close, model=type(model).__name__)
    keep_in_float32(model, paths)
    if given.get("autocast") == "off":
        _switch_autocast_off(torch)
    npu = getattr(torch, "npu", None)
    _set(given, "allow_hf32", [(getattr(npu, kind, None), "allow_hf32") for kind in ("matmul", "conv")])
    _set(given, "allow_hf32", [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")])
    _set(given, "allow_internal_format", [(getattr(npu, "config", None), "allow_internal_format")])
    if "jit_compile" in given and npu is not None:
        npu.set_compile_mode(jit_compile=given["jit_compile"] == "on")
    if "deterministic" in given:
        is_on = given["deterministic"] == "on"
        torch.use_deterministic_algorithms(is_on)
        os.environ[_HCCL] = str(is_on).lower()
    return model


def _set(given: Dict[str, Any], name: str, places: List[Tuple[Any, str]]) -> None:
    """Set an option where it is given, and where this PyTorch has it."""
    for holder, attribute in places if name in given else ():
        if holder is not None and hasattr(holder, attribute):
            setattr(holder, attribute, given[name] == "on")


def _switch_autocast_off(torch: Any) -> None:
    """Make every autocast region one that is not enabled, whoever opens it; those of single devices derive from it."""
    begin: Callable[..., None] = torch.autocast.__init__
    if getattr(begin, "is_off", False):
        return

    @functools.wraps(begin)
    def begin_off(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._enabled = False

    begin_off.is_off = True  # type: ignore[attr-defined]
    torch.autocast.__init__ = begin_off
