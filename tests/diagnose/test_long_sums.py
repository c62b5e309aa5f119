"""Sums of ten thousand to a million float32 terms, added up as machines do it: right, and their faults still wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opcalls import as_input
from opvalues import Array

from precision_tool.lib.compare.matrix_threads import multiply_in_one_thread
from precision_tool.lib.compare.scheduler import process_pool
from precision_tool.lib.diagnose.error_shape import misfit
from precision_tool.lib.diagnose.formulas import Formula, Ref, Stage
from precision_tool.lib.diagnose.recomputer import slot_of, state_of
from precision_tool.lib.diagnose.sampling import narrowing
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Call, Input
from precision_tool.lib.ops.op_table import find

F = np.float32


def _in_turn(terms: Array) -> Array:
    """The sums of the columns, one term after the other."""
    result: Array = np.add.accumulate(terms.astype(F), axis=0)[-1]
    return result


def _pairwise(terms: Array) -> Array:
    terms = terms.astype(F)
    while len(terms) > 1:
        rest = terms[len(terms) // 2 * 2 :]
        terms = np.concatenate([terms[0 : len(terms) - len(rest) : 2] + terms[1::2], rest])
    return np.asarray(terms[0])


def _parts(terms: Array, count: int) -> Array:
    """Parts of so many terms as the second axis."""
    whole = np.concatenate([terms, np.zeros((-len(terms) % count, terms.shape[1]))])
    return whole.reshape(-1, count, terms.shape[1]).astype(F)


def _tiles(terms: Array) -> Array:
    """Sixteen at a time, as the matrix unit has it, and these one after the other."""
    tiles = _parts(terms, 16)
    return _in_turn(tiles.astype(np.float64).sum(1))


def _lanes(terms: Array) -> Array:
    """Sixteen sums side by side, as vector units have it."""
    parts = _parts(terms, 16)
    return _in_turn(np.add.accumulate(parts, axis=0)[-1])


def _split(terms: Array) -> Array:
    """Eight cores."""
    parts = _parts(terms, -(-len(terms) // 8))
    return _in_turn(np.stack([_in_turn(part) for part in parts]))


def _shuffled(terms: Array) -> Array:
    return _in_turn(np.random.default_rng(3).permutation(terms))


ORDERS: dict[str, Callable[[Array], Array]] = {
    "in turn": _in_turn, "pairwise": _pairwise, "tiles": _tiles, "lanes": _lanes, "split": _split,
    "shuffled": _shuffled, "backwards": lambda terms: _in_turn(terms[::-1]),
}  # fmt: skip


def _correlated(random: np.random.Generator, count: int, columns: int) -> Array:
    """Neighbours are alike, and all of it adds up to nearly nothing."""
    steps = random.normal(size=(32, columns))
    smooth = np.repeat(steps - steps.mean(0), -(-count // 32), axis=0)[:count]
    return np.asarray(smooth + 0.1 * random.normal(size=(count, columns)))


VALUES: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal": lambda random, count, columns: random.normal(size=(count, columns)),
    "positive": lambda random, count, columns: random.random((count, columns)),
    "equal": lambda random, count, columns: np.tile(random.random(columns) + 0.1, (count, 1)),
    "few": lambda random, count, columns: random.choice(random.random(5) - 0.3, (count, columns)),
    "correlated": _correlated,
    "cancelling": lambda random, count, columns: np.concatenate(
        [half := random.normal(size=(count // 2, columns)) + 1, -half[::-1]]
    ),
    "equal halves": lambda random, count, columns: (
        np.repeat([[0.3], [-0.3]], count // 2, axis=0) * (random.random(columns) + 0.1)
    ),
}


def _state(call_type: str, inputs: list[Input], got: list[Array | None], **attrs: Any) -> State:
    """What is made of an op's outputs (None: not dumped), looked at whole."""
    spec = find(call_type)
    assert spec is not None
    outputs = spec.function(Call(op_type=call_type, inputs=tuple(inputs), attrs=attrs))
    stage = Stage(name="op", op_type=call_type, args=tuple(Ref(slot) for slot in range(len(inputs))), attrs=attrs)
    formula = Formula(stages=(stage,), outputs={slot: Ref(slot, 0) for slot in range(len(outputs))})
    u_in = narrowing(formula, dict(enumerate(inputs)))
    slots = []
    for slot, (out, have) in enumerate(zip(outputs, got, strict=True)):
        if out is None or have is None:
            continue
        fit = misfit(have, out, "float32", spec.kind, u_in=u_in)
        slots.append(slot_of(slot, as_input(have.astype(F)), out, fit, spec.kind))
    base = OpResult(op=Op(name="op", type=call_type), number=0, state=State.NOT_RECOMPUTED)
    return state_of(base, slots)


Case = tuple[str, list[Input], list[Array], dict[str, Any], float]


def _rounded(values: Array) -> Array:
    return values.astype(F).astype(np.float64)


def _case(op_type: str, values: Array) -> Case:
    """Type, inputs, for each output the terms as (terms, sums), attributes, and what the sums are divided by."""
    x = _rounded(values)
    count, columns = x.shape
    random = np.random.default_rng(5)
    image = Input(array=x.reshape(1, -1, 4, columns), dtype="float32", layout="NHWC")
    if op_type == "BiasAddGrad":
        return op_type, [as_input(x)], [x], {}, 1.0
    if op_type == "ReduceSumD":
        return op_type, [as_input(np.ascontiguousarray(x.T))], [x], {"axes": [1]}, 1.0
    if op_type == "ReduceMeanD":
        return op_type, [as_input(x)], [x], {"axes": [0]}, float(count)
    if op_type == "BNTrainingReduce":
        return op_type, [image], [x, x * x], {}, 1.0
    if op_type == "BNTrainingUpdateGrad":
        mean, variance = _rounded(random.normal(size=(columns,))), _rounded(random.uniform(0.5, 1.5, (columns,)))
        other = _rounded(random.normal(size=x.shape))
        normal = (other - mean).astype(F) / np.sqrt((variance + 1e-4).astype(F))
        inputs = [image, Input(array=other.reshape(image.array.shape), dtype="float32", layout="NHWC")]
        terms = [(normal.astype(F) * x.astype(F)).astype(np.float64), x]
        return op_type, [*inputs, as_input(mean), as_input(variance)], terms, {"epsilon": 1e-4}, 1.0
    half = x.astype(np.float16).astype(np.float64)  # products of float16 are exact in float32
    if op_type == "MatMulV2":
        ones = np.ones((1, count))
        return op_type, [as_input(ones, dtype="float16"), as_input(half, dtype="float16")], [half], {}, 1.0
    assert op_type == "Conv2DBackpropFilter"
    images = Input(array=np.ones((1, count // 4, 4, 1)), dtype="float16", layout="NHWC")
    grads = Input(array=half.reshape(1, -1, 4, columns), dtype="float16", layout="NHWC")
    attrs = {"filter_size": [1, 1, 1, columns], "strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
    return op_type, [images, grads], [half], attrs, 1.0


OPS = (
    "BiasAddGrad", "ReduceSumD", "ReduceMeanD", "BNTrainingReduce", "BNTrainingUpdateGrad", "MatMulV2",
    "Conv2DBackpropFilter",
)  # fmt: skip


def _put_out(case: Case, add: Callable[[Array], Array], change: Callable[[Array], Array] = lambda y: y) -> State:
    op_type, inputs, terms, attrs, divisor = case
    got = [change(add(part)) / divisor for part in terms]
    shaped = [y.astype(np.float64).reshape(1, -1) if op_type == "MatMulV2" else y.astype(np.float64) for y in got]
    return _state(op_type, inputs, [*shaped], **attrs)


def _without(add: Callable[[Array], Array], lost: slice, terms: Array) -> Array:
    return add(np.delete(terms, lost, axis=0))


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("size", [(12544, 24), (131072, 3)])
def test_any_order_of_adding_up_is_right(op_type: str, values: str, size: tuple[int, int]) -> None:
    case = _case(op_type, VALUES[values](np.random.default_rng(size[0]), *size))
    states = {name: _put_out(case, add) for name, add in ORDERS.items()}
    assert set(states.values()) == {State.RIGHT}, states


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("size", [(12544, 24), (131072, 3)])
def test_what_is_missing_or_scaled_is_wrong(op_type: str, values: str, size: tuple[int, int]) -> None:
    case = _case(op_type, VALUES[values](np.random.default_rng(size[0]), *size))
    count = size[0]
    middle = count // 3
    for add in (_in_turn, _tiles):
        for lost in (slice(middle, middle + count // 16), slice(count - count // 64, count)):
            assert _put_out(case, partial(_without, add, lost)) is State.WRONG, (add, lost)
    if values not in ("correlated", "cancelling", "equal halves"):  # 1.01 times nothing is nothing
        assert _put_out(case, _pairwise, lambda y: y * F(1.01)) is State.WRONG


@pytest.mark.parametrize("values", VALUES)
def test_a_million_terms(values: str) -> None:
    case = _case("BiasAddGrad", VALUES[values](np.random.default_rng(1), 10**6, 2))
    assert {_put_out(case, add) for add in ORDERS.values()} == {State.RIGHT}
    missing = _put_out(case, lambda terms: _in_turn(np.delete(terms, np.s_[10**5 : 10**5 + 10**6 // 16], axis=0)))
    assert missing is State.WRONG


def _set_in_a_process() -> tuple[bool, int]:
    is_set = multiply_in_one_thread()
    maps = Path("/proc/self/maps").read_text("utf-8")
    paths = {line.split()[-1] for line in maps.splitlines() if "openblas64" in line}
    names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_")
    threads = [
        getattr(library, name)() for library in map(ctypes.CDLL, paths) for name in names if hasattr(library, name)
    ]
    return is_set, max(threads, default=0)


def test_a_process_beside_others_multiplies_in_one_thread() -> None:
    with process_pool(1) as pool:
        is_set, threads = pool.submit(_set_in_a_process).result()
    if not threads:
        pytest.skip("numpy has no OpenBLAS of its own here")
    assert (is_set, threads) == (True, 1)
