"""Calls functions of PyTorch, as asked over standard input: the other half of torch_oracle, with the same messages."""

import importlib
import sys
from typing import Any

import numpy as np
from tensorflow_worker import read_message, write_message

torch: Any = importlib.import_module("torch")
torch.set_num_threads(1)


def unpacked(value: Any, arrays: list[Any]) -> Any:
    """An argument, of what torch_oracle packed."""
    if isinstance(value, list):
        return [unpacked(part, arrays) for part in value]
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value[6:])
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return torch.from_numpy(arrays[value["array"]].copy())
    if "slice" in value:
        return slice(*(unpacked(part, arrays) for part in value["slice"]))
    if "tuple" in value:
        return tuple(unpacked(part, arrays) for part in value["tuple"])
    return Ellipsis


def function_of(api: str) -> Any:
    """A function by the name that msprobe gives it."""
    prefix, _, name = api.partition(".")
    if api == "Optimizer.adamw":
        return adamw
    if prefix == "Functional":
        return getattr(torch.nn.functional, name)
    if prefix == "Tensor":
        return getattr(torch.Tensor, name)
    if prefix == "VF":
        return getattr(torch._VF, name)
    return getattr(torch, name, None) or getattr(torch.linalg, name)


def adamw(var: Any, grad: Any, m: Any, v: Any, largest: Any, **options: Any) -> list[Any]:
    """One step of torch.optim.AdamW with its moments: the parameter, both moments and the largest second one."""
    rates = {name: options[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
    parameter = torch.nn.Parameter(var)
    parameter.grad = grad
    optimizer = torch.optim.AdamW([parameter], betas=(options["beta1"], options["beta2"]), **rates)
    state = {"step": torch.tensor(float(options["step"] - 1)), "exp_avg": m, "exp_avg_sq": v, "max_exp_avg_sq": largest}
    optimizer.state[parameter] = state
    optimizer.step()
    return [parameter, m, v, largest]


def tensors_of(result: Any) -> list[Any]:
    """The tensors of a result, as arrays."""
    if isinstance(result, torch.Tensor):
        result = result.float() if result.dtype in (torch.bfloat16, torch.float16) else result
        return [np.asarray(result.detach().numpy())]
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in tensors_of(part)]
    return [np.asarray(result)]


def answer(document: dict[str, Any], arrays: list[Any]) -> list[Any]:
    """What the call returns."""
    args = unpacked(document["args"], arrays)
    kwargs = {name: unpacked(value, arrays) for name, value in document["kwargs"].items()}
    return tensors_of(function_of(document["api"])(*args, **kwargs))


def main() -> None:
    """Answer until the input ends."""
    while True:
        message = read_message(sys.stdin.buffer)
        if message is None:
            return
        try:
            outputs, error = answer(*message), ""
        except Exception as caught:  # every refusal is an answer
            outputs, error = [], f"{type(caught).__name__}: {caught}"
        write_message(sys.stdout.buffer, {"error": error}, outputs)


if __name__ == "__main__":
    main()
