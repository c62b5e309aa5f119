"""Keeps modules of PyTorch in float32, whatever the rest of the model computes in. This module runs on Python 3.7.

`preflight --write` copies this text into the module that it writes: it may need nothing but PyTorch.
"""

import copy
import functools
from typing import Any, Iterable, List


def keep_in_float32(model: Any, names: Iterable[str]) -> Any:
    """`model` with these modules computing in float32, outside of autocast.

    What they put out gets the type of autocast where it is on, else that of halves that came in, or were the weights.
    """
    import torch

    for name in names:
        _wrap(torch, model.get_submodule(name))
    return model


def _wrap(torch: Any, module: Any) -> None:
    forward = module.forward
    of_weights = _halves(torch, module.parameters())
    module.float()

    @functools.wraps(forward)
    def in_float32(*arguments: Any, **options: Any) -> Any:
        tensors = _tensors(torch, (arguments, options))
        device = next((tensor.device.type for tensor in tensors or module.parameters()), "cpu")
        region = torch.autocast(device, enabled=False)
        with region:
            result = forward(*_cast(torch, arguments, torch.float32), **_cast(torch, options, torch.float32))
        if region.prev:
            return _cast(torch, result, region.prev_fastdtype)
        halves = _halves(torch, tensors) or of_weights
        return _cast(torch, result, halves[0]) if halves else result

    module.forward = in_float32


def _halves(torch: Any, tensors: Iterable[Any]) -> List[Any]:
    """The types of 16 bits that tensors have."""
    return [tensor.dtype for tensor in tensors if tensor.dtype in (torch.float16, torch.bfloat16)]


def _tensors(torch: Any, value: Any) -> List[Any]:
    """The tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in inner for tensor in _tensors(torch, each)]


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    """A value with its tensors of halves, or of float32, in another of these types."""
    if isinstance(value, torch.Tensor):
        # A number is a loss, which float16 may not hold.
        is_loss = not value.dim() and dtype != torch.float32  # float16 may not hold it
        is_cast = value.dtype in (torch.float16, torch.bfloat16, torch.float32) and not is_loss
        return value.to(dtype) if is_cast else value
    if isinstance(value, dict):
        made = copy.copy(value)  # also of a kind that is not made from pairs
        for name, each in value.items():
            made[name] = _cast(torch, each, dtype)
        return made
    if isinstance(value, (list, tuple)):
        parts = [_cast(torch, each, dtype) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
