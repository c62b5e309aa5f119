"""The first look in blocks: it passes what the whole judgement passes, with its figures, and no wrong element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from precision_tool.lib.diagnose import sampling as in_blocks
from precision_tool.lib.diagnose.error_shape import misfit, rounded_to
from precision_tool.lib.diagnose.formulas import Formula, Ref, Stage
from precision_tool.lib.diagnose.sampling import right_in_blocks, run_in_blocks
from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.base import Call, Input, Kind, NotComputedError, OutputSpec

Array = npt.NDArray[Any]
_RANDOM = np.random.default_rng(7)


def _numbers(*shape: int, dtype: str = "float16", scale: float = 1.0) -> Input:
    array = rounded_to(_RANDOM.standard_normal(shape) * scale, dtype)
    return Input(array=array.astype(np.float32), dtype=dtype, layout="NHWC" if len(shape) == 4 else "ND")


def _formula(*types: str, **attrs: Any) -> Formula:
    """The ops one after the other: the first takes two inputs, BiasAdd the next one."""
    stages, slot = [], 0
    for number, op_type in enumerate(types):
        args: list[Ref | None] = [Ref(0, number - 1)] if number else []
        while len(args) < (1 if op_type in ("Relu", "Cast", "TransData", "Tanh", "BiasAddGrad", "ReduceMeanD") else 2):
            args.append(Ref(slot))
            slot += 1
        stages.append(Stage(name=f"{op_type}_{number}", op_type=op_type, args=tuple(args), attrs=attrs))
    return Formula(stages=tuple(stages), outputs={0: Ref(0, len(types) - 1)})


def _put_out(formula: Formula, inputs: dict[int, Input], dtype: str) -> Input:
    """What a sound kernel puts out: the result in float64, correctly rounded."""
    wide = {slot: Input(array=one.array.astype(np.float64), dtype=one.dtype, layout=one.layout)
            for slot, one in inputs.items()}  # fmt: skip
    return Input(array=rounded_to(formula.run(wide)[0].array, dtype).astype(np.float32), dtype=dtype)


CASES: dict[str, tuple[Formula, list[Input], str]] = {
    "sub": (_formula("Sub"), [_numbers(400, 500), _numbers(400, 500)], "float16"),
    "scale": (_formula("Mul"), [_numbers(400, 500), _numbers(dtype="float32")], "float16"),
    "bias in float32": (_formula("Add"), [_numbers(3000, 80, dtype="float32"), _numbers(80, dtype="float32")],
                        "float32"),
    "bfloat16": (_formula("Mul"), [_numbers(400, 500, dtype="bfloat16"), _numbers(400, 500, dtype="bfloat16")],
                 "bfloat16"),
    "gradient": (_formula("ReluGrad"), [_numbers(400, 500), _numbers(400, 500)], "float16"),
    "moved": (_formula("TransData"), [_numbers(4, 100, 100, 8)], "float16"),
    "narrowed": (_formula("Cast"), [_numbers(400, 500, dtype="float32")], "float16"),
    "approximated": (_formula("Tanh"), [_numbers(400, 500)], "float16"),
    "product": (_formula("MatMul"), [_numbers(3000, 64), _numbers(64, 90)], "float16"),
    "bias gradient": (_formula("BiasAddGrad"), [_numbers(300, 2000)], "float32"),
    "mean": (_formula("ReduceMeanD", axes=[1]), [_numbers(2000, 60)], "float16"),
    "turned": (_formula("MatMul", transpose_x1=True), [_numbers(3000, 64), _numbers(3000, 90)], "float16"),
    "convolution": (
        _formula("Conv2D", strides=[1, 1, 1, 1], padding="SAME", data_format="NHWC"),
        [_numbers(8, 20, 20, 16), _numbers(3, 3, 16, 32, scale=0.1)], "float16",
    ),
    "fused": (_formula("MatMul", "BiasAdd", "Relu"), [_numbers(3000, 64), _numbers(64, 90), _numbers(90)], "float16"),
}  # fmt: skip


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Formula, dict[int, Input], Input]:
    """A formula, its inputs, and what a sound kernel puts out."""
    formula, given, dtype = CASES[request.param]
    inputs = dict(enumerate(given))
    return formula, inputs, _put_out(formula, inputs, dtype)


def test_what_is_right_passes_with_the_figures_of_the_whole_judgement(
    case: tuple[Formula, dict[int, Input], Input],
) -> None:
    formula, inputs, got = case
    found = right_in_blocks(formula, inputs, {0: got}, 0.0)
    assert found is not None
    (slot,) = found
    wide = {number: Input(array=one.array.astype(np.float64), dtype=one.dtype, layout=one.layout)
            for number, one in inputs.items()}  # fmt: skip
    whole = misfit(got.array, formula.run(wide)[0], got.dtype, formula.kind)
    assert slot.size == whole.got.size
    assert (slot.beyond, slot.overflowed, slot.not_finite, slot.places) == (0, 0, 0, None)
    assert slot.own == pytest.approx(whole.own, rel=2e-3)
    assert slot.exact_share == pytest.approx(whole.exact_share, abs=2e-3)
    assert slot.slack == whole.slack
    if len(formula.stages) == 1:  # of a chain, the rounding inside counts as well
        assert slot.rounding == pytest.approx(whole.rounding, rel=2e-2)
        # Sums that are looked at in float32 are rounded twice: by the kernel and here.
        assert slot.worst == pytest.approx(whole.worst, rel=2e-2, abs=1.5 if formula.kind is Kind.MATRIX else 0.02)


@pytest.mark.parametrize("place", [0, 1234, -1])
@pytest.mark.parametrize("wrong", [0.05, np.nan, np.inf])
def test_one_wrong_element_does_not_pass(
    case: tuple[Formula, dict[int, Input], Input], place: int, wrong: float
) -> None:
    formula, inputs, got = case
    array = got.array.copy()
    flat = array.reshape(-1)
    size = float(np.sqrt(np.mean(np.square(flat))))
    # Where the result hangs on a switch, a difference accuses nobody: there is none at these places.
    flat[place] += np.float32(size * 2 if wrong == 0.05 else wrong)
    assert right_in_blocks(formula, inputs, {0: Input(array=array, dtype=got.dtype)}, 0.0) is None


@pytest.mark.parametrize("name", ["product", "convolution", "fused", "turned"])
def test_sums_in_float16_do_not_pass(name: str) -> None:
    """The rounding of a float16 accumulator is more than float32's explains, however small."""
    formula, given, dtype = CASES[name]
    inputs = dict(enumerate(given))
    got = _put_out(formula, inputs, dtype)
    scale = float(np.sqrt(np.mean(np.square(got.array))))
    noisy = rounded_to(got.array + _RANDOM.standard_normal(got.array.shape) * scale * 2.0**-6, dtype)
    assert right_in_blocks(formula, inputs, {0: Input(array=noisy.astype(np.float32), dtype=dtype)}, 0.0) is None


def test_the_blocks_do_not_show(case: tuple[Formula, dict[int, Input], Input], monkeypatch: pytest.MonkeyPatch) -> None:
    formula, inputs, got = case
    one = right_in_blocks(formula, inputs, {0: got}, 0.0)
    monkeypatch.setattr(in_blocks, "_BLOCK", 1 << 10)
    other = right_in_blocks(formula, inputs, {0: got}, 0.0)
    assert one is not None
    assert other is not None
    assert other[0].size == one[0].size
    assert other[0].own == pytest.approx(one[0].own, rel=1e-3)
    assert other[0].rounding == pytest.approx(one[0].rounding, rel=5e-2)


def test_what_is_made_part_by_part_is_what_is_made_at_once(
    case: tuple[Formula, dict[int, Input], Input], monkeypatch: pytest.MonkeyPatch
) -> None:
    formula, given, got = case
    inputs = {number: Input(array=one.array.astype(np.float64), dtype=one.dtype, layout=one.layout)
              for number, one in given.items()}  # fmt: skip
    monkeypatch.setattr(in_blocks, "_BLOCK", 1 << 10)
    for stored in ("", "float16"):
        parts, whole = run_in_blocks(formula, inputs, {0: got}, stored)[0], formula.run(inputs, stored)[0]
        assert parts.array.shape == whole.array.shape
        assert np.allclose(parts.array, whole.array, rtol=1e-12, atol=1e-12)
        for one, other in ((parts.summed, whole.summed), (parts.terms, whole.terms)):
            assert np.allclose(np.broadcast_to(one, whole.array.shape), other, rtol=1e-6)
        assert (parts.doubtful is None) == (whole.doubtful is None)
        assert whole.doubtful is None or np.array_equal(np.asarray(parts.doubtful), whole.doubtful)


def test_a_result_of_another_shape_is_not_put_together() -> None:
    """The whole op says what contradicts what."""
    inputs = {0: _numbers(3000, 64), 1: _numbers(64, 90)}
    with pytest.raises(NotComputedError):
        run_in_blocks(_formula("MatMul"), {**inputs, 1: _numbers(65, 90)}, {0: _numbers(3000, 90)})
    found = run_in_blocks(_formula("MatMul"), inputs, {0: _numbers(3000, 91)})
    assert found[0].array.shape == (3000, 90)


def test_what_leaves_the_range_does_not_pass() -> None:
    """Whether it overflows is for the whole judgement to say."""
    inputs = {0: _numbers(300, 300, scale=200.0), 1: _numbers(300, 300, scale=200.0)}
    got = _put_out(_formula("Mul"), inputs, "float16")
    assert np.isinf(got.array).any()
    assert right_in_blocks(_formula("Mul"), inputs, {0: got}, 0.0) is None


#: What functions want to know beside their inputs.
_ATTRS = {"negative_slope": 0.1, "value": 0.5, "alpha": 0.3, "scale": 1.0, "use_nesterov": False}
_POSITIVE = {"Sqrt", "Rsqrt", "Log", "Log1p", "Pow", "SqrtGrad", "RsqrtGrad", "RealDiv", "Div"}


@pytest.mark.parametrize("op_type", sorted(table._BY_ELEMENT))
def test_any_part_of_what_is_by_element_is_computed_alone(op_type: str) -> None:
    """The function of every op that is cut in parts gives for a part of its inputs that part of its result."""
    spec = table.find(op_type)
    assert spec is not None
    is_logic = op_type.startswith("Logical")
    rows = 12
    arrays: list[Array] = []
    for name in spec.inputs or ("x",):
        scalar = name in ("alpha", "lr", "momentum", "rho", "epsilon", "beta1", "beta2", "beta1_power", "beta2_power")
        array = np.abs(_RANDOM.standard_normal(() if scalar else (rows, 5))) + 0.1
        if op_type not in _POSITIVE and not scalar and not op_type.startswith("Apply"):
            array = array * _RANDOM.choice([-1.0, 1.0], array.shape)
        arrays.append(array > 0.5 if is_logic or name == "condition" else array / (3 if scalar else 1))
    if op_type.startswith("ClipByValue"):
        arrays[1:] = [np.asarray(-0.5), np.asarray(0.5)]

    def outputs(part: slice) -> list[Array]:
        given = tuple(Input(array=array[part] if array.ndim else array) for array in arrays)
        call = Call(op_type=op_type, inputs=given, attrs=_ATTRS, outputs=(OutputSpec(shape=None, dtype="float32"),))
        return [np.asarray(one.array) for one in spec.function(call) if one is not None]

    whole, parts = outputs(slice(None)), [outputs(slice(start, start + 5)) for start in range(0, rows, 5)]
    assert whole
    for number, one in enumerate(whole):
        assert one.shape == (rows, 5)
        assert np.array_equal(np.concatenate([part[number] for part in parts]), one)


def test_a_condition_along_the_first_axis_is_not_cut() -> None:
    """Select takes a condition of one axis along the first; blocks of rows would hold it along the last."""
    assert not table.is_by_element("Select")


@pytest.mark.parametrize(
    ("op_type", "shapes"),
    [
        ("MatMul", [(300, 40), (40, 50)]),
        ("Conv2D", [(2, 12, 12, 8), (3, 3, 8, 16)]),
        ("DepthwiseConv2D", [(2, 12, 12, 8), (3, 3, 8, 2)]),
    ],
)
def test_sampled_places_are_computed_in_float64_whatever_the_inputs_are_held_in(
    op_type: str, shapes: list[tuple[int, ...]]
) -> None:
    spec = table.find(op_type)
    assert spec is not None
    assert spec.sampled is not None
    attrs = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
    held = tuple(_numbers(*shape, dtype="float32") for shape in shapes)
    wide = tuple(Input(array=one.array.astype(np.float64), dtype=one.dtype, layout=one.layout) for one in held)
    (whole,) = spec.function(Call(op_type=op_type, inputs=wide, attrs=attrs))
    assert whole is not None
    places = np.arange(0, whole.array.size, 7, dtype=np.intp)
    found = spec.sampled(Call(op_type=op_type, inputs=held, attrs=attrs), places)
    assert np.allclose(found.array, whole.array.reshape(-1)[places], rtol=1e-12, atol=1e-12)


def _gradient_of_filter(x: Input, grads: Input) -> tuple[Any, Any]:
    """What all places of a gradient of 1 × 1 filters are, and the whole of it in float64."""
    spec = table.find("Conv2DBackpropFilterD")
    assert spec is not None
    assert spec.sampled is not None
    attrs = {
        "strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC",
        "filter_size": [1, 1, x.array.shape[-1], grads.array.shape[-1]],
    }  # fmt: skip
    wide = tuple(Input(array=one.array.astype(np.float64), dtype=one.dtype, layout="NHWC") for one in (x, grads))
    (whole,) = spec.function(Call(op_type="Conv2DBackpropFilterD", inputs=wide, attrs=attrs))
    assert whole is not None
    held = tuple(Input(array=one.array, dtype=one.dtype, layout="NHWC") for one in (x, grads))
    places = np.arange(whole.array.size, dtype=np.intp)
    return spec.sampled(Call(op_type="Conv2DBackpropFilterD", inputs=held, attrs=attrs), places), whole


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_all_of_a_small_gradient_of_filters_is_summed_in_pieces(scale: float) -> None:
    """Pieces in float32, which are added up in float64, are nearer than a kernel that sums in float32 may be."""
    x, grads = _numbers(8, 40, 40, 8, dtype="float32", scale=scale), _numbers(8, 40, 40, 4, dtype="float32")
    found, whole = _gradient_of_filter(x, grads)
    true = whole.array.reshape(-1)
    size = np.asarray(whole.terms).reshape(-1)
    assert np.abs(found.array - true).max() < 2**-24 * np.asarray(whole.summed).min()
    assert np.allclose(found.terms, size, rtol=1e-4, atol=0)
    assert np.allclose(found.summed, np.asarray(whole.summed).reshape(-1), rtol=1e-4, atol=0)


def test_squares_of_what_was_stored_in_float16_are_told_in_float32() -> None:
    spec = table.find("MatMul")
    assert spec is not None
    pair = _numbers(64, 20000), _numbers(20000, 64)
    wide = tuple(Input(array=one.array.astype(np.float64), dtype=one.dtype) for one in pair)
    (narrow,) = spec.function(Call(op_type="MatMul", inputs=pair))
    assert narrow is not None
    assert narrow.array.dtype == np.float32
    squares = wide[0].array ** 2 @ wide[1].array ** 2
    assert np.allclose(narrow.terms, np.sqrt(squares), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("outlier", "fault"), [(1e6, 0.5), (1e4, 0.01), (1.0, 1e-6)])
@pytest.mark.parametrize("places", [[0], [-1], [0, -1]])
def test_one_large_element_allows_nothing_to_the_others(outlier: float, fault: float, places: list[int]) -> None:
    size = 1 << 18
    first, second, third = (_RANDOM.uniform(0.5, 1.5, size).astype(np.float32) for _ in range(3))
    first *= np.float32(1e-3)
    third *= np.float32(1e-3)
    first[places] = np.float32(outlier)
    put_out = (first * second + third).astype(np.float32)
    wrong = np.ones(size, np.bool_)
    wrong[places] = False
    put_out[wrong] *= np.float32(1 + fault)
    inputs = {slot: Input(array=array, dtype="float32") for slot, array in enumerate((first, second, third))}
    assert right_in_blocks(_formula("Mul", "Add"), inputs, {0: Input(array=put_out, dtype="float32")}, 0.0) is None


def test_stacks_of_matrices_are_cut_on_both_sides() -> None:
    formula = _formula("BatchMatMul", "Add")
    inputs = dict(enumerate([_numbers(16, 64, 32), _numbers(16, 32, 48), _numbers(16, 64, 48)]))
    assert formula.batch_of(inputs) == (16, frozenset({0, 1, 2}))
    assert right_in_blocks(formula, inputs, {0: _put_out(formula, inputs, "float16")}, 0.0) is not None
    few = {slot: Input(array=one.array[[0, 7]], dtype=one.dtype) for slot, one in inputs.items()}
    assert formula.unshaped().run(few)[0].array.shape == (2, 64, 48)
    one_matrix = {**inputs, 1: _numbers(1, 32, 48)}
    assert formula.batch_of(one_matrix) is None, "one matrix for all"


# --- ops that are told numbers of each channel ------------------------------------------------------------------------


def _batch_norm(op_type: str, shape: tuple[int, ...]) -> tuple[Formula, dict[int, Input], dict[int, Input]]:
    """A part of a batch norm, and what a sound kernel puts out."""
    channels, count = shape[-1], int(np.prod(shape[:-1]))
    x = _numbers(*shape)
    vectors = [_numbers(channels, dtype="float32") for _ in range(4)]
    positive = Input(array=np.abs(vectors[3].array) + np.float32(0.5), dtype="float32")
    if op_type == "BNTrainingReduceGrad":
        given = [_numbers(*shape), x, *(replace(one, array=one.array * 30) for one in vectors[:2]), *vectors[2:3],
                 vectors[3], positive]  # fmt: skip
        results = 1
    else:
        rows = x.array.reshape(-1, channels).astype(np.float64)
        sums = [Input(array=(rows**power).sum(0).astype(np.float32), dtype="float32") for power in (1, 2)]
        given, results = [x, *sums, positive, vectors[1]], 5
    stage = Stage(
        name=op_type, op_type=op_type, args=tuple(Ref(slot) for slot in range(len(given))), attrs={"epsilon": 1e-5}
    )
    formula = Formula(stages=(stage,), outputs={slot: Ref(slot, 0) for slot in range(results)})
    inputs = dict(enumerate(given))
    true = formula.run({slot: one.in_doubles() for slot, one in inputs.items()})
    dtypes = ["float16", *["float32"] * (results - 1)]
    got = {
        slot: Input(array=rounded_to(out.array, dtypes[slot]).astype(np.float32), dtype=dtypes[slot])
        for slot, out in true.items()
    }
    assert got[0].array.size == count * channels
    return formula, inputs, got


@pytest.mark.parametrize("op_type", ["BNTrainingReduceGrad", "BNTrainingUpdateV3"])
@pytest.mark.parametrize("shape", [(1, 60, 60, 32), (64, 8, 8, 64)])
def test_parts_of_batch_norms_are_looked_at_line_by_line(
    op_type: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many elements a channel has is that of all lines, and vectors as long as the batch are no rows of it."""
    monkeypatch.setattr(in_blocks, "_BLOCK", 1 << 13)
    formula, inputs, got = _batch_norm(op_type, shape)
    found = right_in_blocks(formula, inputs, got, 0.0)
    assert found is not None
    assert [slot.size for slot in found] == [got[slot.slot].array.size for slot in found]
    whole = misfit(got[0].array, formula.run({slot: one.in_doubles() for slot, one in inputs.items()})[0], "float16",
                   formula.kind)  # fmt: skip
    assert found[0].own == pytest.approx(whole.own, rel=1e-3)
    assert found[0].rounding == pytest.approx(whole.rounding, rel=1e-3)
    wide = {slot: one.in_doubles() for slot, one in inputs.items()}
    true, made = formula.run(wide), run_in_blocks(formula, wide, got)
    for slot, out in true.items():
        np.testing.assert_allclose(made[slot].array.reshape(-1), out.array.reshape(-1), rtol=1e-12)
    for slot in got:
        array = got[slot].array.copy()
        array.reshape(-1)[-1] += np.float32(1)
        assert right_in_blocks(formula, inputs, {**got, slot: replace(got[slot], array=array)}, 0.0) is None


# --- some channels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["BNTrainingReduce", "BNTrainingUpdateGrad"])
def test_sums_of_some_channels_are_those_of_all(op_type: str) -> None:
    x, channels = _numbers(2, 6, 5, 160), 160
    vectors = [_numbers(channels, dtype="float32"), _numbers(channels, dtype="float32")]
    vectors[1] = replace(vectors[1], array=np.abs(vectors[1].array) + np.float32(0.5))
    given = [x] if op_type == "BNTrainingReduce" else [_numbers(2, 6, 5, 160), x, *vectors]
    stage = Stage(name=op_type, op_type=op_type, args=tuple(Ref(slot) for slot in range(len(given))))
    formula, inputs = Formula(stages=(stage,), outputs={0: Ref(0, 0), 1: Ref(1, 0)}), dict(enumerate(given))
    got = {slot: Input(array=out.array, dtype="float32") for slot, out in formula.run(inputs).items()}
    part = in_blocks.of_some_channels(formula, inputs, got, 75)
    assert part is not None
    few, some = part
    made = formula.unshaped().run(few)
    assert 32 <= some[0].array.size < 80
    for slot in got:
        np.testing.assert_allclose(made[slot].array, some[slot].array, rtol=1e-12)
        assert got[slot].array[75] in some[slot].array
    # An op with few channels, or with channels first, is looked at whole.
    narrow = {slot: replace(tensor, array=tensor.array[..., :48]) for slot, tensor in inputs.items()}
    assert in_blocks.of_some_channels(formula, narrow, {0: replace(got[0], array=got[0].array[:48])}, 0) is None
    first = {slot: replace(tensor, layout="NCHW") for slot, tensor in inputs.items()}
    assert in_blocks.of_some_channels(formula, first, got, 0) is None
