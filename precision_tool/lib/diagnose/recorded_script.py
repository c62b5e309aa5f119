"""A recorded call as Python: the expression that makes it again, for a script or for a line of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from precision_tool.lib.model.msprobe import (
    Argument,
    CallName,
    DescribedArgument,
    Literal,
    RecordedCall,
    RecordedTensor,
    SliceArgument,
)

#: Where the functions of a prefix are, in PyTorch and in MindSpore.
_PLACES = {
    "Functional": "torch.nn.functional", "Torch": "torch", "Tensor": "torch.Tensor", "NPU": "torch_npu",
    "Aten": "torch.ops.aten", "VF": "torch._VF", "_VF": "torch._VF",
}  # fmt: skip
_MINDSPORE_PLACES = {
    "Functional": "mindspore.ops", "Tensor": "mindspore.Tensor", "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
}  # fmt: skip
#: Functions of torch.linalg that torch has not: msprobe leaves `linalg.` out of their names.
_LINALG = frozenset({
    "vector_norm", "matrix_norm", "lu_factor", "svdvals", "inv", "pinv", "vecdot", "multi_dot", "householder_product",
    "tensorsolve", "cholesky_ex", "inv_ex", "solve_ex", "lu_factor_ex", "ldl_factor", "ldl_factor_ex",
})  # fmt: skip
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
#: Texts of the framework that are names, not strings.
_NAMED_TYPES = ("torch.dtype", "torch.memory_format", "torch.layout", "mindspore.dtype", "mindspore.type")
#: What msprobe has of an `...` in an index, and of a device, which is another one where the call is made again.
_ELLIPSIS, _DEVICE = "ellipsis", "torch.device"
_INDEXING = ("__getitem__", "__setitem__")


class NoCodeError(Exception):
    """The call cannot be written: it is of no function, or an argument is no value."""


def call_code(call: RecordedCall, framework: str, tensor: Callable[[str, RecordedTensor], str]) -> str:
    """Return the expression of a recorded call.

    Parameters
    ----------
    call : RecordedCall
        The forward of a function.
    framework : str
        What `dump.json` says it is of.
    tensor : callable
        Returns the expression of a tensor from its slot, `input.0` or `kwargs.mask`.

    Returns
    -------
    str
        The expression: ``torch.nn.functional.gelu(x, approximate='tanh')``.

    Raises
    ------
    NoCodeError
        It cannot be written.
    """
    name = call.call
    if name is None or name.is_module:
        raise NoCodeError
    writer = _Writer(tensor, is_index=name.name in _INDEXING)
    args = [writer.written(argument, f"input.{number}") for number, argument in enumerate(call.inputs)]
    kwargs = [f"{key}={writer.written(value, f'kwargs.{key}')}" for key, value in call.kwargs.items()]
    if any(not key.isidentifier() for key in call.kwargs):
        raise NoCodeError
    operation = _operation(name, args) if not kwargs else ""
    return operation or f"{function_of(name, framework)}({', '.join((*args, *kwargs))})"


def function_of(name: CallName, framework: str) -> str:
    """Return the function of an API: `torch.nn.functional.gelu`. NoCodeError where none is known."""
    place = (_MINDSPORE_PLACES if framework == "mindspore" else _PLACES).get(name.prefix)
    if place is None or not all(part.isidentifier() for part in name.name.split(".")):
        raise NoCodeError
    is_linalg = name.prefix == "Torch" and name.name in _LINALG
    return f"{place}.linalg.{name.name}" if is_linalg else f"{place}.{name.name}"


def is_in_place(name: CallName) -> bool:
    """Return whether a function changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    plain = name.name.rpartition(".")[2]
    if plain.startswith("__"):
        return plain == "__setitem__" or plain.removeprefix("__i").removesuffix("__") in _OPERATORS
    return plain.endswith("_")


def _operation(name: CallName, args: Sequence[str]) -> str:
    """Return `x + y` for `__add__` and `__radd__`; "" for others."""
    plain = name.name.removeprefix("__").removesuffix("__")
    if len(args) != 2 or not name.name.startswith("__"):
        return ""
    if name.name == "__getitem__":
        return f"{args[0]}[{args[1]}]"
    if plain in _OPERATORS:
        return f"{args[0]} {_OPERATORS[plain]} {args[1]}"
    if plain.removeprefix("r") in _OPERATORS and plain.startswith("r"):
        return f"{args[1]} {_OPERATORS[plain[1:]]} {args[0]}"
    return ""


class _Writer:
    """Writes arguments; those of an index as a tuple, others in brackets."""

    def __init__(self, tensor: Callable[[str, RecordedTensor], str], *, is_index: bool) -> None:
        self._tensor = tensor
        self._is_index = is_index

    def written(self, argument: Argument, slot: str) -> str:
        if isinstance(argument, RecordedTensor):
            return self._tensor(slot, argument)
        if isinstance(argument, tuple):
            parts = [self.written(item, f"{slot}.{number}") for number, item in enumerate(argument)]
            inside = ", ".join(parts)
            if not self._is_index:
                return f"[{inside}]"
            return f"({inside},)" if len(parts) == 1 else f"({inside})"
        if isinstance(argument, SliceArgument):
            return f"slice({argument.start}, {argument.stop}, {argument.step})"
        if isinstance(argument, (Mapping, DescribedArgument)):
            raise NoCodeError
        return self._literal(argument)

    def _literal(self, argument: object) -> str:
        kind, value = (argument.type, argument.value) if isinstance(argument, Literal) else ("", argument)
        if kind in _NAMED_TYPES and isinstance(value, str):
            if not all(part.isidentifier() for part in value.split(".")):
                raise NoCodeError
            return value
        if kind == _DEVICE:
            return "device"
        if kind == _ELLIPSIS or value is Ellipsis:
            return "..."
        if isinstance(value, float) and not isfinite(value):
            return f"float('{value}')"
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, tuple):
            return f"[{', '.join(map(self._literal, value))}]"
        raise NoCodeError
