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


def walked(value: Any, made: Any) -> Any:
    """An argument with each of its tensors exchanged, in the order in which msprobe records them."""
    if isinstance(value, torch.Tensor):
        return made(value)
    if isinstance(value, (list, tuple)):
        return type(value)(walked(part, made) for part in value)
    return value


def gradients(document: dict[str, Any], arrays: list[Any]) -> tuple[list[Any], dict[str, list[bool]]]:
    """What the call returns, gradients for it, those for its tensors, and what the last node got and gave."""
    dtype = getattr(torch, document["dtype"])
    leaves: list[Any] = []

    def leaf(tensor: Any) -> Any:
        is_real = tensor.dtype.is_floating_point
        leaves.append(tensor.to(dtype).requires_grad_() if is_real else tensor)
        return leaves[-1].clone() if is_real else tensor  # which a function in place may change

    args = walked(unpacked(document["args"], arrays), leaf)
    kwargs = {name: walked(unpacked(value, arrays), leaf) for name, value in document["kwargs"].items()}
    if "entropy" in document["api"] or "loss" in document["api"]:  # whose weights have no gradient
        for name in {"weight", "pos_weight"} & {name for name, value in kwargs.items() if value is not None}:
            kwargs[name] = kwargs[name].detach()
    result = function_of(document["api"])(*args, **kwargs)
    results = [result] if isinstance(result, torch.Tensor) else [each for each in result if each is not None]
    reached = [each for each in results if each.requires_grad]
    generator = torch.Generator().manual_seed(document["seed"])
    given = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in reached]
    node: dict[str, Any] = {"got": [], "gave": []}
    if reached and reached[0] is results[0]:
        reached[0].grad_fn.register_hook(lambda gave, got: node.update(got=list(got), gave=list(gave)))
    if reached:
        torch.autograd.backward(reached, given)
    parts: dict[str, list[Any]] = {
        "outputs": results,
        "given": [next((g for each, g in zip(reached, given, strict=True) if each is own), None) for own in results],
        "gradients": [tensor.grad for tensor in leaves],
        **node,
    }
    there = {name: [each is not None for each in tensors] for name, tensors in parts.items()}
    return tensors_of([each for tensors in parts.values() for each in tensors if each is not None]), there


def main() -> None:
    """Answer until the input ends."""
    while True:
        message = read_message(sys.stdin.buffer)
        if message is None:
            return
        try:
            there: dict[str, list[bool]] = {}
            if "seed" in message[0]:
                outputs, there = gradients(*message)
            else:
                outputs = answer(*message)
            error = ""
        except Exception as caught:  # every refusal is an answer
            outputs, there, error = [], {}, f"{type(caught).__name__}: {caught}"
        write_message(sys.stdout.buffer, {"error": error, "there": there}, outputs)


if __name__ == "__main__":
    main()
