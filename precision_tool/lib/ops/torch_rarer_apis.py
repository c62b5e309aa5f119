"""PyTorch's rarer functions and torch_npu's, as calls of formulas: more of the table of `torch_apis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, pi, prod
from typing import Any

import numpy as np

from precision_tool.lib.ops.base import Call, Input, NotComputedError, check_size
from precision_tool.lib.ops.op_arguments import Array, axis_of
from precision_tool.lib.ops.torch_apis import (
    _APIS,
    _call,
    _each,
    _flat,
    _ints,
    _like,
    _moved,
    _parts,
    _plain,
    _real,
    _tensor,
    _type_name,
    _vector_norm,
    api,
)

# --- new tensors ------------------------------------------------------------------------------------------------------


def _new(array: Array) -> Call:
    return _moved(_tensor(array), array)


@api("arange", "range")
def _arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, out: Any = None,
) -> Call:  # fmt: skip
    first, last = (0, start) if end is None else (start, end)
    count = max(0, ceil((last - first) / step))
    check_size([count])
    is_whole = all(isinstance(value, int) for value in (first, last, step))
    if is_whole and (dtype is None or "int" in _type_name(dtype)):
        return _new(first + np.arange(count, dtype=np.int64) * step)
    return _call("torch.steps", start=float(first), step=float(step), count=count)


@api("linspace")
def _linspace(start: Any, end: Any, steps: int, **options: Any) -> Call:
    first, last = (float(value.array) if isinstance(value, Input) else float(value) for value in (start, end))
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    return _call("torch.steps", start=first, step=step, count=int(steps))


def _filled(value: Any, /, size: Any, *sizes: Any, **options: Any) -> Call:
    shape = [int(each) for each in _flat([size, *sizes] if sizes else [size])]
    check_size(shape)
    return _new(np.full(shape, value, np.float64))


def _filled_like(value: Any, /, input: Any, **options: Any) -> Call:
    return _moved(input, np.full(input.array.shape, value, input.array.dtype))


for _name, _value in (("zeros", 0), ("ones", 1)):
    _APIS.setdefault(_name, partial(_filled, _value))
    _APIS.setdefault(f"{_name}_like", partial(_filled_like, _value))
_APIS.setdefault("full", lambda size, fill_value, **options: _filled(fill_value, size))
_APIS.setdefault("full_like", lambda input, fill_value, **options: _filled_like(fill_value, input))
_APIS.setdefault("scalar_tensor", lambda s, **options: _new(np.asarray(s, np.float64)))


@api("eye")
def _eye(n: int, m: int | None = None, **options: Any) -> Call:
    check_size([n, n if m is None else m])
    return _new(np.eye(n, m))


def _triangle(places: Any, /, row: int, col: int, offset: int = 0, **options: Any) -> Call:
    check_size([row, col])
    return _new(np.stack(places(row, offset, col)).astype(np.int64))


_APIS["tril_indices"], _APIS["triu_indices"] = partial(_triangle, np.tril_indices), partial(_triangle, np.triu_indices)


# --- elements ---------------------------------------------------------------------------------------------------------


for _name, _type in (("arcsinh", "Asinh"), ("arccosh", "Acosh"), ("arctanh", "Atanh"), ("sgn", "Sign")):
    _APIS[_name] = partial(lambda op_type, input: _call(op_type, _real(input)), _type)
for _name in ("hypot", "logaddexp"):
    _APIS[_name] = partial(lambda op_type, input, other: _call(op_type, _real(input), _real(other)), f"torch.{_name}")
for _name, _factor in (("deg2rad", pi / 180), ("rad2deg", 180 / pi)):
    _APIS[_name] = partial(lambda value, input: _call("torch.scaled", _real(input), value=value), _factor)
for _name, _move in (("frac", lambda x: x - np.trunc(x)), ("atleast_2d", np.atleast_2d), ("atleast_3d", np.atleast_3d),
                     ("isreal", np.isreal)):  # fmt: skip
    _APIS[_name] = partial(lambda move, input: _moved(input, move(input.array)), _move)


@api("tanhshrink")
def _tanhshrink(input: Any) -> Call:
    return _call("torch.tanhshrink", _real(input))


@api("logit", "special.logit")
def _logit(input: Any, eps: float | None = None) -> Call:
    return _call("torch.logit", _real(input), float("nan") if eps is None else float(eps))


@api("hardshrink")
def _hardshrink(input: Any, lambd: float = 0.5) -> Call:
    return _moved(input, np.where(np.abs(input.array) > lambd, input.array, 0.0))


@api("softshrink")
def _softshrink(input: Any, lambd: float = 0.5) -> Call:
    return _call("Sub", input, replace(input, array=np.clip(input.array, -lambd, lambd)))


@api("copysign")
def _copysign(input: Any, other: Any) -> Call:
    a, b = _real(input), _like(other, input)
    return _moved(a, np.copysign(*np.broadcast_arrays(a.array, b.array)))


@api("heaviside")
def _heaviside(input: Any, values: Any) -> Call:
    return _moved(input, np.heaviside(*np.broadcast_arrays(input.array, values.array)))


@api("ldexp")
def _ldexp(input: Any, other: Any) -> Call:
    power = other.array if isinstance(other, Input) else np.asarray(other)
    return _call("Mul", _real(input), _tensor(np.power(2.0, power)))


def _shifted(shift: Any, /, input: Any, other: Any) -> Call:
    return _moved(input, shift(input.array, _like(other, input).array).astype(input.array.dtype))


for _names, _shift in ((("__lshift__", "bitwise_left_shift"), np.left_shift),
                       (("__rshift__", "bitwise_right_shift"), np.right_shift)):  # fmt: skip
    _APIS.update({_name: partial(_shifted, _shift) for _name in _names})
_APIS["__rmod__"] = lambda input, other: _APIS["remainder"](other, input)


# --- reductions -------------------------------------------------------------------------------------------------------


def _without_nan(name: str, /, input: Any, *args: Any, **options: Any) -> Call:
    if name == "mean" and np.isnan(input.array).any():
        raise NotComputedError("no_variant", name="input", value="NaN")
    return _APIS[name](replace(input, array=np.where(np.isnan(input.array), 0.0, input.array)), *args, **options)


_APIS["nansum"], _APIS["nanmean"] = partial(_without_nan, "sum"), partial(_without_nan, "mean")


@api("kthvalue")
def _kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Call:
    return _call("torch.kth", input, k=int(k), dim=int(dim), keepdim=bool(keepdim))


@api("median")
def _median(input: Any, dim: int | None = None, keepdim: bool = False) -> Call:
    if dim is None:
        flat = replace(input, array=input.array.reshape(-1))
        return _call("torch.kth", flat, k=(flat.array.size + 1) // 2, dim=0, keepdim=False)
    length = input.array.shape[axis_of(_call("torch.kth"), int(dim), input.array.ndim)]
    return _call("torch.kth", input, k=(length + 1) // 2, dim=int(dim), keepdim=bool(keepdim))


for _name in ("cummax", "cummin"):
    _APIS[_name] = partial(
        lambda largest, input, dim: _call("torch.running", input, dim=int(dim), largest=largest), _name == "cummax"
    )


@api("aminmax", "_aminmax")
def _aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Call:
    return _parts(input, [reduce(input.array, axis=dim, keepdims=bool(keepdim)) for reduce in (np.min, np.max)])


@api("diff")
def _diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Call:
    _plain(n=None if n == 1 else n)
    given = [tensor.array for tensor in (prepend, input, append) if tensor is not None]
    x = np.concatenate(given, dim)
    length = x.shape[dim]
    return _call(
        "Sub", *(replace(input, array=np.take(x, range(*ends), dim)) for ends in ((1, length), (0, length - 1)))
    )


@api("cross")
def _cross(input: Any, other: Any, dim: int | None = None) -> Call:
    shape = np.broadcast_shapes(input.array.shape, other.array.shape)
    axis = (shape.index(3) if 3 in shape else -1) if dim is None else int(dim)
    return _call("torch.cross", input, other, dim=axis)


_APIS["linalg_cross"] = lambda input, other, *, dim=-1: _cross(input, other, dim)


@api("Torch.cross")
def _cross_or_linalg_cross(input: Any, other: Any, dim: int | None = None) -> Call:
    """torch.cross takes the first axis of three where none is given, torch.linalg.cross the last axis."""
    shape = np.broadcast_shapes(input.array.shape, other.array.shape)
    if dim is None and shape[-1] == 3 and shape.count(3) > 1:
        raise NotComputedError("no_variant", name="dim", value="None")
    return _cross(input, other, dim)


@api("vecdot")
def _vecdot(x: Any, y: Any, *, dim: int = -1) -> Call:
    return _call("torch.vecdot", x, y, dim=int(dim))


@api("dist")
def _dist(input: Any, other: Any, p: float = 2) -> Call:
    _plain(p=None if p == 2 else p)
    flat = [replace(each, array=array.reshape(-1)) for each, array in zip(
        (input, other), np.broadcast_arrays(input.array, other.array), strict=True)]  # fmt: skip
    return _call("torch.pairwise_distance", *flat, p=2.0, eps=0.0, keepdim=False)


@api("cdist")
def _cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Call:
    return _call("torch.cdist", x1, x2, p=float(p))


@api("tensordot")
def _tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Call:
    rank, other = a.array.ndim, b.array.ndim
    if isinstance(dims, int):
        first, second = list(range(rank - dims, rank)), list(range(dims))
    else:
        first, second = ([int(axis) % size for axis in axes] for axes, size in zip(dims, (rank, other), strict=True))
    kept = [axis for axis in range(rank) if axis not in first], [axis for axis in range(other) if axis not in second]
    inner = prod(a.array.shape[axis] for axis in first)
    left = a.array.transpose([*kept[0], *first]).reshape(-1, inner)
    right = b.array.transpose([*second, *kept[1]]).reshape(inner, -1)
    shape = [a.array.shape[axis] for axis in kept[0]] + [b.array.shape[axis] for axis in kept[1]]
    return _call("torch.MatMulV2", replace(a, array=left), replace(b, array=right), shape=shape)


@api("frobenius_norm")
def _frobenius_norm(input: Any, dim: Any = (), keepdim: bool = False) -> Call:
    return _vector_norm(input, 2, list(dim), keepdim)


@api("matrix_norm")
def _matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Call:
    _plain(ord=None if ord == "fro" else ord)
    return _vector_norm(A, 2, list(dim), keepdim, dtype=dtype)


@api("kron")
def _kron(input: Any, other: Any) -> Call:
    a, b = input.array, other.array
    if a.ndim != 2 or b.ndim != 2:
        raise NotComputedError("shape", name="input", shape=a.shape)
    check_size([a.size, b.size])
    shape = (a.shape[0], b.shape[0], a.shape[1], b.shape[1])
    left, right = (
        np.broadcast_to(array, shape).reshape(shape[0] * shape[1], -1)
        for array in (a[:, None, :, None], b[None, :, None, :])
    )
    return _call("Mul", replace(input, array=left), replace(other, array=right))


@api("searchsorted")
def _searchsorted(sorted_sequence: Any, input: Any, *, right: bool = False, **options: Any) -> Call:
    if sorted_sequence.array.ndim != 1:
        raise NotComputedError("shape", name="sorted_sequence", shape=sorted_sequence.array.shape)
    value = _tensor(input).array
    return _new(np.asarray(np.searchsorted(sorted_sequence.array, value, "right" if right else "left"), np.int64))


@api("bucketize")
def _bucketize(input: Any, boundaries: Any, *, right: bool = False, **options: Any) -> Call:
    return _searchsorted(boundaries, input, right=right)


@api("bincount")
def _bincount(input: Any, weights: Any = None, minlength: int = 0) -> Call:
    _plain(weights=weights)
    return _new(np.bincount(input.array, minlength=int(minlength)).astype(np.int64))


@api("isin")
def _isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Call:
    x = _tensor(elements)
    return _moved(x, np.isin(x.array, _tensor(test_elements).array, invert=bool(invert)))


@api("_softmax_backward_data")
def _softmax_backward_data(grad_output: Any, output: Any, dim: int, input_dtype: Any = None) -> Call:
    return _call("SoftmaxGrad", output, grad_output, axes=[int(dim)])


# --- shapes -----------------------------------------------------------------------------------------------------------


for _name, _split in (("hsplit", np.hsplit), ("vsplit", np.vsplit), ("dsplit", np.dsplit)):
    _APIS[_name] = partial(
        lambda split, input, indices_or_sections=None, *, indices=None, sections=None: _parts(
            input, split(input.array, next(x for x in (indices_or_sections, indices, sections) if x is not None))
        ),
        _split,
    )
_APIS["unsafe_split_with_sizes"] = _APIS["split_with_sizes"]
_APIS["narrow_copy"] = _APIS["narrow"]


@api("diag_embed")
def _diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Call:
    x = input.array
    size = x.shape[-1] + abs(offset)
    check_size([*x.shape[:-1], size, size])
    y = np.zeros((*x.shape[:-1], size, size), x.dtype)
    places = np.arange(x.shape[-1])
    y[..., places - min(offset, 0), places + max(offset, 0)] = x
    return _moved(input, np.moveaxis(y, (-2, -1), (dim1, dim2)))


@api("diagflat")
def _diagflat(input: Any, offset: int = 0) -> Call:
    check_size([input.array.size + abs(offset)] * 2)
    return _moved(input, np.diagflat(input.array, offset))


@api("block_diag")
def _block_diag(*tensors: Any) -> Call:
    parts = [np.atleast_2d(tensor.array) for tensor in _flat(tensors)]
    shape = sum(part.shape[0] for part in parts), sum(part.shape[1] for part in parts)
    check_size(shape)
    y, row, column = np.zeros(shape, parts[0].dtype), 0, 0
    for part in parts:
        y[row : row + part.shape[0], column : column + part.shape[1]] = part
        row, column = row + part.shape[0], column + part.shape[1]
    return _moved(_flat(tensors)[0], y)


@api("slice_scatter")
def _slice_scatter(
    input: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Call:
    y = input.array.copy()
    place: list[Any] = [slice(None)] * y.ndim
    place[dim] = slice(start, end, step)
    y[tuple(place)] = src.array
    return _moved(input, y)


@api("select_scatter")
def _select_scatter(input: Any, src: Any, dim: int, index: int) -> Call:
    y = input.array.copy()
    np.moveaxis(y, dim, 0)[index] = src.array
    return _moved(input, y)


@api("sum_to_size")
def _sum_to_size(input: Any, *size: Any) -> Call:
    shape = [int(each) for each in _flat(size)]
    lead = input.array.ndim - len(shape)
    axes = list(range(lead)) + [
        at + lead for at, own in enumerate(shape) if own == 1 and input.array.shape[at + lead] != 1
    ]
    if not axes:
        return _moved(input, input.array)
    if lead not in (0, len(axes)):
        raise NotComputedError("no_variant", name="size", value=str(shape))
    return _call("ReduceSumD", input, axes=axes, keep_dims=lead == 0)


# --- convolution and images -------------------------------------------------------------------------------------------


@api("convolution", "_convolution", "npu_convolution")
def _convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: Any = False,
    output_padding: Any = 0, groups: int = 1, *rest: Any,
) -> Call:  # fmt: skip
    rank = weight.array.ndim - 2
    if isinstance(transposed, int) and not isinstance(transposed, bool):  # npu_convolution has the groups here
        transposed, groups = False, transposed
    if transposed:
        return _APIS[f"conv_transpose{rank}d"](input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _APIS[f"conv{rank}d"](input, weight, bias, stride, padding, dilation, groups)


@api("npu_conv2d", "npu_conv3d")
def _npu_conv(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Call:
    return _convolution(input, weight, bias, stride, padding, dilation, False, 0, groups)


@api("npu_conv_transpose2d", "npu_convolution_transpose")
def _npu_conv_transpose(
    input: Any, weight: Any, bias: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int
) -> Call:
    return _convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@api("grid_sample")
def _grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Call:
    return _call(
        "torch.grid_sample", input, grid, mode=mode, padding_mode=padding_mode, align_corners=bool(align_corners)
    )


@api("fold")
def _fold(input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Call:
    if input.array.ndim != 3:
        raise NotComputedError("axis_count", name="input", number=input.array.ndim, limit=3)
    return _call(
        "torch.fold", input, output_size=_ints(output_size, 2), kernel_size=_ints(kernel_size, 2),
        dilation=_ints(dilation, 2), padding=_ints(padding, 2), stride=_ints(stride, 2),
    )  # fmt: skip


@api("embedding_bag")
def _embedding_bag(
    input: Any, weight: Any, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: Any = None,
) -> Call:  # fmt: skip
    _plain(max_norm=max_norm, include_last_offset=include_last_offset, padding_idx=padding_idx)
    return _call("torch.embedding_bag", input, weight, offsets, per_sample_weights, mode=mode)


# --- losses -----------------------------------------------------------------------------------------------------------


@api("margin_ranking_loss")
def _margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0, size_average: Any = None, reduce: Any = None,
    reduction: Any = "mean",
) -> Call:  # fmt: skip
    return _call("torch.margin_ranking_loss", input1, input2, _real(target), margin=float(margin),
                 reduction=_reduction(reduction))  # fmt: skip


def _reduction(value: Any) -> Any:
    """The functions of torch itself have a number for it."""
    return {0: "none", 1: "mean", 2: "sum"}.get(value, value) if isinstance(value, int) else value


@api("soft_margin_loss")
def _soft_margin_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: Any = "mean"
) -> Call:
    return _call("torch.soft_margin_loss", input, _real(target), reduction=_reduction(reduction))


@api("Functional.hinge_embedding_loss")
def _hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: Any = "mean"
) -> Call:
    return _call("torch.hinge_embedding_loss", input, _real(target), margin=float(margin), reduction=reduction)


@api("Functional.poisson_nll_loss")
def _poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, size_average: Any = None, eps: float = 1e-8,
    reduce: Any = None, reduction: str = "mean",
) -> Call:  # fmt: skip
    _plain(full=full)
    return _call("torch.poisson_nll_loss", input, _real(target), log_input=bool(log_input), eps=float(eps),
                 reduction=reduction)  # fmt: skip


@api("gaussian_nll_loss")
def _gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Call:
    _plain(full=full)
    return _call("torch.gaussian_nll_loss", input, target, _like(var, input), eps=float(eps), reduction=reduction)


# --- cells and norms --------------------------------------------------------------------------------------------------


@api("lstm_cell")
def _lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Call:
    return _call("torch.lstm_cell", input, *hx, w_ih, w_hh, b_ih, b_hh)


@api("gru_cell")
def _gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Call:
    return _call("torch.gru_cell", input, hx, w_ih, w_hh, b_ih, b_hh)


@api("native_group_norm")
def _native_group_norm(input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float) -> Call:
    return _APIS["group_norm"](input, int(group), weight, bias, float(eps))


# --- torch_npu --------------------------------------------------------------------------------------------------------


@api("npu_group_norm_silu", "npu_group_norm_swish")
def _npu_group_norm_silu(input: Any, weight: Any, bias: Any, group: int, eps: float = 1e-5) -> Call:
    return _call("torch.npu_group_norm_silu", input, weight, bias, group=int(group), eps=float(eps))


@api("npu_geglu")
def _npu_geglu(self: Any, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> Call:
    how = "tanh" if approximate else "none"
    return _call("torch.npu_geglu", self, dim=int(dim), approximate=how, first=bool(activate_left))


@api("npu_gelu_mul")
def _npu_gelu_mul(input: Any, *, approximate: str = "none") -> Call:
    return _call("torch.npu_geglu", input, dim=-1, approximate=approximate, first=True)


@api("npu_apply_rotary_pos_emb")
def _npu_apply_rotary_pos_emb(
    query: Any, key: Any, cos: Any, sin: Any, layout: Any = "BSH", rotary_mode: str = "half"
) -> Call:
    rotary = _APIS["npu_rotary_mul"]
    return _each([rotary(tensor, cos, sin, rotary_mode) for tensor in (query, key)])


@api("npu_cross_entropy_loss")
def _npu_cross_entropy_loss(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, lse_square_scale_for_zloss: float = 0.0, return_zloss: bool = False,
) -> Call:  # fmt: skip
    _plain(return_zloss=return_zloss, lse_square_scale_for_zloss=lse_square_scale_for_zloss or None)
    return _APIS["cross_entropy"](
        input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


@api("npu_apply_adam")
def _npu_apply_adam(
    beta1_power: float, beta2_power: float, lr: float, beta1: float, beta2: float, epsilon: float, grad: Any,
    use_locking: bool, use_nesterov: bool, *, out: Any,
) -> Call:  # fmt: skip
    rates = (float(number) for number in (beta1_power, beta2_power, lr, beta1, beta2, epsilon))
    return _call("ApplyAdam", *out, *rates, grad, use_nesterov=bool(use_nesterov))


@api("npu_anti_quant")
def _npu_anti_quant(x: Any, scale: Any, *, offset: Any = None, dst_dtype: Any = None, src_dtype: Any = None) -> Call:
    _plain(src_dtype=src_dtype)
    moved = _real(x) if offset is None else replace(_real(x), array=_real(x).array + offset.array)
    return _call("Mul", moved, scale)


@api("npu_quantize")
def _npu_quantize(self: Any, scales: Any, zero_points: Any, dtype: Any, axis: int = 1, div_mode: bool = True) -> Call:
    from precision_tool.lib.ops.base import OutputSpec

    factors = scales if div_mode else replace(scales, array=1 / scales.array)
    zeros = replace(scales, array=np.zeros(1)) if zero_points is None else _real(zero_points)
    name = _type_name(dtype).removeprefix("q")
    return _call("Quantize", self, factors, zeros, axis=int(axis), outputs=(OutputSpec(dtype=name),))


for _word in ("max", "min"):
    _APIS[f"npu_{_word}"] = lambda self, dim, keepdim=False, _word=_word: _APIS[_word](self, dim, keepdim)
_APIS["npu_sort_v2"] = lambda self, dim=-1, descending=False: _APIS["sort"](self, dim, descending)
_APIS["npu_reshape"] = lambda self, shape, can_refresh=False: _APIS["reshape"](self, shape)
_APIS["npu_broadcast"] = _APIS["broadcast_to"]


@api("npu_slice")
def _npu_slice(self: Any, offsets: Sequence[int], size: Sequence[int]) -> Call:
    return _moved(self, self.array[tuple(slice(at, at + count) for at, count in zip(offsets, size, strict=True))])


@api("npu_pad")
def _npu_pad(input: Any, paddings: Sequence[int]) -> Call:
    pairs = list(zip(paddings[::2], paddings[1::2], strict=True))
    check_size([size + sum(pair) for size, pair in zip(input.array.shape, pairs, strict=True)])
    return _moved(input, np.pad(input.array, pairs))


@api("npu_one_hot")
def _npu_one_hot(input: Any, num_classses: int = -1, depth: int = 1, on_value: Any = 1, off_value: Any = 0) -> Call:
    check_size([*input.array.shape, depth])
    return _moved(input, np.where(input.array[..., None] == np.arange(depth), float(on_value), float(off_value)))


@api("npu_moe_gating_top_k")
def _npu_moe_gating_top_k(
    x: Any, k: int, *, bias: Any = None, k_group: int = 1, group_count: int = 1, group_select_mode: int = 0,
    renorm: int = 0, norm_type: int = 0, out_flag: bool = False, routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Call:  # fmt: skip
    return _call(
        "torch.npu_moe_gating_top_k", x, bias, k=int(k), k_group=int(k_group), group_count=int(group_count),
        group_select_mode=int(group_select_mode), renorm=int(renorm), norm_type=int(norm_type),
        routed_scaling_factor=float(routed_scaling_factor), eps=float(eps),
    )  # fmt: skip


@api("npu_moe_compute_expert_tokens")
def _npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Any, num_expert: int) -> Call:
    """How many rows there are up to each expert."""
    check_size([num_expert])
    counts = np.searchsorted(sorted_expert_for_source_row.array, np.arange(num_expert), "right")
    return _new(counts.astype(np.int32))


@api("npu_moe_init_routing")
def _npu_moe_init_routing(x: Any, row_idx: Any, expert_idx: Any, active_num: int) -> Call:
    """Rows in the order of their experts, where each went, and the experts in order."""
    rows, k = len(x.array), expert_idx.array.shape[-1]
    experts = expert_idx.array.reshape(-1)
    order = np.argsort(experts, kind="stable")
    source = row_idx.array.reshape(-1)[order]
    moved = np.zeros(source.shape, np.int32)
    moved[source] = np.arange(len(source))
    taken = x.array[source[: min(int(active_num), rows) * k] % rows]
    return _each([_moved(x, taken), _new(moved), _new(experts[order].astype(np.int32))])


@api("npu_moe_finalize_routing")
def _npu_moe_finalize_routing(
    expanded_permuted_rows: Any, skip1: Any, skip2: Any, bias: Any, scales: Any, expanded_src_to_dst_row: Any,
    export_for_source_row: Any, drop_pad_mode: int = 0,
) -> Call:  # fmt: skip
    return _call(
        "torch.npu_moe_finalize_routing", expanded_permuted_rows, skip1, skip2, bias, scales, expanded_src_to_dst_row,
        export_for_source_row, drop_pad_mode=int(drop_pad_mode or 0),
    )  # fmt: skip


@api("npu_moe_token_permute")
def _npu_moe_token_permute(
    tokens: Any, indices: Any, num_out_tokens: int | None = None, padded_mode: bool = False
) -> Call:
    """Rows in the order of their experts, and where each went."""
    _plain(padded_mode=padded_mode)
    k = indices.array.shape[-1] if indices.array.ndim > 1 else 1
    order = np.argsort(indices.array.reshape(-1), kind="stable")
    count = num_out_tokens or len(order)
    places = np.argsort(order, kind="stable").astype(np.int32)
    return _each([_moved(tokens, tokens.array[order[:count] // k]), _new(places)])


@api("npu_moe_token_unpermute")
def _npu_moe_token_unpermute(
    permuted_tokens: Any, sorted_indices: Any, probs: Any = None, padded_mode: bool = False, restore_shape: Any = None
) -> Call:
    _plain(padded_mode=padded_mode)
    return _call("torch.npu_moe_token_unpermute", permuted_tokens, sorted_indices, probs)


# --- MindSpore --------------------------------------------------------------------------------------------------------

#: Names of mindspore.ops and mint for functions of PyTorch with the same arguments. `inv` of mindspore.ops alone is of
#: each element: Torch.inv is torch.linalg.inv, of matrices, as msprobe leaves `linalg.` out of names.
_OF_MINDSPORE = {
    "add_ex": "add", "sub_ex": "sub", "sqrt_ex": "sqrt", "mean_ex": "mean", "baddbmm_ex": "baddbmm",
    "batch_norm_ex": "batch_norm", "max_pool2d_ex": "max_pool2d", "softmax_ex": "softmax", "one_hot_ext": "one_hot",
    "permute_ex": "permute", "cat_ex": "cat", "flip_ex": "flip", "any_ex": "any", "floor_mod": "remainder",
    "floor_div": "floor_divide", "dense": "linear", "gather_elements": "gather", "expand_dims": "unsqueeze",
    "rotary_position_embedding": "npu_rotary_mul", "bce_with_logits": "binary_cross_entropy_with_logits",
    "Functional.inv": "reciprocal", "addn": "_added_all", "tensor_dot": "tensordot", "clip_by_value": "clamp",
    "cast": "to", "assign": "copy_", "assign_add": "add", "assign_sub": "sub", "gather_d": "gather",
}  # fmt: skip


@api("_added_all")
def _added_all(x: Any) -> Call:
    return _call("AddN", *x)


for _name, _same in _OF_MINDSPORE.items():
    if _same in _APIS and _name not in _APIS:
        _APIS[_name] = _APIS[_same]
