"""Sets the switches that are given from outside in PyTorch. This module runs on Python 3.7."""

import difflib
import functools
import os
from typing import Any, Callable, Dict, List, Tuple

from precision_tool.lib.training.given_switches import given_switches
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
    for path in paths:
        _keep_in_float32(torch, modules[path])
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


def _keep_in_float32(torch: Any, module: Any) -> None:
    """Make a module compute in float32, outside of autocast; what it puts out has the type of what came in."""
    forward: Callable[..., Any] = module.forward
    module.float()

    @functools.wraps(forward)
    def in_float32(*arguments: Any, **options: Any) -> Any:
        tensors = _tensors(torch, (arguments, options))
        halves = [each.dtype for each in tensors if each.dtype in (torch.float16, torch.bfloat16)]
        device = tensors[0].device.type if tensors else "cpu"
        with torch.autocast(device, enabled=False):
            result = forward(*_cast(torch, arguments, torch.float32), **_cast(torch, options, torch.float32))
        return _cast(torch, result, halves[0]) if halves else result

    module.forward = in_float32


def _tensors(torch: Any, value: Any) -> List[Any]:
    """The floating-point tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in inner for tensor in _tensors(torch, each)]


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    """A value with its tensors of halves, or of float32, in another of these types."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in (torch.float16, torch.bfloat16, torch.float32) else value
    if isinstance(value, dict):
        return type(value)((name, _cast(torch, each, dtype)) for name, each in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(torch, each, dtype) for each in value))
    return type(value)(_cast(torch, each, dtype) for each in value) if isinstance(value, (list, tuple)) else value
