"""What is wrong with a run: kernels that put out something else, in place of PyTorch's functions that msprobe wraps.

A wrong kernel writes its result over the right one, so that PyTorch's own gradient is that of the right function; a
wrong gradient is put into the node of autograd. What a fault did is measured, in units of the last place of the type it
was put out in: a change that rounding could have made is no fault.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from msprobe.core.dump.hook_manager import BaseHookManager

Tensor = torch.Tensor


@dataclass(frozen=True)
class Wrong:
    """The call of a function that is to be made wrong: its arguments before, its right results, the function itself."""

    api: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]
    real: Callable[..., Any]
    random: Random

    def with_argument(self, place: int, name: str, value: Any) -> list[Tensor] | None:
        """The results with another value of an argument that stands at a place or under its name."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if len(args) > place:
            args[place] = value
        else:
            kwargs[name] = value
        return tensors_of(self.real(*copied(args), **copied(kwargs)))

    @property
    def is_short(self) -> bool:
        """Whether the results are of a type of 16 bits, in which small errors are rounding."""
        return self.results[0].dtype in (torch.float16, torch.bfloat16)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


#: Returns the wrong results, or None where the call has no place for this fault.
Change = Callable[[Wrong], "Sequence[Tensor] | None"]


@dataclass(frozen=True)
class Fault:
    """A kind of fault and the functions that can have it, by the names that msprobe gives them."""

    apis: tuple[str, ...]
    change: Change
    is_backward: bool = False


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a value, in lists as well."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


def copied(value: Any) -> Any:
    """An argument whose tensors have memory of their own and no gradient."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(copied(part) for part in value)
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return value


# --- the kinds --------------------------------------------------------------------------------------------------------

_PRODUCTS = ("Functional.linear", "Torch.matmul", "Torch.bmm", "Tensor.__matmul__", "Functional.conv2d",
             "Functional.conv1d", "Functional.conv_transpose2d")  # fmt: skip
_NORMS = ("Functional.layer_norm", "Functional.group_norm", "Functional.batch_norm")
_SOFTMAX = ("Functional.softmax", "Torch.softmax", "Tensor.softmax", "Functional.log_softmax")
_ACTIVATIONS = ("Functional.gelu", "Functional.silu", "Functional.relu", "Functional.leaky_relu", "Functional.prelu",
                "Torch.tanh", "Tensor.sigmoid", "Torch.sigmoid")  # fmt: skip
_ATTENTION = ("Functional.scaled_dot_product_attention",)
_SIMPLE = ("Tensor.__add__", "Tensor.__mul__", "Tensor.__truediv__", "Tensor.mean", "Tensor.pow", "Torch.rsqrt",
           "Tensor.cos", "Torch.exp", "Torch.sqrt", "Tensor.sum")  # fmt: skip
_LOSSES = ("Functional.cross_entropy", "Functional.mse_loss", "Functional.nll_loss", "Functional.smooth_l1_loss",
           "Functional.binary_cross_entropy_with_logits")  # fmt: skip
_EVERYTHING = _PRODUCTS + _NORMS + _SOFTMAX + _ACTIVATIONS + _ATTENTION


def _real_result(wrong: Wrong) -> Tensor | None:
    y = wrong.results[0] if wrong.results else None
    return y.detach().clone() if y is not None and y.is_floating_point() and y.dim() and y.numel() > 4 else None


def _block(wrong: Wrong) -> list[Tensor] | None:
    """The last part of an axis is not written."""
    y = _real_result(wrong)
    if y is None:
        return None
    axis = wrong.random.choice([axis for axis, size in enumerate(y.shape) if size > 1])
    y.narrow(axis, y.shape[axis] - max(1, y.shape[axis] // 4), max(1, y.shape[axis] // 4)).zero_()
    return [y]


def _element(wrong: Wrong) -> list[Tensor] | None:
    y = _real_result(wrong)
    if y is None:
        return None
    y.view(-1)[y.reshape(-1).abs().argmax()] = 0
    return [y]


def _nan_head(wrong: Wrong) -> list[Tensor] | None:
    y = _real_result(wrong)
    if y is None or y.dim() < 3:
        return None
    y[:, -1] = float("nan")
    return [y]


def _epsilon(wrong: Wrong) -> list[Tensor] | None:
    """A much larger epsilon than the one that was asked for."""
    place = 7 if wrong.api == "Functional.batch_norm" else 4
    return wrong.with_argument(place, "eps", 1.0 if wrong.is_short else 0.05)


def _axis(wrong: Wrong) -> list[Tensor] | None:
    y = _real_result(wrong)
    if y is None or y.dim() < 2:
        return None
    axis = int(wrong.argument(1, "dim")) % y.dim()
    return wrong.with_argument(1, "dim", axis - 1 if axis else 1)


def _scale_forgotten(wrong: Wrong) -> list[Tensor] | None:
    if wrong.api.endswith("attention"):
        return wrong.with_argument(99, "scale", 1.0)
    other = wrong.argument(1, "other")
    if not isinstance(other, float) or not wrong.results[0].dim():
        return None
    return [wrong.args[0].detach().clone()]


def _transposed(wrong: Wrong) -> list[Tensor] | None:
    other = wrong.argument(1, "weight")
    if not isinstance(other, Tensor) or other.dim() < 2 or other.shape[-1] != other.shape[-2]:
        return None
    return wrong.with_argument(1, "weight", other.detach().transpose(-1, -2))


def _narrow_sums(wrong: Wrong) -> list[Tensor] | None:
    """Sums of products are rounded to bfloat16 after every few terms."""
    x, other = wrong.args[0].detach().float(), wrong.argument(1, "weight").detach().float()
    if wrong.api == "Functional.linear":
        other = other.transpose(-1, -2)
    if x.dim() < 2 or other.dim() < 2:
        return None
    bias = wrong.argument(2, "bias") if wrong.api == "Functional.linear" else None
    total = torch.zeros(())
    for start in range(0, x.shape[-1], 4):
        part = torch.matmul(x[..., start : start + 4], other[..., start : start + 4, :])
        total = (total + part).bfloat16().float()
    return [(total if bias is None else total + bias.detach().float()).to(wrong.results[0].dtype)]


def _not_masked(wrong: Wrong) -> list[Tensor] | None:
    if wrong.api.endswith("attention"):
        return wrong.with_argument(99, "is_causal", False) if wrong.kwargs.get("is_causal") else None
    return [wrong.args[0].detach().clone()]


def _sign(wrong: Wrong) -> list[Tensor] | None:
    y = _real_result(wrong)
    return None if y is None else [-y]


def _other_places(wrong: Wrong) -> list[Tensor] | None:
    """Another index than the right one, where an axis was searched."""
    values, places = wrong.results
    count = wrong.args[0].shape[-1]
    moved = places.clone()
    moved[..., -1] = (moved[..., -1] + 1) % count
    return [values.detach().clone(), moved]


def _next_rows(wrong: Wrong) -> list[Tensor] | None:
    """Rows are taken from the place after the right one, for some of the indices."""
    place, name = {"Functional.embedding": (0, "input"), "Torch.gather": (2, "index")}.get(wrong.api, (2, "index"))
    index = wrong.argument(place, name)
    if not isinstance(index, Tensor) or not index.numel():
        return None
    table = wrong.argument(1, "weight") if wrong.api == "Functional.embedding" else wrong.args[0]
    limit = table.shape[0 if wrong.api == "Functional.embedding" else int(wrong.argument(1, "dim"))]
    moved = index.clone()
    flat = moved.view(-1)
    flat[: max(1, len(flat) // 3)] = (flat[: max(1, len(flat) // 3)] + 1) % limit
    return wrong.with_argument(place, name, moved)


def _other_class(wrong: Wrong) -> list[Tensor] | None:
    y = wrong.results[0].clone()
    flat = y.view(-1, y.shape[-1])
    flat[0] = torch.roll(flat[0], 1)
    return [y]


def _other_gelu(wrong: Wrong) -> list[Tensor] | None:
    own = wrong.argument(1, "approximate", "none")
    return wrong.with_argument(1, "approximate", "none" if own == "tanh" else "tanh")


def _aligned(wrong: Wrong) -> list[Tensor] | None:
    if wrong.kwargs.get("mode") != "bilinear" and "bilinear" not in wrong.args:
        return None
    return wrong.with_argument(99, "align_corners", True)


def _not_smoothed(wrong: Wrong) -> list[Tensor] | None:
    """What a loss takes beside its two tensors is ignored: smoothing, weights, the width of its quadratic part."""
    changes = {"label_smoothing": (7, 0.0), "weight": (2, None), "beta": (5, 1.0)}
    for name, (place, value) in changes.items():
        own = wrong.argument(place, name)
        if own is not None and not (isinstance(own, float) and own == value):
            return wrong.with_argument(place, name, value)
    return None


def _clipped(wrong: Wrong) -> list[Tensor] | None:
    """Large values saturate."""
    y = _real_result(wrong)
    if y is None:
        return None
    limit = float(y.abs().max()) / 2
    return [y.clamp(-limit, limit)]


def _coarse(wrong: Wrong) -> list[Tensor] | None:
    """Each value has a handful of bits."""
    y = _real_result(wrong)
    if y is None:
        return None
    mantissa, exponent = torch.frexp(y.float())
    return [torch.ldexp(torch.round(mantissa * 32) / 32, exponent).to(y.dtype)]


_STALE: dict[tuple[str, tuple[int, ...]], Tensor] = {}


def _stale(wrong: Wrong) -> list[Tensor] | None:
    """The result of the call before."""
    y = _real_result(wrong)
    if y is None:
        return None
    key = wrong.api, tuple(y.shape)
    before, _STALE[key] = _STALE.get(key), y
    return None if before is None else [before]


def _applied_twice(wrong: Wrong) -> list[Tensor] | None:
    """A kernel in place that reads a part of its input after it has written it."""
    y = _real_result(wrong)
    if y is None or tuple(y.shape) != tuple(wrong.args[0].shape):
        return None
    again = tensors_of(wrong.real(y.clone(), *copied(wrong.args[1:]), **copied(wrong.kwargs)))[0]
    half = y.shape[0] - y.shape[0] // 2
    y[half:] = again.detach()[half:]
    return [y] if y.shape[0] > 1 else None


def _update(wrong: Wrong) -> list[Tensor] | None:
    """A step of an optimizer that is taken with another factor."""
    y = _real_result(wrong)
    before = wrong.args[0]
    return None if y is None else [before + (y - before) * 1.1]


def _noisy(wrong: Wrong) -> list[Tensor] | None:
    y = _real_result(wrong)
    if y is None:
        return None
    generator = torch.Generator().manual_seed(wrong.random.randrange(1 << 30))
    size = 0.3 if wrong.is_short else 0.03
    return [y * (1 + size * torch.randn(y.shape, generator=generator)).to(y.dtype)]


def _scaled(wrong: Wrong) -> list[Tensor] | None:
    factor = 1.5 if wrong.is_short else 1.05
    return [y.detach() * factor if y.is_floating_point() else y.clone() for y in wrong.results]


def _counted_twice(wrong: Wrong) -> list[Tensor] | None:
    """A sum over the ranks that has the rank's own part twice."""
    return [wrong.results[0] + wrong.args[0]]


def _channel(wrong: Wrong) -> list[Tensor] | None:
    """One channel has the values of another."""
    y = _real_result(wrong)
    if y is None or y.dim() < 3 or y.shape[1] < 2:
        return None
    y[:, 1] = y[:, 0]
    return [y]


_GRADIENTS = ("Functional.gelu", "Functional.silu", "Functional.conv2d", "Functional.layer_norm", "Functional.softmax",
              "Torch.softmax", "Tensor.softmax", "Functional.group_norm", "Functional.batch_norm", "Torch.bmm",
              "Functional.embedding", "Functional.mse_loss", "Functional.interpolate", "Functional.max_pool2d",
              "Functional.conv_transpose2d", "Functional.scaled_dot_product_attention", "Functional.leaky_relu",
              "Torch.tanh", "Tensor.__mul__", "Functional.log_softmax", "Torch.gather", "Functional.prelu",
              "Functional.relu", "Torch.rsqrt", "Tensor.mean", "Functional.smooth_l1_loss")  # fmt: skip


FAULTS: dict[str, Fault] = {
    "block": Fault(_EVERYTHING, _block),
    "element": Fault((*_EVERYTHING, *_SIMPLE, "Functional.interpolate", "Functional.max_pool2d"), _element),
    "nan_head": Fault((*_ATTENTION, *_SOFTMAX, "Torch.matmul", "Torch.bmm"), _nan_head),
    "epsilon": Fault(_NORMS, _epsilon),
    "axis": Fault(_SOFTMAX, _axis),
    "scale_forgotten": Fault((*_ATTENTION, "Tensor.__truediv__", "Tensor.__mul__"), _scale_forgotten),
    "transposed": Fault(("Functional.linear", "Torch.matmul", "Tensor.__matmul__"), _transposed),
    "narrow_sums": Fault(("Functional.linear", "Torch.matmul", "Torch.bmm", "Tensor.__matmul__"), _narrow_sums),
    "not_masked": Fault((*_ATTENTION, "Tensor.masked_fill"), _not_masked),
    "sign": Fault(("Torch.neg", "Torch.sin", "Tensor.sin", "Tensor.cos", "Torch.cos"), _sign),
    "other_expert": Fault(("Torch.topk",), _other_places),
    "next_rows": Fault(("Functional.embedding", "Torch.gather", "Tensor.index_select"), _next_rows),
    "other_class": Fault(("Functional.one_hot",), _other_class),
    "other_gelu": Fault(("Functional.gelu",), _other_gelu),
    "aligned": Fault(("Functional.interpolate",), _aligned),
    "loss_option": Fault(_LOSSES, _not_smoothed),
    "clipped": Fault(_PRODUCTS + _SIMPLE, _clipped),
    "coarse": Fault(_ACTIVATIONS + _SOFTMAX + ("Torch.exp", "Torch.rsqrt"), _coarse),
    "stale": Fault(("Functional.linear", "Functional.conv2d", "Functional.layer_norm", "Functional.gelu"), _stale),
    "race": Fault(("Functional.silu", "Tensor.mul_", "Tensor.add_", "Functional.gelu"), _applied_twice),
    "update": Fault(("Tensor.lerp_", "Tensor.addcmul_", "Tensor.addcdiv_", "Tensor.add_"), _update),
    "norm": Fault(("Torch.vector_norm", "Torch._foreach_norm", "Tensor.norm"), _scaled),
    "noisy": Fault(("Functional.linear", "Functional.conv2d", "Torch.bmm", "Functional.batch_norm"), _noisy),
    "channel": Fault(("Functional.conv2d", "Functional.batch_norm", "Functional.group_norm"), _channel),
    "scaled": Fault(_SOFTMAX + _LOSSES + ("Tensor.mean",), _scaled),
    "average": Fault(("Distributed.all_reduce",), _counted_twice),
    "gradient_block": Fault(_GRADIENTS, _block, is_backward=True),
    "gradient_scaled": Fault(_GRADIENTS, _scaled, is_backward=True),
    "gradient_sign": Fault(_GRADIENTS, _sign, is_backward=True),
    "gradient_element": Fault(_GRADIENTS, _element, is_backward=True),
}


# --- planting ---------------------------------------------------------------------------------------------------------

#: The unit in the last place of 1, by type.
_ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}
#: So many units in the last place of the largest values are far beyond rounding: sums of all networks here are shorter.
_FAR = 24.0


@dataclass
class Plant:
    """A fault at some calls of a function: `entries` are those where it had an effect, each with its size."""

    api: str
    kind: str
    seed: int
    #: The number of the call that is wrong; None for all.
    count: int | None = None
    entries: dict[str, float] = field(default_factory=dict)
    #: Only find out where the fault would have an effect.
    is_probe: bool = False
    is_active: bool = False

    def put(self) -> None:
        """Replace the function; msprobe must not have wrapped it yet."""
        prefix, name = self.api.split(".", 1)
        places = owners_of(prefix, name)
        real = getattr(places[0], name, None)
        if real is None:
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            entry = self._entry() if self.is_active else ""
            if not entry:
                return real(*args, **kwargs)
            with unrecorded():
                before = copied(args), copied(kwargs)
            result = real(*args, **kwargs)
            if FAULTS[self.kind].is_backward:
                self._spoil_gradient(entry, result)
            else:
                results = tensors_of(args[:1] if prefix == "Distributed" else result)  # which works in place
                if results and not any(_is_part(tensor, args) for tensor in results):
                    self._spoil(entry, before, results, real)
            return result

        for place in places:
            setattr(place, name, kernel)

    def _entry(self) -> str:
        """The name of the entry that msprobe is making, if this call is one and is to be wrong."""
        if BaseHookManager.inner_api_count[threading.get_ident()] != 1:
            return ""
        frame = sys._getframe(2)
        for _ in range(8):
            for name in ("self", "module"):
                entry = getattr(frame.f_locals.get(name), "full_forward_name", None)
                if isinstance(entry, str):
                    is_this = entry.rsplit(".", 2)[0] == self.api
                    return entry if is_this and self.count in (None, int(entry.split(".")[-2])) else ""
            if frame.f_back is None:
                break
            frame = frame.f_back
        return ""

    def _random(self, entry: str) -> Random:
        return Random(f"{self.seed} {self.api}")

    def _spoil(self, entry: str, before: tuple[Any, Any], results: list[Tensor], real: Callable[..., Any]) -> None:
        with unrecorded(), torch.no_grad():
            right = [tensor.detach().clone() for tensor in results]
            wrong = FAULTS[self.kind].change(
                Wrong(self.api, *before, results=right, real=real, random=self._random(entry))
            )
            if wrong is None:
                return
            effect = max(effect_of(a, b) for a, b in zip(right, wrong, strict=False))
            if effect < _FAR:
                return
            self.entries[entry] = effect
            for tensor, values in zip([] if self.is_probe else results, wrong, strict=False):
                tensor.data.copy_(values)

    def _spoil_gradient(self, entry: str, result: Any) -> None:
        node = next((tensor.grad_fn for tensor in tensors_of(result)), None)
        if node is None:
            return
        name = entry.replace(".forward", ".backward")

        def spoiled(gradients: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
            first = next((at for at, each in enumerate(gradients) if isinstance(each, Tensor)), None)
            if first is None:
                return gradients
            with unrecorded(), torch.no_grad():
                right = gradients[first]
                call = Wrong(self.api, (), {}, [right], lambda: None, self._random(entry))
                wrong = FAULTS[self.kind].change(call)
                effect = 0.0 if wrong is None else effect_of(right, wrong[0])
            if wrong is None or effect < _FAR:
                return gradients
            self.entries[name] = effect
            if self.is_probe:
                return gradients
            return (*gradients[:first], wrong[0], *gradients[first + 1 :])

        node.register_hook(spoiled)


def _is_part(result: Tensor, args: tuple[Any, ...]) -> bool:
    """Whether a result is a view of an argument, so that it cannot be changed alone."""
    given = tensors_of(args)
    memory = {tensor.untyped_storage().data_ptr() for tensor in given}
    return all(result is not tensor for tensor in given) and result.untyped_storage().data_ptr() in memory


def effect_of(right: Tensor, wrong: Tensor) -> float:
    """How far a result is off, in units of the last place of the rms of its values."""
    if not right.is_floating_point():
        return float("inf") if not torch.equal(right, wrong) else 0.0
    a, b = right.double(), wrong.double()
    if not torch.isfinite(a).all():
        return 0.0
    if not torch.isfinite(b).all():
        return float("inf")
    size = float(a.square().mean().sqrt()) * _ULP[right.dtype]
    return float((a - b).abs().max()) / size if size else 0.0


def owners_of(prefix: str, name: str) -> list[Any]:
    """Where a function of a prefix of msprobe is."""
    if not hasattr(torch, name) and prefix == "Torch":
        return [torch.linalg]  # msprobe leaves `linalg` out of the name
    return {
        "Functional": [F], "Torch": [torch], "Tensor": [torch.Tensor],
        "Distributed": [torch.distributed, torch.distributed.distributed_c10d],
    }[prefix]  # fmt: skip


@contextmanager
def unrecorded() -> Any:
    """Within it msprobe records nothing."""
    thread = threading.get_ident()
    before = BaseHookManager.inner_switch[thread]
    BaseHookManager.inner_switch[thread] = True
    try:
        yield
    finally:
        BaseHookManager.inner_switch[thread] = before
