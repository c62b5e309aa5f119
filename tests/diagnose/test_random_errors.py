"""Random ops and overwritten memory, on runs of a few ops with addresses, and on demos with a known truth."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MODEL, STAMP, TIMESTAMP, graph_op, text_graph, write_dump
from rich.console import Console, Group, RenderableType

from precision_tool.lib.compare.run_values import RunValues
from precision_tool.lib.compare.tensor_reader import difference, is_alike, same_range
from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, write_statistics
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.memory_reuse import check_memory
from precision_tool.lib.diagnose.random_errors import Kind, RandomReport, State, compare_runs, is_random_type
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.view.random_screen import random_lines
from precision_tool.lib.view.verdict_messages import reason_words

Array = Any


def numbers(*values: float) -> Array:
    return np.array(values, np.float32)


@dataclass(frozen=True, kw_only=True)
class Step:
    """An op of one output. `read` is what is in the dump of its inputs, if not what the ops before put out."""

    name: str
    type: str = "Add"
    inputs: tuple[str, ...] = ()
    output: Array = None
    address: int = 0
    read: Mapping[int, Array] = field(default_factory=dict)
    dumped: bool = True
    with_inputs: bool = True


def stored(array: Array, address: int) -> OutTensor:
    return OutTensor(data=array, origin_shape=array.shape, address=address)


def run(folder: Path, steps: Sequence[Step], *, with_graph: bool = True, statistics: bool = False) -> RunValues:
    leaf = folder / STAMP / "0" / MODEL / "1" / "0"
    by_name = {step.name: step for step in steps}
    for number, step in enumerate(steps):
        if not step.dumped:
            continue
        fed = []
        for slot, name in enumerate(step.inputs if step.with_inputs else ()):
            source = by_name[name]
            array = step.read.get(slot)
            fed.append(stored(source.output if array is None else array, source.address))
        path = leaf / dump_file_name(step.type, step.name, number, TIMESTAMP + 10 * number, stream_id=0)
        if statistics:
            leaf.mkdir(parents=True, exist_ok=True)
            write_statistics(Path(f"{path}.csv"), fed, [stored(step.output, step.address)])
        else:
            write_dump(path, step.name, fed, [stored(step.output, step.address)])
    graph = folder / "graph.txt"
    ops = [graph_op(step.name, step.type, [f"{name}:0" for name in step.inputs]) for step in steps]
    graph.write_text(text_graph(ops))
    (found,) = find_run(str(folder)).leaves
    return RunValues(found, load_graph_file(str(graph)) if with_graph else None)


def chain(*outputs: Array) -> list[Step]:
    names = "abcdefg"
    return [
        Step(name=names[at], inputs=(names[at - 1],) if at else (), output=output) for at, output in enumerate(outputs)
    ]


def console_text(parts: Sequence[RenderableType]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(Group(*parts))
    return console.export_text()


def kinds(report: RandomReport) -> dict[str, Kind]:
    return {op.name: op.kind for op in report.ops}


# --- two runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_graph", [True, False])
@pytest.mark.parametrize("statistics", [True, False])
def test_the_first_op_that_differs_from_equal_inputs(tmp_path: Path, with_graph: bool, statistics: bool) -> None:
    left = chain(numbers(1, 2), numbers(3, 4), numbers(5, 6), numbers(7, 8))
    right = chain(numbers(1, 2), numbers(3, 4), numbers(5, 6.5), numbers(7, 8.5))
    found = compare_runs(
        run(tmp_path / "l", left, with_graph=with_graph, statistics=statistics),
        run(tmp_path / "r", right, with_graph=with_graph, statistics=statistics),
    )
    assert kinds(found) == {"a": Kind.EQUAL, "b": Kind.EQUAL, "c": Kind.RANDOM, "d": Kind.FOLLOWER}
    assert found.first is found.ops[2]
    assert not found.is_clean
    assert "input:0 already differs" in reason_words(found.ops[3].why)


def test_metrics_of_what_differs(tmp_path: Path) -> None:
    x, y = numbers(3, 4, 0), numbers(3, 4, 1)
    found = compare_runs(run(tmp_path / "l", chain(numbers(1), x)), run(tmp_path / "r", chain(numbers(1), y)))
    (output,) = found.ops[1].outputs
    assert output.metrics is not None
    assert output.metrics.max_absolute_error == 1
    assert output.metrics.cosine == pytest.approx(25 / (5 * np.sqrt(26)))
    assert output.metrics.relative_euclidean_distance == pytest.approx(1 / np.sqrt(26))


def test_equal_runs(tmp_path: Path) -> None:
    steps = chain(numbers(1, np.nan), numbers(np.inf, 2))
    found = compare_runs(run(tmp_path / "l", steps), run(tmp_path / "r", steps))
    assert (set(kinds(found).values()), found.is_clean, found.first) == ({Kind.EQUAL}, True, None)


def test_bits_that_mean_nothing_are_no_difference(tmp_path: Path) -> None:
    """The sign of zero, and what is in the padding."""
    left, right = chain(numbers(1), numbers(0.0, 5)), chain(numbers(1), numbers(-0.0, 5))
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert found.ops[1].outputs[0].state is State.SAME_VALUES
    assert kinds(found)["b"] is Kind.EQUAL
    images = np.arange(20, dtype=np.float16).reshape(1, 1, 1, 20)
    for name, padding in (("x", 0), ("y", 7)):
        packed = OutTensor.packed(images, "NC1HWC0", "NHWC")
        assert isinstance(packed.data, np.ndarray)
        data = packed.data.copy()
        data[0, 1, 0, 0, 4:] = padding
        folder = tmp_path / name / STAMP / "0" / MODEL / "1" / "0"
        path = folder / dump_file_name("Add", "a", 0, TIMESTAMP, stream_id=0)
        write_dump(path, "a", [], [replace(packed, data=data)])
    leaves = [find_run(str(tmp_path / name)).leaves[0] for name in ("x", "y")]
    padded = compare_runs(RunValues(leaves[0]), RunValues(leaves[1]))
    assert padded.ops[0].outputs[0].state is State.SAME_VALUES


@pytest.mark.parametrize(
    ("op_type", "is_one"),
    [("DropOutGenMask", True), ("DropOutGenMaskV3", True), ("StatelessDropOutGenMask", True), ("RandomUniform", True),
     ("StatelessRandomUniformV2", True), ("TruncatedNormal", True), ("Multinomial", True), ("DSAGenBitMask", True),
     ("StatefulStandardNormalV2", True), ("StatefulUniformFullInt", True), ("NonDeterministicInts", True),
     ("RngReadAndSkip", True), ("StatelessRandperm", True), ("SampleDistortedBoundingBoxExt2", True),
     ("FractionalMaxPool", True), ("LogUniformCandidateSampler", True), ("SimThreadExponential", True),
     ("DropoutV2", True), ("DropoutWithMulsAndSoftmaxGrad", False), ("FractionalMaxPoolGrad", False),
     ("AxpyWithSoftmaxAndDropOutDoMask", False), ("ShuffleChannel", False), ("StatefulPartitionedCall", False),
     ("DropOutDoMask", False), ("Conv2D", False), ("BatchNorm", False), ("Add", False), ("Normalize", False)],
)  # fmt: skip
def test_types_that_are_random_by_design(op_type: str, is_one: bool) -> None:
    assert is_random_type(op_type) is is_one


def test_random_by_design_is_told_from_the_rest(tmp_path: Path) -> None:
    def steps(mask: Array, out: Array) -> list[Step]:
        return [
            Step(name="shape", output=numbers(2)),
            Step(name="mask", type="DropOutGenMask", inputs=("shape",), output=mask),
            Step(name="out", inputs=("mask",), output=out),
        ]

    left, right = steps(numbers(1, 0), numbers(5, 0)), steps(numbers(0, 1), numbers(0, 5))
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert kinds(found) == {"shape": Kind.EQUAL, "mask": Kind.EXPECTED, "out": Kind.FOLLOWER}
    assert (found.first, found.is_clean) == (None, True)


def test_other_data(tmp_path: Path) -> None:
    found = compare_runs(
        run(tmp_path / "l", chain(numbers(1), numbers(2))), run(tmp_path / "r", chain(numbers(9), numbers(8)))
    )
    assert kinds(found) == {"a": Kind.DATA, "b": Kind.FOLLOWER}
    assert not found.is_clean


def test_inputs_that_were_not_dumped(tmp_path: Path) -> None:
    left = [replace(step, with_inputs=False) for step in chain(numbers(1), numbers(2), numbers(3))]
    right = [*left[:1], replace(left[1], output=numbers(2.5)), replace(left[2], output=numbers(3.5))]
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert kinds(found) == {"a": Kind.EQUAL, "b": Kind.RANDOM, "c": Kind.FOLLOWER}
    blind = compare_runs(run(tmp_path / "x", left, with_graph=False), run(tmp_path / "y", right, with_graph=False))
    assert kinds(blind) == {"a": Kind.EQUAL, "b": Kind.UNSURE, "c": Kind.UNSURE}


def test_memory_of_an_input_that_the_op_writes_is_no_input(tmp_path: Path) -> None:
    """Dumps are made after an op ran: the input of an update in place already holds its result."""

    def steps(value: float) -> list[Step]:
        return [
            Step(name="variable", type="Variable", output=numbers(1), address=0x1000, dumped=False),
            Step(name="grad", output=numbers(3), address=0x2000),
            Step(name="update", type="Apply", inputs=("variable", "grad"), output=numbers(value), address=0x1000,
                 read={0: numbers(value)}),
        ]  # fmt: skip

    found = compare_runs(run(tmp_path / "l", steps(2)), run(tmp_path / "r", steps(2.5)))
    assert kinds(found) == {"grad": Kind.EQUAL, "update": Kind.RANDOM}
    assert [one.in_place for one in found.ops[1].slots] == [True, False, False]


@pytest.mark.parametrize(("before", "kind"), [(3, Kind.FOLLOWER), (2, Kind.RANDOM)])
def test_what_an_update_in_place_was_fed_its_producer_tells(tmp_path: Path, before: float, kind: Kind) -> None:
    def steps(made: float, after: float) -> list[Step]:
        return [
            Step(name="x", type="Data", output=numbers(0), dumped=False),
            Step(name="make", inputs=("x",), output=numbers(made), address=0x1000),
            Step(name="relu", type="Relu", inputs=("make",), output=numbers(after), address=0x1000,
                 read={0: numbers(after)}),
        ]  # fmt: skip

    found = compare_runs(run(tmp_path / "l", steps(2, 4)), run(tmp_path / "r", steps(before, 5)))
    assert kinds(found)["relu"] is kind


def test_an_update_in_place_of_what_no_dump_has_is_unsure(tmp_path: Path) -> None:
    def steps(after: float) -> list[Step]:
        return [
            Step(name="kernel", type="Variable", output=numbers(1), address=0x1000, dumped=False),
            Step(name="relu", type="Relu", inputs=("kernel",), output=numbers(after), address=0x1000),
        ]

    found = compare_runs(run(tmp_path / "l", steps(2)), run(tmp_path / "r", steps(2.5)))
    (op,) = found.ops
    assert op.kind is Kind.UNSURE
    assert "afterwards" in reason_words(op.why)


@pytest.mark.parametrize(("error", "words"), [(2.0**-22, "within rounding"), (0.01, "larger than rounding")])
def test_what_the_size_of_the_difference_says(tmp_path: Path, error: float, words: str) -> None:
    left, right = chain(numbers(1), numbers(4, 5)), chain(numbers(1), numbers(4 * (1 + error), 5))
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert found.first is not None
    assert words in reason_words(found.first.why)


def test_other_types_are_no_roundings(tmp_path: Path) -> None:
    left, right = chain(numbers(1), numbers(4, 5)), chain(numbers(1), np.array([4, 5], np.float16))
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert "output:0 is float32 [2] and float16 [2]" in reason_words(found.ops[1].why)


def test_statistics_do_not_tell_how_far_off(tmp_path: Path) -> None:
    left, right = chain(numbers(1), numbers(4)), chain(numbers(1), numbers(5))
    found = compare_runs(run(tmp_path / "l", left, statistics=True), run(tmp_path / "r", right, statistics=True))
    assert reason_words(found.ops[1].why).endswith("output:0 is not: the size of the difference cannot be measured")


def test_an_op_whose_outputs_were_not_dumped_is_not_called_the_same(tmp_path: Path) -> None:
    runs = []
    for name in "lr":
        folder = tmp_path / name / STAMP / "0" / MODEL / "1" / "0"
        path = folder / dump_file_name("Add", "a", 0, TIMESTAMP, stream_id=0)
        write_dump(path, "a", [numbers(1)], [])
        runs.append(RunValues(find_run(str(tmp_path / name)).leaves[0]))
    assert kinds(compare_runs(*runs)) == {"a": Kind.NOT_COMPARED}


def test_other_shapes_and_ops_of_one_run(tmp_path: Path) -> None:
    left = [*chain(numbers(1), numbers(2, 3)), Step(name="mine", output=numbers(1))]
    right = [*chain(numbers(1), numbers(2, 3, 4)), Step(name="theirs", output=numbers(1))]
    found = compare_runs(run(tmp_path / "l", left), run(tmp_path / "r", right))
    assert (found.left_only, found.right_only, found.is_pair, found.is_clean) == (("mine",), ("theirs",), False, False)
    assert kinds(found)["b"] is Kind.RANDOM
    assert "[2] and" in reason_words(found.ops[1].outputs[0].reason)


def test_slices_are_compared_thread_by_thread(tmp_path: Path) -> None:
    """Threads end in another order in each run; the newest files would be of different threads."""

    def sliced(folder: Path, values: Sequence[float], order: Sequence[int]) -> RunValues:
        leaf = folder / STAMP / "0" / MODEL / "1" / "0"
        for place, thread in enumerate(order):
            name = dump_file_name("Add", "op", 3, TIMESTAMP + place, stream_id=0, ffts=(7, thread, 0))
            write_dump(leaf / name, "op", [numbers(thread)], [numbers(values[thread])])
        return RunValues(find_run(str(folder)).leaves[0])

    left = sliced(tmp_path / "l", [1, 2], [0, 1])
    same = compare_runs(left, sliced(tmp_path / "r", [1, 2], [1, 0]))
    assert kinds(same) == {"op": Kind.EQUAL}
    other = compare_runs(left, sliced(tmp_path / "x", [1.5, 2], [1, 0]))
    assert kinds(other) == {"op": Kind.RANDOM}
    (output,) = other.ops[0].outputs
    assert (reason_words(output.reason), output.metrics is not None and output.metrics.max_absolute_error) == (
        "thread 0",
        0.5,
    )


def test_damaged_files(tmp_path: Path) -> None:
    steps = chain(numbers(1), numbers(2), numbers(3))
    left, right = run(tmp_path / "l", steps), run(tmp_path / "r", steps)
    path = Path(right.leaf.files[1].path)
    path.write_bytes(path.read_bytes()[:-1])
    found = compare_runs(left, right)
    assert kinds(found) == {"a": Kind.EQUAL, "b": Kind.NOT_COMPARED, "c": Kind.EQUAL}
    text = console_text(random_lines(found, 3))
    assert "2 the same, 1 not compared" in text
    assert "are the same; 1 more could not be compared" in text
    assert "of those that could be compared: b could not: output:0" in text
    assert found.ops[1].outputs[0].state is State.UNKNOWN
    assert any(str(path) in str(why) for why in found.unreadable)


# --- memory -----------------------------------------------------------------------------------------------------------


def overwritten(**changes: Any) -> list[Step]:
    """`use` reads 16 bytes that `make` put out at 0x1000, of which `other` has overwritten the second half."""
    return [
        Step(name="make", output=numbers(1, 2, 3, 4), address=0x1000),
        Step(name="idle", output=numbers(9), address=0x3000),
        replace(Step(name="other", output=numbers(7, 8, 9), address=0x1008), **changes),
        Step(name="use", inputs=("make",), output=numbers(5), address=0x4000, read={0: numbers(1, 2, 7, 8)}),
    ]


def test_overwritten_memory(tmp_path: Path) -> None:
    (stomp,), checked = check_memory(run(tmp_path, overwritten()), "debug_0")
    assert checked == 1
    assert (stomp.consumer, stomp.slot, stomp.producer, stomp.index) == ("use", 0, "make", 0)
    expected = np.flatnonzero(numbers(1, 2, 3, 4).view(np.uint8) != numbers(1, 2, 7, 8).view(np.uint8))
    found = stomp.difference
    assert (found.first, found.last, found.count) == (expected[0], expected[-1], expected.size)
    assert (stomp.address, stomp.nbytes, stomp.ran_between) == (0x1000, 16, 2)
    assert [(one.name, one.writes, one.holds) for one in stomp.suspects] == [("other", True, True)]
    assert [one.name for one in stomp.between] == ["other", "idle"]


def test_who_writes_elsewhere_is_no_suspect(tmp_path: Path) -> None:
    (stomp,), _ = check_memory(run(tmp_path, overwritten(address=0x1010)), "debug_0")
    assert stomp.suspects == ()
    (stomp,), _ = check_memory(run(tmp_path / "x", overwritten(output=numbers(6, 6, 6))), "debug_0")
    assert [one.holds for one in stomp.suspects] == [False]
    (stomp,), _ = check_memory(run(tmp_path / "y", overwritten(address=0)), "debug_0")
    assert stomp.suspects == ()


def test_writing_in_place_is_no_fault(tmp_path: Path) -> None:
    itself = overwritten()
    itself[3] = replace(itself[3], output=numbers(1, 2, 7, 8), address=0x1000)
    assert check_memory(run(tmp_path / "a", itself), "")[0] == ()
    update = overwritten(inputs=("make",))
    assert check_memory(run(tmp_path / "b", update), "")[0] == ()


@pytest.mark.parametrize(("kind", "is_fault"), [("Variable", False), ("Add", True)])
def test_a_variable_that_is_updated_is_no_fault(tmp_path: Path, kind: str, is_fault: bool) -> None:
    steps = [
        Step(name="kernel", type=kind, output=numbers(1, 2), address=0x1000, dumped=False),
        Step(name="new", output=numbers(3, 4), address=0x2000),
        Step(name="assign", type="Assign", inputs=("kernel", "new"), output=numbers(3, 4), address=0x1000),
        Step(name="apply", type="Apply", inputs=("kernel", "new"), output=numbers(5, 6), address=0x1000),
        Step(name="use", inputs=("assign",), output=numbers(0, 0), address=0x3000, read={0: numbers(5, 6)}),
    ]
    stomps, _ = check_memory(run(tmp_path, steps), "")
    assert [stomp.consumer for stomp in stomps] == ["use"] * is_fault


def test_memory_behind_a_reshape(tmp_path: Path) -> None:
    steps = overwritten()
    steps.insert(3, Step(name="shape", type="Reshape", inputs=("make",), output=numbers(1, 2, 3, 4), address=0x1000,
                         dumped=False))  # fmt: skip
    steps[4] = replace(steps[4], inputs=("shape",))
    (stomp,), _ = check_memory(run(tmp_path / "a", steps), "")
    assert (stomp.producer, stomp.consumer) == ("make", "use")
    # What an op without a dump computed is not compared.
    steps[3] = replace(steps[3], type="Relu")
    assert check_memory(run(tmp_path / "b", steps), "") == ((), 0)


def test_without_a_graph_memory_is_not_checked(tmp_path: Path) -> None:
    assert check_memory(run(tmp_path, overwritten(), with_graph=False), "") == ((), 0)


# --- bytes ------------------------------------------------------------------------------------------------------------


def tensor(path: Path, array: Array) -> Tensor:
    np.save(path, array)
    (found,) = open_op_dump(str(path)).outputs
    assert isinstance(found, Tensor)
    return found


def test_where_bytes_differ(tmp_path: Path) -> None:
    one = np.zeros(3 << 20, np.uint8)
    two = one.copy()
    two[[1_000_000, 1_048_576, 3_000_000]] = 1
    left, right = tensor(tmp_path / "a.npy", one), tensor(tmp_path / "b.npy", two)
    found = difference(left, right)
    assert found is not None
    assert (found.first, found.last, found.count) == (1_000_000, 3_000_000, 3)
    assert difference(left, left) is None
    assert is_alike(left, right)
    assert not is_alike(left, replace(right, dtype="int8"))
    assert same_range(left, 5, right, 2_000_000, 900_000)
    assert not same_range(left, 5, right, 999_999, 9)
    (tmp_path / "b.npy").write_bytes(b"short")
    with pytest.raises(FormatError):
        difference(left, right)


# --- demos ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 4])
def test_the_demos_truth(tmp_path: Path, seed: int) -> None:
    from precision_tool.lib.data.settings import Settings
    from precision_tool.lib.session import Session

    truth = generate_demo(tmp_path / "random", fault="random", seed=seed)
    (found,) = Session(Settings(data=tmp_path / "random")).random_errors()
    assert found.first is not None
    assert found.first.name == truth.culprit
    assert [op.op_type for op in found.of(Kind.EXPECTED)] == ["DropOutGenMask"]
    assert (len(found.of(Kind.RANDOM)), found.of(Kind.DATA, Kind.UNSURE), found.stomps) == (1, (), ())
    truth = generate_demo(tmp_path / "stomp", fault="stomp", seed=seed)
    (found,) = Session(Settings(data=tmp_path / "stomp")).random_errors()
    assert found.stomps[0].consumer == truth.culprit
    assert [(one.name, one.holds) for one in found.stomps[0].suspects] == [(truth.overwriter, True)]
