"""Own or received, the way there, the loss scale and the advice, on graphs of a few ops."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MODEL, STAMP, TIMESTAMP, graph_op, text_graph, write_dump
from op_steps import Step, chain, write_steps
from opdebug_payloads import AIC, core_fields, new_payload, old_payload, write_status
from rich.console import Console

from precision_tool.lib.compare.run_values import RunOp, RunValues
from precision_tool.lib.data.dump_tree import find_run, find_status_files, parse_status_name
from precision_tool.lib.data.dumped_ops import DumpIndex
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.neighbourhood import Node, Wiring
from precision_tool.lib.data.neighbourhood import Step as GraphStep
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo import device as faults
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.headroom import LossScale, fitting_scale, is_gradient, scale_step, trail_to
from precision_tool.lib.diagnose.overflow import (
    LeafOverflow,
    Mode,
    Origin,
    OverflowReport,
    StatusReader,
    StatusReport,
    bad_values,
    graph_for,
    read_statuses,
    scan_leaf,
    share_text,
)
from precision_tool.lib.diagnose.overflow_advice import Advice, AdviceKind, advise, black_list
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.comparison import Extremes
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.session import Session
from precision_tool.lib.view.overflow_screen import trail_table

HALF = 65504


def half(*numbers: float) -> Any:
    return np.array(numbers, np.float16)


def sized(largest: float | None) -> Extremes | None:
    """A tensor of the benchmark with this largest value."""
    return Extremes(dtype="float32", count=1, limit=3.4e38, largest=largest) if largest else None


def single(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def scan(leaf: DumpLeaf, graph: RunGraph | None = None, **options: Any) -> LeafOverflow:
    return scan_leaf(RunValues(leaf, None if graph is None else graph.file), graph, **options)


@dataclass(frozen=True, kw_only=True)
class Tree:
    root: Path
    leaf: DumpLeaf
    graph: RunGraph

    def scan(self, **options: Any) -> LeafOverflow:
        return scan(self.leaf, options.pop("graph", self.graph), **options)


def advice_on(leaf: LeafOverflow) -> tuple[Advice, ...]:
    return advise(OverflowReport(statuses=(), leaves=(leaf,)))


def tree(root: Path, steps: Sequence[Step], *, statistics: bool = False, folder: str = "npu/debug_0/dump") -> Tree:
    leaf, file = write_steps(root / folder, steps, root / "graph.txt", statistics=statistics)
    return Tree(root=root, leaf=leaf, graph=RunGraph(number=0, leaf=leaf, file=file, reason=None, leaves=(leaf,)))


# --- own or received --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize(
    ("bad", "mode"), [(HALF, Mode.SATURATION), (-HALF, Mode.SATURATION), (np.inf, Mode.INF_NAN), (np.nan, Mode.INF_NAN)]
)
def test_the_first_op_that_makes_it(tmp_path: Path, bad: float, mode: Mode, statistics: bool) -> None:
    found = tree(tmp_path, chain(half(1, 2), half(3, 4), half(bad, 5), half(bad, 6)), statistics=statistics).scan()
    assert [(op.name, op.origin) for op in found.ops] == [("c", Origin.OWN), ("d", Origin.RECEIVED)]
    assert found.first is found.ops[0]
    assert found.mode is mode
    assert "from c" in render(found.ops[1].why)
    assert (found.scanned_ops, found.scanned_bytes) == (4, 16)


def test_a_clean_run(tmp_path: Path) -> None:
    found = tree(tmp_path, chain(half(1), half(2))).scan()
    assert (found.ops, found.first, found.mode) == ((), None, Mode.NONE)
    report = OverflowReport(statuses=(), leaves=(found,))
    assert report.is_clean
    assert advise(report) == ()


@pytest.mark.parametrize(
    ("bad", "golden", "is_meant"),
    [
        (np.inf, {"positive_inf_count": 1}, True),
        (np.inf, {}, False),
        (np.inf, {"positive_inf_count": 2}, False),
        (np.nan, {"nan_count": 1}, True),
        (-HALF, {"largest": 65504.0}, True),
        (-HALF, {"largest": 70000.0}, False),
    ],
)
def test_what_the_benchmark_has_too_is_no_overflow(
    tmp_path: Path, bad: float, golden: dict[str, Any], is_meant: bool
) -> None:
    """The Inf of a mask, and what follows from it."""
    made = tree(tmp_path, chain(half(1, 2), half(bad, 2), half(bad, 3)))
    other = replace(Extremes(dtype="float32", count=2, limit=3.4e38, largest=2.0), **golden)
    found = made.scan(golden=lambda op, slot: other)
    assert found.ops[0].origin is (Origin.MEANT if is_meant else Origin.OWN)
    assert (found.first is None) == is_meant
    assert OverflowReport(statuses=(), leaves=(found,)).is_clean == is_meant


def test_integers_and_wide_types_are_no_overflow(tmp_path: Path) -> None:
    big = np.array([2**31 - 1], np.int32)
    assert tree(tmp_path, chain(big, single(HALF), single(1e30))).scan().ops == ()


def test_the_data_itself(tmp_path: Path) -> None:
    found = tree(tmp_path, chain(half(np.nan), half(np.nan))).scan()
    assert [(op.name, op.origin) for op in found.ops] == [("a", Origin.SOURCE), ("b", Origin.RECEIVED)]
    assert advice_on(found)[0].kind is AdviceKind.VALUES


def test_inputs_that_were_not_dumped_are_the_outputs_before(tmp_path: Path) -> None:
    steps = [replace(step, with_inputs=False) for step in chain(half(1), half(HALF), half(HALF))]
    steps.insert(1, Step(name="shape", type="Reshape", inputs=("a",), output=half(1), dumped=False))
    steps[2] = replace(steps[2], inputs=("shape",))
    found = tree(tmp_path, steps).scan()
    assert [(op.name, op.origin) for op in found.ops] == [("b", Origin.OWN), ("c", Origin.RECEIVED)]


def test_what_feeds_it_is_nowhere(tmp_path: Path) -> None:
    constant = Step(name="const", type="Const", output=half(1), dumped=False)
    steps = [constant, Step(name="b", inputs=("const",), output=half(HALF), with_inputs=False)]
    found = tree(tmp_path, steps).scan()
    assert found.ops[0].origin is Origin.UNKNOWN
    advice = advice_on(found)
    assert [one.kind for one in advice] == [AdviceKind.UPSTREAM, AdviceKind.MIXLIST, AdviceKind.KEEP_DTYPE]


def test_without_a_graph_the_order_is_that_of_the_files(tmp_path: Path) -> None:
    found = tree(tmp_path, chain(half(1), half(HALF), half(HALF))).scan(graph=None)
    assert [(op.name, op.origin) for op in found.ops] == [("b", Origin.OWN), ("c", Origin.RECEIVED)]
    alone = tree(tmp_path / "x", [Step(name="a", output=half(HALF))]).scan(graph=None)
    assert alone.ops[0].origin is Origin.UNKNOWN


def test_ops_that_the_graph_does_not_name_run_when_their_files_were_written(tmp_path: Path) -> None:
    made = tree(tmp_path, chain(half(1), half(2), half(HALF), half(HALF), names=("a", "b", "c", "d")))
    lines = made.graph.file.path
    ops = [graph_op("a", "Add", []), graph_op("c", "Add", ["a:0"]), graph_op("d", "Add", ["c:0"])]
    Path(lines).write_text(text_graph(ops))
    file = load_graph_file(lines)
    assert [op.name for op in RunValues(made.leaf, file).ops] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("folder", ["data", "host:2026-11-22 05:30"])
def test_damaged_files_are_told_and_the_others_scanned(tmp_path: Path, folder: str) -> None:
    made = tree(tmp_path / folder, chain(half(1), half(2), half(HALF)))
    path = Path(made.leaf.files[1].path)
    path.write_bytes(path.read_bytes()[:-1])
    Path(made.leaf.files[0].path).write_bytes(b"no dump")
    found = made.scan()
    assert [op.name for op in found.ops] == ["c"]
    assert set(found.unreadable) == {made.leaf.files[0].path, made.leaf.files[1].path}


def test_a_scan_of_so_many_bytes(tmp_path: Path) -> None:
    made = tree(tmp_path, chain(half(1), half(2), half(HALF)))
    found = made.scan(max_bytes=3)
    assert (found.scanned_ops, found.left_out, found.ops) == (2, 1, ())
    told: list[int] = []
    made.scan(progress=told.append)
    assert told == [2, 2, 2]


def test_figures_of_the_ops_shown_are_those_of_the_network(tmp_path: Path) -> None:
    """Padding does not count."""
    images = np.full((1, 2, 2, 3), 7, np.float16)
    images[0, 0, 0, 0] = HALF
    leaf = tmp_path / "dump" / STAMP / "0" / MODEL / "1" / "0"
    stored = OutTensor.packed(images, "NC1HWC0", "NHWC")
    write_dump(leaf / dump_file_name("Conv2D", "a", 1, TIMESTAMP, stream_id=0), "a", [half(1)], [stored])
    (one,) = find_run(str(tmp_path / "dump")).leaves
    (op,) = scan(one, None).ops
    summary = op.slots[-1].summary
    assert summary is not None
    exact = images.astype(np.float64)
    assert (summary.count, summary.minimum, summary.maximum) == (12, 7, HALF)
    assert summary.mean == pytest.approx(exact.mean())


# --- the way there ----------------------------------------------------------------------------------------------------


def test_the_trail_follows_the_largest_input(tmp_path: Path) -> None:
    steps = [
        Step(name="image", type="GetNext", output=half(1)),
        Step(name="weights", type="Const", output=half(1024), dumped=False),
        Step(name="cast", type="Cast", inputs=("weights",), output=half(1024)),
        Step(name="mul", type="Mul", inputs=("image", "cast"), output=half(4096)),
        Step(name="sum", type="Sum", inputs=("mul",), output=half(HALF)),
    ]
    made = tree(tmp_path, steps)
    values = RunValues(made.leaf, made.graph.file)
    op = values.find("sum")
    assert op is not None
    trail = trail_to(values, op, 0, lambda one, slot: sized(2.0**18))
    assert [(step.op_name, step.dumped) for step in trail] == [
        ("weights", False), ("cast", True), ("mul", True), ("sum", True)
    ]  # fmt: skip
    assert [step.growth for step in trail] == [10, 0, 2, 6]
    assert trail[2].extremes.headroom == pytest.approx(log2(65504 / 4096))
    assert (trail[3].extremes.headroom, trail[3].true_largest) == (0, 2.0**18)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_of_inf_and_nan_a_trail_does_not_say_what_they_took(tmp_path: Path, bad: float) -> None:
    made = tree(tmp_path, chain(half(4), half(16, bad)))
    found = made.scan()
    assert [step.growth for step in found.trail][-1] is None
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(trail_table(found.trail))
    row = next(line.split() for line in console.export_text().splitlines() if line.endswith("b (Add)"))
    assert row[1:4] == (["Inf", "0.0", "-"] if bad == np.inf else ["NaN", "-", "-"])
    kinds = [one.kind for one in advice_on(found)]
    assert (AdviceKind.VALUES in kinds) is (bad != np.inf)  # 0 / 0 gives NaN at once


def test_a_trail_in_a_damaged_graph_with_a_loop_ends(tmp_path: Path) -> None:
    steps = [Step(name="a", inputs=("b",), output=half(3)), Step(name="b", inputs=("a",), output=half(HALF))]
    made = tree(tmp_path, steps)
    values = RunValues(made.leaf, made.graph.file)
    op = values.find("b")
    assert op is not None
    assert [step.op_name for step in trail_to(values, op, 0)] == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("gradients/fc1/MatMul_grad/MatMul", True), ("tower/gradients_1/x", True), ("gradient_tape/a/b", True),
     ("scope/gradients/x", True), ("ingredients/x", False), ("fc1/MatMul", False)],
)  # fmt: skip
def test_names_of_gradients(name: str, is_one: bool) -> None:
    assert is_gradient(RunOp(number=0, index=0, name=name, op_type="", timestamp=0, flat="")) is is_one


def gradient_tree(root: Path, *sizes: float) -> Tree:
    """The loss scale, then gradients with these sizes one behind the other."""
    scale = Step(name="loss_scale/read", type="Const", output=single(1024), dumped=False)
    steps = [scale, Step(name="gradients/scale/Mul", type="Mul", inputs=("loss_scale/read",), output=single(1024))]
    for number, size in enumerate(sizes):
        steps.append(Step(name=f"gradients/op{number}/Mul", inputs=(steps[-1].name,), output=half(size)))
    return tree(root, steps)


def test_a_loss_scale_with_room(tmp_path: Path) -> None:
    made = gradient_tree(tmp_path, 100, 1000)
    scale = made.scan().scale
    assert scale is not None
    # 65504 / 1000 is 6.03 bits; one stays free.
    assert (scale.exponent, scale.current, scale.fitting) == (5, 1024, 32768)
    assert scale.source == "loss_scale/read"
    assert "the loss scale could be raised to 32768 (it is 1024" in render(scale_step(scale))


def test_a_loss_scale_that_is_too_large(tmp_path: Path) -> None:
    made = gradient_tree(tmp_path, 100, np.inf, np.inf)
    bound = made.scan().scale
    assert bound is not None
    assert (bound.is_bound, bound.exponent, bound.fitting) == (True, -1, 512)
    assert "at most 512" in render(scale_step(bound))
    sizes = {"gradients/op0/Mul": 100.0, "gradients/op1/Mul": 70000.0, "gradients/op2/Mul": 300000.0}
    exact = made.scan(golden=lambda op, slot: sized(sizes.get(op.name))).scale
    assert exact is not None
    # 300000 is 2.2 bits too many: three, and one stays free.
    assert (exact.is_bound, exact.exponent, exact.fitting) == (False, -4, 64)
    # The benchmark ran without a loss scale: its clean gradient shows by how much it is smaller.
    small = made.scan(golden=lambda op, slot: sized(sizes.get(op.name, 0.0) / 1024)).scale
    assert small is not None
    assert small.exponent == -4


@pytest.mark.parametrize(
    ("exponent", "is_bound", "words"),
    [(5, False, "32 times the present loss scale"), (0, False, "keep"), (-3, False, "divide the loss scale by 8"),
     (-1, True, "by at least 2")],
)  # fmt: skip
def test_words_for_a_loss_scale_that_is_not_known(exponent: int, is_bound: bool, words: str) -> None:
    assert words in render(
        scale_step(
            LossScale(reason=Message("check.loss_scale.bits_left", bits=0.0), exponent=exponent, is_bound=is_bound)
        )
    )


def test_gradients_of_unknown_sizes(tmp_path: Path) -> None:
    zeros = gradient_tree(tmp_path / "zeros", 0.0, 0.0).scan().scale
    assert zeros is not None
    assert (zeros.exponent, zeros.fitting) == (None, None)
    assert zeros.reason == Message("check.loss_scale.zero")
    made = gradient_tree(tmp_path / "statistics", 4.0, 8.0)
    for file in made.leaf.files:
        if "gradients_op" in file.path:
            number = Path(file.path).name.split(".")[2]
            os.unlink(file.path)
            values = "NA,NA,NA" if number == "2" else "8,-1,0"
            header = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count"
            Path(f"{file.path}.csv").write_text(f"{header}\nOutput,0,2,DT_FLOAT16,ND,1,{values},1\n")
    (leaf,) = find_run(str(made.root / "npu")).leaves
    partly = scan(leaf, made.graph).scale
    assert partly is not None
    # log2(65504 / 8) is 12.9996, and one bit is kept free; of the other gradient nothing is known.
    assert (partly.exponent, partly.is_bound) == (11, True)


def test_a_loss_scale_does_not_help_the_forward_pass(tmp_path: Path) -> None:
    steps = [*chain(half(1), half(HALF)), Step(name="gradients/x", inputs=("b",), output=half(HALF))]
    found = tree(tmp_path, steps).scan()
    assert found.scale is not None
    assert found.scale.exponent is None
    kinds = [one.kind for one in advice_on(found)]
    assert kinds == [AdviceKind.MIXLIST, AdviceKind.KEEP_DTYPE]


def test_no_gradients_no_loss_scale(tmp_path: Path) -> None:
    assert tree(tmp_path, chain(half(1), half(2))).scan().scale is None
    made = gradient_tree(tmp_path / "x", 1)
    values = RunValues(made.leaf, made.graph.file)
    assert fitting_scale(values, None) is not None


def test_the_scale_that_is_told_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo generated anew with the loss scale that its overflow asks for has none; with four times that it has."""

    truth = generate_demo(tmp_path / "a", fault="scale")
    report, _ = Session(Settings(data=tmp_path / "a")).overflow()
    (leaf,) = report.leaves
    assert report.first is not None
    assert report.first.name == truth.culprit == truth.overflowed[0]
    assert leaf.scale is not None
    assert leaf.scale.current == faults.FAULTS["scale"].loss_scale
    assert leaf.scale.fitting is not None
    for factor, overflows in ((1, False), (4, True)):
        fault = replace(faults.FAULTS["scale"], loss_scale=leaf.scale.fitting * factor)
        monkeypatch.setitem(faults.FAULTS, "scale", fault)
        assert bool(generate_demo(tmp_path / "a", fault="scale").overflowed) is overflows


# --- status files -----------------------------------------------------------------------------------------------------


def test_each_scan_looks_once_whether_files_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at all files for each of the gradients would take quadratic time."""
    generate_demo(tmp_path / "precision_data", fault="scale")
    looks: list[str] = []
    forget = DumpIndex.forget_changed

    def counting(index: DumpIndex) -> None:
        looks.append(index.leaf.path)
        forget(index)

    monkeypatch.setattr(DumpIndex, "forget_changed", counting)
    session = Session(Settings(data=tmp_path / "precision_data"))
    for scans in (1, 2):
        report, _ = session.overflow(None, None, 1)
        assert report.leaves[0].scale is not None
        assert len(looks) == scans


def read(made: Tree, folder: str = "overflow/dump") -> tuple[StatusReport, ...]:
    root = str(made.root / folder)
    reader = StatusReader(root, (), lambda leaf: made.graph)
    reports, unreadable = read_statuses(find_status_files(root), reader, 3)
    assert unreadable == ()
    return reports


def overflow_tree(root: Path, *outputs: Any) -> Tree:
    return tree(root, chain(*outputs), folder="overflow/dump")


def test_the_op_is_found_by_task_and_stream(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1), half(HALF), half(HALF))
    folder = Path(made.leaf.path)
    write_status(folder, new_payload(AIC, core_fields(task=2)), task=1, timestamp=TIMESTAMP + 21)
    write_status(folder, old_payload(core=0x400, task=1), task=0, timestamp=TIMESTAMP + 11)
    write_status(folder, new_payload(AIC, core_fields(task=1, stream=5)), timestamp=TIMESTAMP + 30)
    one, two, three = read(made)
    assert [(status.op.name, status.op.origin) if status.op else None for status in (one, two, three)] == [
        ("b", Origin.OWN),
        ("c", Origin.RECEIVED),
        None,
    ]
    assert one.units[0].bits == (Message("check.status.cube", word=None),)
    assert (one.device, one.step) == ("0", "0")
    assert [(one.task, one.stream) for one in three.doubts] == [(1, 5)]


def test_the_units_of_an_old_status_may_tell_of_two_ops(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1), half(HALF), half(HALF))
    of_core, of_dha = old_payload(core=0x20, dha=0x9 << 8, task=1), old_payload(task=2)
    write_status(Path(made.leaf.path), of_dha[:128] + of_core[128:])
    told = [(one.units[0].unit, len(one.units), one.op.name if one.op else None) for one in read(made)]
    assert told == [("DHA Atomic Add", 1, "c"), ("AI Core", 1, "b")]
    write_status(Path(made.leaf.path), of_core)
    (status,) = read(made)
    assert [unit.unit for unit in status.units] == ["DHA Atomic Add", "AI Core"]


def test_an_overflow_inside_an_op(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1), half(2))
    write_status(Path(made.leaf.path), new_payload(AIC, core_fields([0x10], task=1)))
    (status,) = read(made)
    assert status.op is not None
    assert status.op.origin is Origin.HIDDEN
    report = OverflowReport(statuses=(status,), leaves=())
    assert not report.is_clean
    (advice,) = advise(report)
    assert (advice.kind, "integer" in render(advice.message)) == (AdviceKind.VALUES, True)
    status = replace(status, units=(replace(status.units[0], status=(0x20,)),))
    kinds = [one.kind for one in advise(OverflowReport(statuses=(status,), leaves=()))]
    assert kinds == [AdviceKind.MIXLIST, AdviceKind.KEEP_DTYPE]


def test_what_cannot_be_read_is_not_called_clean(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1), half(2))
    write_status(Path(made.leaf.path), new_payload(AIC, core_fields(task=1)))
    path = Path(made.leaf.files[1].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # its output is cut off
    (status,) = read(made)
    assert status.op is not None
    assert (status.op.origin, "cannot be read" in render(status.op.why)) == (Origin.UNKNOWN, True)
    path.write_bytes(b"nothing")
    (status,) = read(made)
    assert status.op is not None
    assert status.op.origin is Origin.UNKNOWN


def test_a_status_without_a_bit(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1))
    write_status(Path(made.leaf.path), new_payload(AIC, core_fields([0], task=0)))
    (status,) = read(made)
    assert status.op is None
    assert OverflowReport(statuses=(status,), leaves=()).is_clean


def test_contexts_and_threads_tell_slices_apart(tmp_path: Path) -> None:
    folder = tmp_path / "overflow" / "dump" / STAMP / "0" / MODEL / "1" / "0"
    for thread, value in ((0, 1), (1, HALF)):
        name = dump_file_name("Add", f"op{thread}", 3, TIMESTAMP + thread, stream_id=0, ffts=(7, thread, 0))
        write_dump(folder / name, f"op{thread}", [half(1)], [half(value)])
    for thread in (0, 1):
        payload = new_payload(AIC, core_fields(task=3, context=7, thread=thread))
        write_status(folder, payload, timestamp=TIMESTAMP + 9 + thread, ffts=f".4.7.{thread}.0")
    write_status(folder, new_payload(AIC, core_fields(task=3, context=8)), timestamp=TIMESTAMP + 20)
    root = str(tmp_path / "overflow" / "dump")
    reports, _ = read_statuses(find_status_files(root), StatusReader(root, (), lambda leaf: None), 3)
    assert [status.op.name if status.op else None for status in reports] == ["op0", "op1", None]
    assert [one.context for one in reports[2].doubts] == [8]


def test_all_slices_of_an_op_are_looked_at(tmp_path: Path) -> None:
    """Threads dump an op in slices; the newest alone would be clean."""
    folder = tmp_path / "dump" / STAMP / "0" / MODEL / "1" / "0"
    for thread, value in ((0, HALF), (1, 3)):
        name = dump_file_name("Add", "op", 3, TIMESTAMP + thread, stream_id=0, ffts=(7, thread, 0))
        write_dump(folder / name, "op", [half(1, 1)], [half(2, value)])
    (leaf,) = find_run(str(tmp_path / "dump")).leaves
    (op,) = scan(leaf, None).ops
    assert (op.origin, op.bad_outputs[0].extremes) == (
        Origin.OWN,
        Extremes(dtype="float16", count=4, limit=65504.0, largest=65504.0, saturated=1),
    )


def test_weights_that_are_bad_already(tmp_path: Path) -> None:
    steps = [
        Step(name="kernel", type="Variable", output=single(np.nan), dumped=False),
        Step(name="cast", type="Cast", inputs=("kernel",), output=half(np.nan)),
    ]
    found = tree(tmp_path, steps).scan()
    assert found.first is not None
    assert found.first.origin is Origin.RECEIVED
    (advice,) = advice_on(found)
    assert advice.message == Message("check.advice.held_before", producer="kernel")


def test_an_update_in_place_is_not_what_it_received(tmp_path: Path) -> None:
    """Dumps are made after an op ran: the variable it updates already holds the result."""
    folder = tmp_path / "dump" / STAMP / "0" / MODEL / "1" / "0"
    bad = OutTensor(data=single(np.nan), address=0x1000)
    for name, address in (("mine", 0x1000), ("theirs", 0x2000)):
        path = folder / dump_file_name("ApplyMomentum", name, 3, TIMESTAMP, stream_id=0)
        write_dump(path, name, [replace(bad, address=address), single(1)], [bad])
    (leaf,) = find_run(str(tmp_path / "dump")).leaves
    origins = {op.name: op.origin for op in scan(leaf, None).ops}
    assert origins == {"mine": Origin.OWN, "theirs": Origin.RECEIVED}


@pytest.mark.parametrize(
    ("between", "before", "origin"),
    [("Reshape", HALF, Origin.RECEIVED), ("Reshape", 2, Origin.OWN), ("Exp", HALF, Origin.OWN)],
)
def test_what_an_update_in_place_received_its_producer_tells(
    tmp_path: Path, between: str, before: float, origin: Origin
) -> None:
    """Also behind an op without a dump, if that leaves values as they are."""
    folder = tmp_path / "dump" / STAMP / "0" / MODEL / "1" / "0"
    made, after = OutTensor(data=half(1, before), address=0x1000), OutTensor(data=half(1, np.inf), address=0x1000)
    write_dump(folder / dump_file_name("Mul", "make", 0, TIMESTAMP, stream_id=0), "make", [half(1, 1)], [made])
    write_dump(folder / dump_file_name("Relu", "relu", 1, TIMESTAMP + 10, stream_id=0), "relu", [after], [after])
    ops = [("x", "Data", []), ("make", "Mul", ["x:0"]), ("mid", between, ["make:0"]), ("relu", "Relu", ["mid:0"])]
    graph = tmp_path / "graph.txt"
    graph.write_text(text_graph([graph_op(*op) for op in ops]))
    (leaf,) = find_run(str(tmp_path / "dump")).leaves
    file = load_graph_file(str(graph))
    relu = scan(leaf, RunGraph(number=0, leaf=leaf, file=file, reason=None, leaves=(leaf,))).ops[-1]
    assert (relu.name, relu.origin) == ("relu", origin)


def test_data_that_is_bad(tmp_path: Path) -> None:
    steps = [
        Step(name="IteratorV2", type="IteratorV2", output=single(0), dumped=False),
        Step(name="data", type="GetNext", inputs=("IteratorV2",), output=single(np.inf), with_inputs=False),
    ]
    assert tree(tmp_path, steps).scan().ops[0].origin is Origin.SOURCE


def test_decoded_files_elsewhere_and_data_dumps(tmp_path: Path) -> None:
    """The op of a status whose own dump is gone is looked for in the data dump, which is said."""
    made = tree(tmp_path, chain(half(1), half(HALF)))
    folder = tmp_path / "overflow" / "dump" / "flat"
    write_status(folder, new_payload(AIC, core_fields(task=1)))
    root = str(tmp_path / "overflow" / "dump")
    reader = StatusReader(root, (made.leaf,), lambda leaf: made.graph)
    ((status,), _) = read_statuses(find_status_files(root), reader, 3)
    assert status.op is not None
    assert (status.op.name, status.doubts[0].kind == "check.task.in_data_dump") == ("b", True)


def test_unreadable_status_files_do_not_stop_the_others(tmp_path: Path) -> None:
    made = overflow_tree(tmp_path, half(1), half(HALF))
    write_status(Path(made.leaf.path), b"\0" * 100, timestamp=TIMESTAMP + 5)
    write_status(Path(made.leaf.path), new_payload(AIC, core_fields(task=1)), timestamp=TIMESTAMP + 15)
    root = str(tmp_path / "overflow" / "dump")
    reports, unreadable = read_statuses(find_status_files(root), StatusReader(root, (), lambda leaf: made.graph), 3)
    assert [status.op.name for status in reports if status.op] == ["b"]
    ((path, why),) = unreadable
    assert "100 bytes" in str(why)
    assert path.endswith(str(TIMESTAMP + 5))


def test_a_graph_is_taken_by_the_ops_it_names(tmp_path: Path) -> None:
    made = tree(tmp_path, chain(half(1), half(2)))
    assert graph_for(made.leaf, [made.graph]) is made.graph
    elsewhere = replace(made.leaf, path="/nowhere", model_name="other")
    assert graph_for(elsewhere, [made.graph]) is made.graph
    strangers = tree(tmp_path / "x", chain(half(1), half(2), names=["x", "y"]))
    assert graph_for(replace(strangers.leaf, model_name=""), [made.graph]) is None
    assert graph_for(made.leaf, []) is None


@pytest.mark.parametrize(
    ("name", "decoded"),
    [("Opdebug.Node_OpDebug.1.2.1772443800000000", False), ("OpDebug.Node_Opdebug.1.2.1772443800000000", False),
     ("Opdebug.Node_OpDebug.1.1772443800000000", False), ("Opdebug.Node_OpDebug.1.2.1772443800000000.4.5.6.7", False),
     ("Opdebug.Node_OpDebug.1.2.1772443800000000.output.0.json", True),
     ("Add.Node_OpDebug.1.2.1772443800000000", None), ("Opdebug.json", None),
     ("Opdebug.Node_OpDebug.1.2.1772443800000000.csv", None)],
)  # fmt: skip
def test_names_of_status_files(name: str, decoded: bool | None) -> None:
    parsed = parse_status_name(name)
    assert (None if parsed is None else parsed[1]) is decoded


def test_a_file_decoded_beside_itself_is_one_status(tmp_path: Path) -> None:
    path = write_status(tmp_path, new_payload(AIC, core_fields()))
    path.with_name(path.name + ".output.0.json").write_text("{}")
    assert [file.path for file in find_status_files(str(tmp_path))] == [str(path)]
    assert find_status_files(str(tmp_path / "nowhere")) == ()


# --- advice -----------------------------------------------------------------------------------------------------------


def test_advice_for_a_cast_is_about_what_reads_it(tmp_path: Path) -> None:
    steps = [
        Step(name="a", output=single(1)),
        Step(name="b", inputs=("a",), output=single(1e6)),
        Step(name="cast", type="Cast", inputs=("b",), output=half(HALF)),
        Step(name="mm", type="MatMulV2", inputs=("cast",), output=half(HALF)),
    ]
    found = tree(tmp_path, steps).scan()
    advice = advice_on(found)
    assert black_list(advice) == ("MatMulV2",)
    assert any("mm" in line for one in advice for line in one.lines)


def test_advice_where_the_type_is_wide_enough(tmp_path: Path) -> None:
    found = tree(tmp_path, chain(single(1), single(np.nan))).scan()
    (advice,) = advice_on(found)
    assert (advice.kind, advice.message.kind == "check.advice.undefined") == (AdviceKind.VALUES, True)


def test_a_step_that_loss_scaling_skips_may_be_ignored(tmp_path: Path) -> None:
    steps = [*chain(half(1), half(HALF)), Step(name="status", type="NPUGetFloatStatus", output=single(1))]
    found = tree(tmp_path, steps).scan()
    other = replace(found, leaf=replace(found.leaf, step="1"), ops=())
    advice = advise(OverflowReport(statuses=(), leaves=(found, other)))
    assert advice[-1].kind is AdviceKind.IGNORE
    assert (advice[-1].message.overflowed, advice[-1].message.steps) == (1, 2)


def test_the_earliest_step_comes_first(tmp_path: Path) -> None:
    found = tree(tmp_path, chain(half(1), half(HALF))).scan()
    late, early = (replace(found, leaf=replace(found.leaf, step=step)) for step in ("10", "9"))
    assert OverflowReport(statuses=(), leaves=(late, early)).first_leaf is early


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 4, "25.0 %"), (1, 10**6, "< 0.1 %"), (10**6 - 1, 10**6, "> 99.9 %"), (5, 5, "100.0 %"), (0, 0, "-")],
)
def test_shares(part: int, whole: int, text: str) -> None:
    assert share_text(part, whole) == text


def test_words_for_what_is_bad() -> None:
    found = Extremes(dtype="float16", count=8, limit=65504.0, largest=65504.0, saturated=1, nan_count=2,
                     positive_inf_count=1)  # fmt: skip
    assert render(bad_values(found)) == "1 value of ±65504, 1 Inf, 2 NaN (50.0 %)"
    assert render(bad_values(replace(found, statistics_only=True))).startswith("one or more values of ±65504")


def test_the_inputs_of_an_op_are_followed_once_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"op{number}" for number in range(40)]
    steps = [Step(name=name, output=half(1)) for name in names]
    made = tree(tmp_path, [*steps, Step(name="hub", inputs=tuple(names), output=half(1))])
    values = RunValues(made.leaf, made.graph.file)
    hub = values.find("hub")
    assert hub is not None
    asked = []
    sources = Wiring.sources

    def counted(self: Wiring, node: Node, slot: int, passing: bool = False) -> list[GraphStep]:
        asked.append(slot)
        return sources(self, node, slot, passing)

    monkeypatch.setattr(Wiring, "sources", counted)
    made_by = [values.made_by(hub, slot) for slot in range(len(names))]
    assert [found and found[0].name for found in made_by] == names
    assert len(asked) == len(names)
