"""Calls of PyTorch's functions with shapes and arguments drawn at random: for each name a maker of arguments."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from opvalues import Array, values, whole

Arguments = tuple[list[Any], dict[str, Any]]


class Make:
    """Draws sizes, choices and tensors."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def size(self, low: int = 1, high: int = 5) -> int:
        """Return a number from `low` to `high`, both included."""
        return self.random.randint(low, high)

    def shape(self, low: int = 1, high: int = 3) -> tuple[int, ...]:
        """Return a shape with so many axes."""
        return tuple(self.size() for _ in range(self.size(low, high)))

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[self.random.randrange(len(choices))]

    def x(self, *shape: int, domain: str = "real") -> Array:
        """Return values of a shape, in float64."""
        return values(shape, self.random.randrange(2**31), domain)

    def like(self, domain: str = "real") -> Array:
        """Return values of any shape."""
        return self.x(*self.shape(), domain=domain)

    def whole(self, *shape: int, low: int = -9, high: int = 10) -> Array:
        """Return whole numbers from `low` up to but not `high`."""
        return whole(shape, self.random.randrange(2**31), low, high, "int64")

    def mask(self, *shape: int) -> Array:
        """Return bools."""
        return np.asarray(self.x(*shape) > 0)

    def pair(self) -> tuple[Array, Array]:
        """Return tensors that broadcast."""
        shape = self.shape()
        other = tuple(self.pick(size, size, 1) for size in shape)[self.pick(0, 0, 1) :]
        return self.x(*shape), self.x(*other)

    def axis(self, x: Array) -> int:
        """Return an axis, from either end."""
        return self.size(-x.ndim, x.ndim - 1)

    def axes(self, x: Array) -> Any:
        """Return some axes, or None for all."""
        some = self.random.sample(range(x.ndim), self.size(1, x.ndim))
        return self.pick(None, self.axis(x), some)

    def permuted(self, count: int) -> list[int]:
        """Return the axes in another order."""
        return self.random.sample(range(count), count)


Case = Callable[[Make], Arguments]
CASES: dict[str, list[Case]] = {}


def case(*apis: str) -> Callable[[Case], Case]:
    """Register a maker of arguments for some names."""

    def register(maker: Case) -> Case:
        for api in apis:
            CASES.setdefault(api, []).append(maker)
        return maker

    return register


def _simple() -> None:
    real = [
        "Torch.abs",
        "Torch.neg",
        "Torch.sign",
        "Torch.square",
        "Functional.relu",
        "Functional.relu6",
        "Torch.floor",
        "Torch.ceil",
        "Torch.trunc",
        "Torch.exp",
        "Torch.expm1",
        "Torch.sin",
        "Torch.cos",
        "Torch.atan",
        "Torch.tanh",
        "Torch.sigmoid",
        "Torch.erf",
        "Torch.erfc",
        "Functional.mish",
        "Functional.softsign",
        "Functional.logsigmoid",
        "Functional.hardswish",
        "Functional.selu",
        "Functional.silu",
        "Functional.gelu",
        "Functional.hardsigmoid",
        "Functional.hardtanh",
        "Functional.softplus",
        "Functional.elu",
        "Functional.celu",
        "Functional.leaky_relu",
        "Torch.isnan",
        "Torch.isfinite",
        "Torch.logical_not",
        "Tensor.__neg__",
        "Tensor.neg_",
        "Tensor.contiguous",
        "Tensor.clone",
        "Tensor.detach",
        "Torch.zeros_like",
        "Torch.ones_like",
        "Tensor.zero_",
        "Torch.round",
        "Torch.isinf",
        "Tensor.relu_",
        "Torch.flatten",
        "Torch.sum",
        "Torch.mean",
        "Torch.norm",
        "Torch.argmax",
        "Torch.argmin",
        "Torch.max",
        "Torch.min",
        "Torch.prod",
        "Torch.nonzero",
        "Torch.vector_norm",
    ]
    for api in real:
        CASES[api] = [lambda make: ([make.like()], {})]
    for api in ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "lgamma"]:
        CASES[f"Torch.{api}"] = [lambda make: ([make.like("positive")], {})]
        CASES[f"Tensor.{api}_"] = [lambda make: ([make.like("positive")], {})]
    for api in ["asin", "acos", "atanh"]:
        CASES[f"Torch.{api}"] = [lambda make: ([make.like("unit")], {})]
    two = "Torch.add Torch.sub Torch.mul Tensor.__add__ Tensor.__radd__ Tensor.__iadd__ Tensor.__sub__ Tensor.__rsub__ "
    two += (
        "Tensor.__isub__ Tensor.__mul__ Tensor.__rmul__ Tensor.__imul__ Torch.maximum Torch.minimum Torch.eq Torch.ne "
    )
    two += "Torch.lt Torch.le Torch.gt Torch.ge Tensor.__eq__ Tensor.__gt__ Tensor.add_ Tensor.mul_ Tensor.sub_"
    for api in two.split():
        CASES[api] = [
            lambda make: (list(make.pair()), {}),
            lambda make: ([make.whole(3, 4), make.whole(4)], {}),
        ]
        if "imum" not in api:
            CASES[api].append(lambda make: ([make.like(), make.pick(2, 0.5)], {}))
    for api in ["Torch.div", "Tensor.__truediv__", "Tensor.__rtruediv__", "Tensor.__itruediv__", "Tensor.div_"]:
        CASES[api] = [
            lambda make: ([make.x(3, 4, domain="nonzero"), make.x(4, domain="nonzero")], {}),
            lambda make: ([make.like("nonzero"), make.pick(3, 0.7)], {}),
        ]
    CASES["Torch.div"].append(lambda make: ([make.whole(3, 4), make.whole(4, low=1)], {}))
    for api in ["Torch.floor_divide", "Tensor.__floordiv__", "Torch.remainder", "Tensor.__mod__", "Torch.fmod"]:
        CASES[api] = [
            lambda make: ([make.like(), 0.7], {}),
            lambda make: ([make.whole(3, 4), make.whole(3, 4, low=1)], {}),
            lambda make: ([make.whole(3, 4), 3], {}),
        ]
    for api in ["Torch.pow", "Tensor.__pow__", "Tensor.pow_"]:
        CASES[api] = [
            lambda make: ([make.like("positive"), make.pick(2, 0.5, -1.5)], {}),
            lambda make: ([make.x(3, 4, domain="positive"), make.x(4)], {}),
        ]
    for api in ["Tensor.__and__", "Tensor.__or__", "Tensor.__xor__", "Torch.logical_and", "Torch.logical_or"]:
        CASES[api] = [
            lambda make: ([make.mask(3, 4), make.mask(4)], {}),
            lambda make: ([make.whole(3, 4), make.whole(4)], {}),
        ]
    CASES["Tensor.__invert__"] = [lambda make: ([make.mask(3, 4)], {}), lambda make: ([make.whole(3)], {})]


_simple()


@case("Torch.add", "Torch.sub", "Tensor.add_")
def _alpha(make: Make) -> Arguments:
    return list(make.pair()), {"alpha": make.pick(2, -0.5)}


@case("Tensor.__rpow__")
def _rpow(make: Make) -> Arguments:
    return [make.like(), 2.5], {}


@case("Torch.addcmul", "Torch.addcdiv", "Tensor.addcmul_", "Tensor.addcdiv_")
def _addc(make: Make) -> Arguments:
    return [make.x(3, 4), make.x(4), make.x(3, 4, domain="nonzero")], {"value": make.pick(1, -0.01, 2.5)}


@case("Torch.lerp", "Tensor.lerp_")
def _lerp(make: Make) -> Arguments:
    a, b = make.x(3, 4), make.x(3, 4)
    return [a, b, make.pick(0.1, 0.9, make.x(4))], {}


@case("Torch.where")
def _where(make: Make) -> Arguments:
    return [make.mask(3, 4), make.x(4), make.pick(make.x(3, 1), 0.5)], {}


@case("Torch.masked_fill", "Tensor.masked_fill_")
def _masked_fill(make: Make) -> Arguments:
    return [make.x(3, 4), make.mask(4), make.pick(-1e9, float("-inf"), 0)], {}


@case("Torch.clamp", "Tensor.clamp_")
def _clamp(make: Make) -> Arguments:
    low, high = make.pick((-1, 2), (None, 0.5), (0, None), (-0.5, 0.5))
    return [make.like()], {"min": low, "max": high}


@case("Torch.clamp_min", "Torch.clamp_max")
def _clamp_one(make: Make) -> Arguments:
    return [make.like(), 0.25], {}


@case("Functional.gelu")
def _gelu(make: Make) -> Arguments:
    return [make.like()], {"approximate": make.pick("none", "tanh")}


@case("Functional.leaky_relu", "Functional.elu", "Functional.celu")
def _sloped(make: Make) -> Arguments:
    return [make.like(), make.pick(0.3, 1.5)], {}


@case("Functional.softplus")
def _softplus(make: Make) -> Arguments:
    return [make.like()], {"beta": make.pick(1, 2.5), "threshold": make.pick(20, 1)}


@case("Functional.hardtanh")
def _hardtanh(make: Make) -> Arguments:
    return [make.like(), -0.5, 2.0], {}


@case("Functional.threshold")
def _threshold(make: Make) -> Arguments:
    return [make.like(), 0.3, -7.0], {}


@case("Functional.prelu")
def _prelu(make: Make) -> Arguments:
    x = make.x(2, 3, *make.shape(0, 2))
    return [x, make.x(make.pick(1, 3))], {}


@case("Functional.glu")
def _glu(make: Make) -> Arguments:
    return [make.x(2, 4, 6), make.pick(-1, 1)], {}


@case("Functional.softmax", "Functional.log_softmax", "Torch.softmax", "Torch.log_softmax", "Tensor.softmax",
      "Functional.softmin")  # fmt: skip
def _softmax(make: Make) -> Arguments:
    x = make.like()
    return [x, make.axis(x)], make.pick({}, {"dtype": "torch.float64"})


@case("Functional.softmax")
def _softmax_of_all_masked_but_some(make: Make) -> Arguments:
    x = make.x(3, 5)
    x[:, 2:] = -np.inf
    return [x], {"dim": -1}


@case("Functional.dropout")
def _dropout(make: Make) -> Arguments:
    return [make.like(), make.pick(0.0, 0.5)], {"training": False}


# --- matrices ---


@case("Functional.linear")
def _linear(make: Make) -> Arguments:
    many, few = make.size(), make.size()
    x, weight = make.x(*make.shape(0, 3), many), make.x(few, many)
    return make.pick([x, weight], [x, weight, make.x(few)]), {}


@case("Functional.linear")
def _linear_to_a_number(make: Make) -> Arguments:
    return [make.x(*make.shape(1, 2), 4), make.x(4)], {}


@case("Torch.matmul", "Tensor.__matmul__", "Tensor.matmul")
def _matmul(make: Make) -> Arguments:
    m, k, n = make.size(), make.size(), make.size()
    batch = make.shape(0, 2)
    left, right = make.pick(((m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)))
    left = (*batch, *left) if len(left) == 2 else left
    right = (*make.pick(batch, (), tuple(1 for _ in batch)), *right) if len(right) == 2 else right
    return [make.x(*left), make.x(*right)], {}


@case("Torch.bmm")
def _bmm(make: Make) -> Arguments:
    b, m, k, n = (make.size() for _ in range(4))
    return [make.x(b, m, k), make.x(b, k, n)], {}


def _one_of_each() -> None:
    CASES["Torch.mm"] = [lambda make: ([make.x(2, 3), make.x(3, 4)], {})]
    CASES["Torch.mv"] = [lambda make: ([make.x(2, 3), make.x(3)], {})]
    CASES["Torch.dot"] = [lambda make: ([make.x(3), make.x(3)], {})]
    CASES["Torch.outer"] = [lambda make: ([make.x(3), make.x(4)], {})]
    CASES["Torch.inner"] = [lambda make: ([make.x(2, 3), make.x(4, 3)], {})]


_one_of_each()


@case("Torch.addmm")
def _addmm(make: Make) -> Arguments:
    m, k, n = make.size(), make.size(), make.size()
    shape = make.pick((n,), (m, n), (1, n))
    return [make.x(*shape), make.x(m, k), make.x(k, n)], make.pick({}, {"beta": 0.5, "alpha": 2}, {"beta": 0})


@case("Torch.baddbmm")
def _baddbmm(make: Make) -> Arguments:
    b, m, k, n = (make.size() for _ in range(4))
    shape = make.pick((n,), (b, m, n), (1, n))
    return [make.x(*shape), make.x(b, m, k), make.x(b, k, n)], make.pick({}, {"beta": 0.5, "alpha": 2})


@case("Torch.einsum")
def _einsum(make: Make) -> Arguments:
    a, b = make.x(2, 3, 4), make.x(2, 4, 5)
    return make.pick(
        ["bij, bjk -> bik", a, b], ["bij,bjk->ik", [a, b]], ["...ij,...jk->...ik", a, b], ["bij->bji", a]
    ), {}  # fmt: skip


# --- convolution and pooling ---


def _convolutions(rank: int) -> None:
    @case(f"Functional.conv{rank}d", f"Torch.conv{rank}d")
    def conv(make: Make) -> Arguments:
        groups = make.pick(1, 1, 2)
        per_group, kernels = make.size(1, 2), groups * make.size(1, 2)
        kernel = [make.size(1, 3) for _ in range(rank)]
        dilation = make.pick(1, 2)
        space = [dilation * (size - 1) + 1 + make.size(0, 4) for size in kernel]
        x = make.x(2, groups * per_group, *space)
        weight, bias = make.x(kernels, per_group, *kernel), make.pick(None, make.x(kernels))
        stride = make.pick(1, [make.size(1, 2) for _ in range(rank)])
        padding = make.pick(0, [make.size(0, 2) for _ in range(rank)], "valid")
        return [x, weight, bias, stride, padding, dilation, groups], {}

    @case(f"Functional.conv{rank}d")
    def same(make: Make) -> Arguments:
        kernel = [make.size(1, 3) for _ in range(rank)]
        return [make.x(2, 3, *[5] * rank), make.x(4, 3, *kernel)], {"padding": "same", "dilation": make.pick(1, 2)}

    @case(f"Functional.conv_transpose{rank}d")
    def transposed(make: Make) -> Arguments:
        groups = make.pick(1, 2)
        kernel = [make.size(1, 3) for _ in range(rank)]
        weight = make.x(2 * groups, make.size(1, 2), *kernel)
        bias = make.pick(None, make.x(groups * weight.shape[1]))
        x = make.x(2, 2 * groups, *(make.size(2, 4) for _ in range(rank)))
        stride = make.size(1, 2)
        beyond = make.size(0, stride - 1)
        return [x, weight, bias], {"stride": stride, "output_padding": beyond, "groups": groups}


def _unbatched(make: Make) -> Arguments:
    return [make.x(3, 6, 5), make.x(4, 3, 3, 2), make.x(4)], {"padding": 1}


for _rank in (1, 2, 3):
    _convolutions(_rank)
CASES["Functional.conv2d"].append(_unbatched)


def _pools(rank: int) -> None:
    def options(make: Make) -> tuple[Array, list[int], dict[str, Any]]:
        kernel = [make.size(1, 3) for _ in range(rank)]
        x = make.x(*make.pick([2, 3], [3]), *(size + make.size(0, 4) for size in kernel))
        padding = [make.size(0, size // 2) for size in kernel]
        stride = make.pick(None, [make.size(1, 3) for _ in range(rank)])
        return x, kernel, {"stride": stride, "padding": padding}

    @case(f"Functional.max_pool{rank}d")
    def maximum(make: Make) -> Arguments:
        x, kernel, attrs = options(make)
        return [x, kernel], {**attrs, "ceil_mode": make.pick(False, True)}

    @case(f"Functional.avg_pool{rank}d")
    def average(make: Make) -> Arguments:
        x, kernel, attrs = options(make)
        return [x, kernel], {**attrs, "count_include_pad": make.pick(False, True)}

    @case(f"Functional.adaptive_avg_pool{rank}d", f"Functional.adaptive_max_pool{rank}d")
    def adaptive(make: Make) -> Arguments:
        x = make.x(*make.pick([2, 3], [3]), *(make.size(2, 7) for _ in range(rank)))
        return [x, make.pick(1, 2, [make.size(1, 3) for _ in range(rank)])], {}


for _rank in (1, 2, 3):
    _pools(_rank)


@case("Functional.interpolate")
def _interpolate(make: Make) -> Arguments:
    rank = make.size(1, 3)
    modes = ["nearest", "nearest-exact", "area", ["linear", "bilinear", "trilinear"][rank - 1]]
    mode = make.pick(*modes, *(["bicubic"] if rank == 2 else []))
    x = make.x(2, 3, *(make.size(2, 6) for _ in range(rank)))
    sizes = make.pick({"size": [make.size(1, 9) for _ in range(rank)]}, {"scale_factor": make.pick(2, 0.5, 1.5)})
    aligned = {"align_corners": make.pick(True, False)} if "linear" in mode or mode == "bicubic" else {}
    return [x], {"mode": mode, **sizes, **aligned}


@case("Functional.pad")
def _pad(make: Make) -> Arguments:
    mode = make.pick("constant", "reflect", "replicate", "circular")
    x = make.x(2, 3, 4, 5)
    sizes = [make.size(-1 if mode == "constant" else 0, 2) for _ in range(4)]
    return [x, sizes], {"mode": mode, **({"value": make.pick(0, 1.5)} if mode == "constant" else {})}


@case("Functional.pixel_shuffle")
def _pixel_shuffle(make: Make) -> Arguments:
    return [make.x(2, 8, 3, 2), 2], {}


@case("Functional.pixel_unshuffle")
def _pixel_unshuffle(make: Make) -> Arguments:
    return [make.x(2, 2, 4, 6), 2], {}


# --- norms ---


@case("Functional.layer_norm", "Torch.layer_norm", "Torch.native_layer_norm")
def _layer_norm(make: Make) -> Arguments:
    x = make.x(*make.shape(1, 2), 3, 4)
    last = list(x.shape[make.pick(-1, -2) :])
    return [x, last, make.pick(None, make.x(*last)), make.pick(None, make.x(*last)), 1e-3], {}


@case("Functional.rms_norm")
def _rms_norm(make: Make) -> Arguments:
    x = make.x(2, 3, 4)
    last = list(x.shape[make.pick(-1, -2) :])
    return [x, last], make.pick({}, {"weight": make.x(*last), "eps": 1e-3})


@case("Functional.batch_norm")
def _batch_norm(make: Make) -> Arguments:
    x = make.x(3, 4, *make.shape(0, 3))
    vectors = [make.x(4), make.x(4, domain="positive"), make.pick(None, make.x(4)), make.pick(None, make.x(4))]
    return [x, *vectors, make.pick(True, False), 0.1, 1e-3], {}


@case("Torch.batch_norm")
def _torch_batch_norm(make: Make) -> Arguments:
    x = make.x(3, 4, 2, 2)
    vectors = [make.x(4), make.x(4), make.x(4), make.x(4, domain="positive")]
    return [x, *vectors, make.pick(True, False), 0.1, 1e-3, False], {}


@case("Functional.instance_norm")
def _instance_norm(make: Make) -> Arguments:
    x = make.x(2, 3, *(make.size(2, 4) for _ in range(make.size(1, 3))))
    return [x], {"weight": make.pick(None, make.x(3)), "bias": make.pick(None, make.x(3)), "eps": 1e-3}


@case("Functional.group_norm")
def _group_norm(make: Make) -> Arguments:
    x = make.x(2, 6, *(make.size(2, 4) for _ in range(make.size(0, 3))))
    return [x, make.pick(1, 2, 3), make.pick(None, make.x(6)), make.pick(None, make.x(6)), 1e-3], {}


@case("Functional.normalize")
def _normalize(make: Make) -> Arguments:
    return [make.x(2, 3, 4)], {"p": make.pick(2.0, 1), "dim": make.pick(1, -1)}


@case("Functional.cosine_similarity")
def _cosine(make: Make) -> Arguments:
    return [make.x(2, 3, 4), make.x(2, 3, 4)], {"dim": make.pick(1, -1)}


# --- attention, embedding ---


@case("Functional.scaled_dot_product_attention")
def _attention(make: Make) -> Arguments:
    heads, rows, columns = make.pick(2, 4), make.size(), make.size()
    shared = make.pick(1, 2)
    query = make.x(2, heads, rows, 6)
    key, value = make.x(2, heads // shared, columns, 6), make.x(2, heads // shared, columns, 6)
    bools = make.mask(rows, columns)
    bools[:, 0] = True
    mask = make.pick({}, {"is_causal": True}, {"attn_mask": bools}, {"attn_mask": make.x(2, 1, rows, columns)})
    more = {"enable_gqa": True} if shared > 1 else {}
    return [query, key, value], {**mask, **more, **make.pick({}, {"scale": 0.3})}


@case("Functional.embedding")
def _embedding(make: Make) -> Arguments:
    return [make.whole(*make.shape(), low=0, high=6), make.x(6, 4)], make.pick({}, {"padding_idx": 2})


@case("Functional.one_hot")
def _one_hot(make: Make) -> Arguments:
    return [make.whole(3, 2, low=0, high=5), make.pick(5, 7)], {}


# --- losses ---


@case("Functional.cross_entropy", "Functional.nll_loss")
def _cross_entropy(make: Make) -> Arguments:
    rest = make.shape(0, 2)
    x, target = make.x(3, 5, *rest), make.whole(3, *rest, low=0, high=5)
    return [x, target], {
        "weight": make.pick(None, make.x(5, domain="positive")),
        "reduction": make.pick("mean", "sum", "none"),
    }


@case("Functional.cross_entropy")
def _smoothed(make: Make) -> Arguments:
    x, target = make.x(6, 5), make.whole(6, low=0, high=5)
    target[:2] = [1, 2]
    return [x, target], {"label_smoothing": 0.1, "ignore_index": 1}


@case("Functional.binary_cross_entropy")
def _bce(make: Make) -> Arguments:
    x = (make.x(3, 4, domain="unit") + 1) / 2
    x[0, :2] = 0.0, 1.0
    return [x, (make.x(3, 4, domain="unit") + 1) / 2], {
        "weight": make.pick(None, make.x(3, 4)), "reduction": make.pick("mean", "sum", "none"),
    }  # fmt: skip


@case("Functional.binary_cross_entropy_with_logits")
def _logits(make: Make) -> Arguments:
    target = (make.x(3, 4, domain="unit") + 1) / 2
    return [make.x(3, 4), target], {
        "weight": make.pick(None, make.x(4)), "pos_weight": make.pick(None, make.x(4, domain="positive")),
        "reduction": make.pick("mean", "sum", "none"),
    }  # fmt: skip


@case("Functional.mse_loss", "Functional.l1_loss", "Functional.smooth_l1_loss", "Functional.huber_loss")
def _differences(make: Make) -> Arguments:
    return [make.x(3, 4), make.x(3, 4)], {"reduction": make.pick("mean", "sum", "none")}


@case("Functional.smooth_l1_loss")
def _smooth_l1(make: Make) -> Arguments:
    return [make.x(3, 4), make.x(3, 4)], {"beta": 0.5}


@case("Functional.huber_loss")
def _huber(make: Make) -> Arguments:
    return [make.x(3, 4), make.x(3, 4)], {"delta": 1.5}


@case("Functional.kl_div")
def _kl_div(make: Make) -> Arguments:
    options = {"reduction": make.pick("mean", "sum", "none", "batchmean"), "log_target": make.pick(False, True)}
    return [make.x(3, 4), make.x(3, 4, domain="positive")], options


# --- reductions ---


@case("Torch.sum", "Torch.mean", "Torch.amax", "Torch.amin", "Tensor.sum", "Tensor.mean", "Torch.logsumexp")
def _reduced(make: Make) -> Arguments:
    x = make.like()
    axes = make.axes(x)
    return [x, 0 if axes is None else axes], {"keepdim": make.pick(False, True)}


@case("Torch.sum", "Torch.cumsum")
def _of_whole_numbers(make: Make) -> Arguments:
    return [make.whole(3, 4), 1], {}


@case("Torch.var", "Torch.std", "Torch.var_mean", "Torch.std_mean", "Tensor.var")
def _deviation(make: Make) -> Arguments:
    x = make.x(3, 4, 5)
    return [x], {"dim": make.axes(x), "keepdim": make.pick(False, True), "correction": make.pick(0, 1)}


@case("Torch.var", "Torch.std")
def _biased(make: Make) -> Arguments:
    return make.pick([make.x(3, 4), False], [make.x(3, 4), 1, False]), {}


@case("Torch.norm", "Torch.vector_norm")
def _norm(make: Make) -> Arguments:
    x = make.x(3, 4)
    return [x, make.pick(2, 1, 3, float("inf")), make.pick(0, -1)], {"keepdim": make.pick(False, True)}


@case("Torch.max", "Torch.min", "Torch.argmax", "Torch.argmin", "Tensor.max")
def _extreme(make: Make) -> Arguments:
    x = make.like()
    return [x, make.axis(x)], {"keepdim": make.pick(False, True)}


@case("Torch.max", "Torch.min")
def _extreme_of_two(make: Make) -> Arguments:
    return list(make.pair()), {}


@case("Torch.all", "Torch.any")
def _all(make: Make) -> Arguments:
    return make.pick([make.mask(3, 4)], [make.mask(3, 4), 1]), {}


@case("Torch.cumsum", "Torch.cumprod", "Tensor.cumsum")
def _cumulated(make: Make) -> Arguments:
    x = make.like()
    return [x, make.axis(x)], {}


@case("Torch.topk")
def _topk(make: Make) -> Arguments:
    return [make.x(3, 5, 4), 2], {"dim": make.pick(-1, 1), "largest": make.pick(True, False)}


@case("Torch.sort", "Torch.argsort")
def _sort(make: Make) -> Arguments:
    x = make.like()
    return [x], {"dim": make.axis(x), "descending": make.pick(False, True), "stable": True}


@case("Torch.count_nonzero")
def _count(make: Make) -> Arguments:
    return make.pick([make.x(3, 4)], [make.whole(3, 4), 1]), {}


# --- moves ---


@case("Torch.reshape")
def _reshape(make: Make) -> Arguments:
    return [make.x(2, 3, 4), make.pick([6, 4], [-1], [2, -1, 2])], {}


@case("Tensor.view", "Tensor.reshape")
def _view(make: Make) -> Arguments:
    return [make.x(2, 3, 4), *make.pick([6, 4], [[24]], [-1, 2])], {}


@case("Torch.flatten", "Tensor.flatten")
def _flatten(make: Make) -> Arguments:
    return [make.x(2, 3, 4, 5), *make.pick([], [1], [1, 2], [-2, -1])], {}


@case("Torch.squeeze", "Tensor.squeeze_")
def _squeeze(make: Make) -> Arguments:
    return [make.x(2, 1, 3, 1), *make.pick([], [1], [0], [-1])], {}


@case("Torch.unsqueeze")
def _unsqueeze(make: Make) -> Arguments:
    x = make.like()
    return [x, make.size(-x.ndim - 1, x.ndim)], {}


@case("Torch.permute")
def _permute(make: Make) -> Arguments:
    x = make.like()
    return [x, make.permuted(x.ndim)], {}


@case("Tensor.permute")
def _tensor_permute(make: Make) -> Arguments:
    return [make.x(2, 3, 4), *make.permuted(3)], {}


@case("Torch.transpose", "Tensor.transpose", "Torch.swapaxes")
def _transpose(make: Make) -> Arguments:
    return [make.x(2, 3, 4), make.size(-3, 2), make.size(-3, 2)], {}


def _more_moves() -> None:
    table: dict[str, Case] = {
        "Torch.t": lambda make: ([make.x(2, 3)], {}),
        "Torch.movedim": lambda make: ([make.x(2, 3, 4), 0, make.pick(1, -1)], {}),
        "Tensor.expand": lambda make: ([make.x(3, 1), *make.pick([2, 3, 4], [-1, 4])], {}),
        "Tensor.expand_as": lambda make: ([make.x(3, 1), make.x(2, 3, 4)], {}),
        "Tensor.repeat": lambda make: ([make.x(3, 2), *make.pick([2, 1], [2, 1, 3])], {}),
        "Torch.tile": lambda make: ([make.x(3, 2), make.pick([2], [2, 1], [2, 1, 3])], {}),
        "Torch.repeat_interleave": lambda make: ([make.x(3, 2), 2], make.pick({}, {"dim": 1})),
        "Torch.cat": lambda make: ([[make.x(2, 3), make.x(2, 3)], make.pick(0, 1, -1)], {}),
        "Torch.stack": lambda make: ([[make.x(2, 3), make.x(2, 3)], make.pick(0, 1, -1)], {}),
        "Torch.split": lambda make: ([make.x(5, 4), make.pick(2, 3, [1, 4])], {}),
        "Tensor.split": lambda make: ([make.x(4, 5), make.pick(2, [2, 3])], {"dim": -1}),
        "Torch.chunk": lambda make: ([make.x(5, 4), make.pick(2, 3, 4)], {}),
        "Tensor.chunk": lambda make: ([make.x(3, 6), 3, -1], {}),
        "Torch.tensor_split": lambda make: ([make.x(5, 4), make.pick(2, 3)], {}),
        "Torch.unbind": lambda make: ([make.x(2, 3, 4), make.size(-3, 2)], {}),
        "Torch.narrow": lambda make: ([make.x(5, 4), 0, make.pick(1, -3), 2], {}),
        "Torch.select": lambda make: ([make.x(5, 4), 1, make.pick(1, -1)], {}),
        "Torch.flip": lambda make: ([make.x(2, 3, 4), make.pick([0], [1, 2])], {}),
        "Torch.roll": lambda make: ([make.x(3, 4), *make.pick([1], [1, 0], [[1, -2], [0, 1]])], {}),
        "Torch.tril": lambda make: ([make.x(3, 4), make.size(-1, 1)], {}),
        "Torch.triu": lambda make: ([make.x(2, 3, 4), make.size(-1, 1)], {}),
        "Torch.diagonal": lambda make: ([make.x(3, 4, 2), make.size(-1, 1)], make.pick({}, {"dim1": 1, "dim2": 2})),
        "Torch.diag": lambda make: ([make.pick(make.x(3), make.x(3, 4)), make.size(-1, 1)], {}),
        "Torch.rot90": lambda make: ([make.x(3, 4), make.size(0, 3)], {}),
        "Torch.full_like": lambda make: ([make.x(3, 4), 2.5], {}),
        "Tensor.copy_": lambda make: ([make.x(3, 4), make.x(4)], {}),
        "Tensor.fill_": lambda make: ([make.x(3, 4), 1.5], {}),
        "Tensor.unflatten": lambda make: ([make.x(6, 4), 0, make.pick([2, 3], [-1, 3])], {}),
        "Tensor.reshape_as": lambda make: ([make.x(6, 4), make.x(2, 12)], {}),
        "Tensor.__getitem__": lambda make: (
            [
                make.x(4, 5, 6),
                make.pick(
                    1, -1, slice(1, None), slice(None, None, 2), (slice(None), 2), (Ellipsis, slice(1, 3)),
                    (None, slice(None), -1), np.array([2, 0]), (np.array([1, 3]), np.array([0, -1])),
                    (slice(None), np.array([[1], [2]])), make.mask(4), make.mask(4, 5), (0, 1, 2),
                    (0, slice(None), np.array([1, 3])),
                ),
            ],
            {},
        ),
        "Torch.index_select": lambda make: ([make.x(4, 5), make.pick(0, 1), make.whole(3, low=0, high=4)], {}),
        "Torch.gather": lambda make: ([make.x(4, 5), make.pick(0, 1), make.whole(3, 5, low=0, high=4)], {}),
        "Torch.take_along_dim": lambda make: ([make.x(4, 5), make.whole(4, 2, low=0, high=5), 1], {}),
        "Torch.take": lambda make: ([make.x(4, 5), make.whole(3, low=0, high=20)], {}),
        "Torch.masked_select": lambda make: ([make.x(4, 5), make.mask(4, 5)], {}),
        "Torch.scatter": lambda make: (
            [make.x(4, 5), 1, np.array([[0, 3, 2], [4, 1, 0]]), make.pick(make.x(3, 4), 1.5)], {}
        ),
        "Torch.scatter_add": lambda make: ([make.x(4, 5), 0, make.whole(3, 5, low=0, high=4), make.x(4, 5)], {}),
        "Torch.scatter_reduce": lambda make: (
            [make.x(4, 5), 0, make.whole(3, 5, low=0, high=4), make.x(4, 5), make.pick("sum", "amax", "amin")], {}
        ),
        "Torch.index_add": lambda make: ([make.x(4, 5), 0, make.whole(3, low=0, high=4), make.x(3, 5)], {}),
        "Tensor.index_add_": lambda make: ([make.x(4, 5), 1, make.whole(3, low=0, high=5), make.x(4, 3)], {}),
        "Torch.index_copy": lambda make: ([make.x(4, 5), 0, np.array([2, 0]), make.x(2, 5)], {}),
        "Torch.index_fill": lambda make: ([make.x(4, 5), 1, np.array([2, 0]), 1.5], {}),
        "Torch.index_put": lambda make: (
            [make.x(4, 5), [np.array([0, 2]), np.array([1, -1])], make.x(2)], {"accumulate": make.pick(False, True)}
        ),
        "Torch.masked_scatter": lambda make: ([make.x(4, 5), make.mask(4, 5), make.x(20)], {}),
        "Tensor.to": lambda make: ([make.like(), make.pick("torch.float32", "torch.float64", "torch.int64")], {}),
        "Tensor.float": lambda make: ([make.whole(3, 4)], {}),
        "Tensor.long": lambda make: ([make.like()], {}),
        "Tensor.bool": lambda make: ([make.whole(3, 4)], {}),
        "Tensor.type_as": lambda make: ([make.whole(3, 4), make.x(2)], {}),
        "Tensor.half": lambda make: ([make.like()], {}),
        "Torch._foreach_norm": lambda make: ([[make.x(3, 4), make.x(2)]], {}),
        "Torch._foreach_add": lambda make: ([[make.x(3, 4), make.x(2)], make.pick(1.5, [1.5, 2.5])], {}),
        "Torch._foreach_mul_": lambda make: ([[make.x(3, 4), make.x(2)], 0.9], {}),
        "Torch._foreach_sub": lambda make: ([[make.x(3, 4), make.x(2)], [make.x(3, 4), make.x(2)]], {"alpha": 2}),
        "Torch._foreach_div": lambda make: ([[make.x(3, 4), make.x(2)], 3.0], {}),
        "Torch._foreach_sqrt": lambda make: ([[make.x(3, 4, domain="positive")]], {}),
        "Torch._foreach_lerp": lambda make: ([[make.x(3, 4)], [make.x(3, 4)], 0.1], {}),
        "Torch._foreach_addcmul": lambda make: ([[make.x(3)], [make.x(3)], [make.x(3)], 0.1], {}),
        "Torch._foreach_addcdiv": lambda make: ([[make.x(3)], [make.x(3)], [make.x(3, domain="nonzero")], [0.1]], {}),
    }  # fmt: skip
    for name, maker in table.items():
        CASES.setdefault(name, []).append(maker)


_more_moves()


def _recurrent(name: str) -> None:
    count = {"lstm": 4, "gru": 3}.get(name, 1)

    @case(f"VF.{name}")
    def layers(make: Make) -> Arguments:
        batch, steps, width, hidden = make.size(1, 3), make.size(1, 4), make.size(1, 3), make.size(1, 3)
        ways, number, biased, first = make.pick(1, 2), make.size(1, 2), make.pick(True, False), make.pick(True, False)
        weights = []
        for layer in range(number):
            for _ in range(ways):
                given = width if not layer else hidden * ways
                weights += [make.x(count * hidden, given), make.x(count * hidden, hidden)]
                weights += [make.x(count * hidden), make.x(count * hidden)] if biased else []
        x = make.x(*((batch, steps) if first else (steps, batch)), width)
        states = [make.x(number * ways, batch, hidden) for _ in range(2 if name == "lstm" else 1)]
        hx = states if name == "lstm" else states[0]
        return [x, hx, weights, biased, number, 0.0, False, ways == 2, first], {}


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _recurrent(_name)


def _rest() -> None:
    table: dict[str, Case] = {
        "Torch.ravel": lambda make: ([make.x(2, 3)], {}),
        "Torch.fliplr": lambda make: ([make.x(2, 3)], {}),
        "Torch.flipud": lambda make: ([make.x(2, 3)], {}),
        "Torch.argwhere": lambda make: ([make.x(2, 3)], {}),
        "Torch.hstack": lambda make: ([[make.x(2, 3), make.x(2, 2)]], {}),
        "Torch.vstack": lambda make: ([[make.x(2, 3), make.x(1, 3)]], {}),
        "Torch.column_stack": lambda make: ([[make.x(2), make.x(2, 3)]], {}),
        "Torch.view_as_complex": lambda make: ([make.x(3, 4, 2)], {}),
        "Torch.atan2": lambda make: ([make.x(3, 4), make.x(4)], {}),
        "Torch.xlogy": lambda make: ([make.x(3, 4), make.x(4, domain="positive")], {}),
        "Torch.exp2": lambda make: ([make.x(3, 4)], {}),
        "Torch.addmv": lambda make: ([make.pick(make.x(3), make.x(1)), make.x(3, 4), make.x(4)], {}),
        "Torch.broadcast_tensors": lambda make: ([make.x(3, 1), make.x(4)], {}),
        "Torch.meshgrid": lambda make: ([make.x(3), make.x(4)], {"indexing": make.pick("ij", "xy")}),
        "Torch.polar": lambda make: ([make.x(3, 4, domain="positive"), make.x(3, 4)], {}),
        "Torch.channel_shuffle": lambda make: ([make.x(2, 6, 3), make.pick(2, 3)], {}),
        "Functional.unfold": lambda make: (
            [make.x(2, 3, 6, 5), make.pick(2, [3, 2])], {"padding": make.pick(0, 1), "stride": make.pick(1, 2)}
        ),
        "Tensor.unfold": lambda make: ([make.x(3, 7), make.pick(1, -1), 3, make.pick(1, 2)], {}),
        "Functional.local_response_norm": lambda make: (
            [make.x(2, 5, 3, 2), make.size(1, 4)], {"alpha": 0.1, "beta": 0.7, "k": 1.5}
        ),
        "Functional.pairwise_distance": lambda make: ([make.x(3, 4), make.x(3, 4)], {"p": make.pick(1.0, 2.0)}),
    }  # fmt: skip
    for name, maker in table.items():
        CASES.setdefault(name, []).append(maker)


_rest()


def _aliases() -> None:
    for name in "absolute arctan asinh sinh cosh tan negative fix signbit isneginf isposinf".split():  # noqa: SIM905
        CASES[f"Torch.{name}"] = [lambda make: ([make.like()], {})]
    for name in "arccos arcsin".split():  # noqa: SIM905
        CASES[f"Torch.{name}"] = [lambda make: ([make.like("unit")], {})]
    CASES["Torch.acosh"] = [lambda make: ([make.like("above1")], {})]
    CASES["Tensor.__abs__"] = [lambda make: ([make.like()], {})]
    for name in "__ge__ __le__ __lt__ __ne__ greater greater_equal less less_equal not_equal".split():  # noqa: SIM905
        CASES[f"Tensor.{name}"] = [lambda make: (list(make.pair()), {}), lambda make: ([make.like(), 0.5], {})]
    for name in "__rand__ __ror__ __rxor__ bitwise_and bitwise_or bitwise_xor logical_xor".split():  # noqa: SIM905
        CASES[f"Tensor.{name}"] = [lambda make: ([make.whole(3, 4), make.pick(make.whole(4), 3)], {})]
    CASES["Tensor.logical_xor"] = [lambda make: ([make.mask(3, 4), make.mask(4)], {})]
    CASES["Tensor.__rfloordiv__"] = [lambda make: ([make.like("nonzero"), 2.5], {})]
    CASES["Tensor.__rmatmul__"] = [lambda make: ([make.x(3, 4), make.x(2, 3)], {})]
    for name in "abs ceil erf exp floor neg sigmoid sign tanh".split():  # noqa: SIM905
        CASES[f"Torch._foreach_{name}"] = [lambda make: ([[make.like(), make.like()]], {})]
    for name in "log reciprocal".split():  # noqa: SIM905
        CASES[f"Torch._foreach_{name}"] = [lambda make: ([[make.like("positive")]], {})]
    for name in "clamp_max clamp_min maximum minimum".split():  # noqa: SIM905
        CASES[f"Torch._foreach_{name}"] = [lambda make: ([[make.like(), make.like()], 0.25], {})]
    CASES["Torch._foreach_pow"] = [lambda make: ([[make.like("positive")], 1.5], {})]
    CASES["Tensor.where"] = [lambda make: ([make.x(3, 4), make.mask(3, 4), make.x(4)], {})]
    CASES["Tensor.log_softmax"] = [lambda make: ([make.x(3, 4), make.pick(0, -1)], {})]
    CASES["Torch.embedding"] = [lambda make: ([make.x(6, 4), make.whole(3, 2, low=0, high=6)], {})]
    CASES["Torch.instance_norm"] = [
        lambda make: ([make.x(2, 3, 4), make.x(3), make.x(3), None, None, True, 0.1, 1e-3, False], {})
    ]
    CASES["Torch.dstack"] = [lambda make: ([[make.x(2, 3, 1), make.x(2, 3, 2)]], {})]
    CASES["Tensor.adjoint"] = [lambda make: ([make.x(2, 3, 4)], {})]
    CASES["Torch.nan_to_num"] = [lambda make: ([np.array([np.nan, np.inf, -np.inf, 1.5])], {"posinf": make.pick(3.0)})]
    for name in "double int short".split():  # noqa: SIM905
        CASES[f"Tensor.{name}"] = [lambda make: ([make.like()], {})]


_aliases()
