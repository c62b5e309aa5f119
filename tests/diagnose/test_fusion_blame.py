"""Verdicts on fused ops and passes, each of a tree made for it; and the smallest set of switches."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from small_tree import Node, small_tree, values

from precision_tool.lib.compare.folders import CompareOptions, compare_folders
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.matching import GraphDumps
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.demo.dump_writer import OutTensor, write_dump
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.fusion_blame import (
    Blame,
    BlameVerdict,
    OpBlame,
    PassBlame,
    blame,
    smallest_switches,
)
from precision_tool.lib.diagnose.run_checks import analyse
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.run import Run
from precision_tool.lib.model.wording import NO_PASS
from precision_tool.lib.view.fusion_screen import blame_lines, blame_notes, pass_words

RIGHT, WRONG, SLIGHTLY = values(1, 2, 3, 4), values(4, 3, 2, 1), values(1.05, 2.1, 2.85, 4)
FED = values(5, 6, 7, 8)


def data(output: Array = FED) -> Node:
    return Node(name="data", type="GetNext", output=output, originals=("data",))


def unfused(fed: Array = FED) -> list[Node]:
    source = data(fed)
    first = Node(name="a", type="Thing", inputs=(source,), output=values(9, 9, 9, 8), originals=("a",))
    return [source, first, Node(name="b", type="Thing", inputs=(first,), output=RIGHT, originals=("b",))]


def fused(
    output: Array | None, fed: Array = FED, passes: Sequence[str] = ("ThingPass",), op_type: str = "Thing"
) -> list[Node]:
    source = data(fed)
    op = Node(name="a+b", type=op_type, inputs=(source,), output=output, originals=("a", "b"), passes=tuple(passes))
    return [source, op]


def judged(tmp_path: Path, one: Sequence[Node], two: Sequence[Node]) -> Blame:
    """The verdict on the run of `one`, compared with that of `two`."""
    trees = [small_tree(tmp_path / f"run{number}", nodes) for number, nodes in enumerate((one, two))]
    (result,) = compare_folders(
        str(trees[0].leaf), str(trees[1].leaf), resources=THIS_THREAD, options=CompareOptions(other_graph="")
    )
    return verdict_of(result)


def verdict_of(result: object) -> Blame:
    from precision_tool.lib.compare.folders import LeafResult

    assert isinstance(result, LeafResult)
    analysis = analyse("", result.table, 0.98, result)
    golden = find_golden(result.golden_root)
    if not isinstance(golden, Run):
        return blame(analysis, golden)
    assert result.other_graph is not None
    return blame(analysis, GraphDumps(golden.leaves[0], result.other_graph.file), result.other_graph.file)


@pytest.mark.parametrize(
    ("output", "fed", "verdict", "sign"),
    [
        (WRONG, FED, BlameVerdict.GUILTY, "inputs_agree"),
        (RIGHT, FED, BlameVerdict.CLEAN, "agrees"),
        (SLIGHTLY, FED, BlameVerdict.SUSPICIOUS, "not_below"),
        (WRONG, FED[::-1].copy(), BlameVerdict.NOT_JUDGED, "may_be_inherited"),
        (values(-9, 9, -9, 9), FED[::-1].copy(), BlameVerdict.SUSPICIOUS, "more_than_inputs"),
        (values(1, 2, 3, np.nan), FED, BlameVerdict.GUILTY, "inputs_agree"),
        (None, FED, BlameVerdict.NOT_JUDGED, "not_dumped"),
        # Cosines of 0.986 and 0.974: what accumulates looks like this.
        (values(1, 2, 3, 2.5), values(5, 6, 7, 5.4), BlameVerdict.SUSPICIOUS, "as_far_as_inputs"),
    ],
)
def test_a_verdict_by_comparison(
    tmp_path: Path, output: Array | None, fed: Array, verdict: BlameVerdict, sign: str
) -> None:
    """There is no formula for a Thing, so that the other run decides."""
    (found,) = judged(tmp_path, fused(output, fed), unfused()).passes
    (op,) = found.ops
    assert (found.name, found.verdict, op.verdict) == ("ThingPass", verdict, verdict)
    reason = op.reason if output is None else op.reason.why
    assert reason.kind.rpartition(".")[2] == sign
    assert op.recomputed is None
    if output is not None:
        assert "not recomputed: there is no formula for Thing" in render(op.reason)


def test_the_figures_of_a_verdict(tmp_path: Path) -> None:
    result = judged(tmp_path, fused(WRONG), unfused())
    (op,) = result.ops
    error = np.linalg.norm(WRONG - RIGHT) / np.linalg.norm(RIGHT)
    cosine = WRONG @ RIGHT / np.linalg.norm(WRONG) / np.linalg.norm(RIGHT)
    assert op.output_error == pytest.approx(error, abs=1e-6)
    assert op.cosine == pytest.approx(cosine, abs=1e-6)
    assert (op.input_error, op.originals, op.passes) == (0.0, ("a", "b"), ("ThingPass",))
    assert (result.passes[0].worst, result.passes[0].median) == (op.error, op.error)
    assert result.switch_off == ("ThingPass",)


def test_an_input_that_could_not_be_compared_leaves_a_doubt(tmp_path: Path) -> None:
    """The other run's op has no such input: what came in there is not known."""
    other = Node(name="x", type="Thing", output=values(1, 1), originals=())
    nodes = fused(WRONG)
    doubtful = [*nodes[:1], other, replace(nodes[1], inputs=(nodes[0], other))]
    (op,) = judged(tmp_path, doubtful, unfused()).ops
    assert op.verdict is BlameVerdict.SUSPICIOUS
    assert "the inputs that could be compared agree, and input:1 could not be" in render(op.reason)


def test_without_inputs_a_small_error_may_have_come_in(tmp_path: Path) -> None:
    (op,) = judged(tmp_path, [replace(fused(SLIGHTLY)[1], inputs=())], unfused()).ops
    assert op.verdict is BlameVerdict.NOT_JUDGED
    assert "which may be inherited: no input could be compared" in render(op.reason)


def test_a_pass_that_both_runs_have_is_not_judged_by_comparing_them(tmp_path: Path) -> None:
    nodes = fused(RIGHT, passes=["PackFusionPass"])
    result = judged(tmp_path, nodes, nodes)
    (op,) = result.ops
    assert op.verdict is BlameVerdict.NOT_JUDGED
    assert "the other run has it too, made by PackFusionPass" in render(op.reason)


def test_a_pass_that_is_always_on_and_wrong_in_both_runs(tmp_path: Path) -> None:
    """The two agree, and neither is what the formula says: the pass is under suspicion, not the formula."""
    fed = values(1, 2, 3, 4)
    op = Node(name="s/Squares/Abs", type="Square", inputs=(data(fed),), output=fed**2 * np.float32(2),
              originals=("s/Square", "s/Abs"), passes=("PackFusionPass",))  # fmt: skip
    right = Node(name="t/Squaret/Abs", type="Square", inputs=(data(fed),), output=fed**2,
                 originals=("t/Square", "t/Abs"), passes=("PackFusionPass",))  # fmt: skip
    first, second = judged(tmp_path, [data(fed), op, right], [data(fed), op, right]).ops
    assert first.verdict is BlameVerdict.SUSPICIOUS
    assert "relative error of 100 %, and so has the other run's, which PackFusionPass made too" in render(first.reason)
    assert second.verdict is BlameVerdict.CLEAN


def test_a_fault_that_no_switch_avoids(tmp_path: Path) -> None:
    result = judged(tmp_path, fused(WRONG, passes=["PackFusionPass"]), unfused())
    assert result.passes[0].verdict is BlameVerdict.GUILTY
    assert not result.passes[0].is_switchable
    assert result.switch_off == ()
    assert [op.op_name for op in result.unavoidable] == ["a+b"]


def test_an_op_without_a_pass_is_told_and_not_charged(tmp_path: Path) -> None:
    source, op = fused(WRONG)
    other = Node(name="c+d", type="Thing", inputs=(source,), output=RIGHT, originals=("c", "d"))
    result = judged(tmp_path, [source, op, other], unfused())
    assert {one.name for one in result.passes} == {"ThingPass", NO_PASS}
    (note,) = blame_notes(result)
    assert note.startswith("the graph names no pass for 1 fused op: c+d; collect graphs")
    with pytest.raises(UsageError, match="1 fused op, but none names its pass"):
        judged(tmp_path / "other", [source, replace(op, passes=())], unfused())
    with pytest.raises(UsageError, match="no op was made by a fusion pass"):
        judged(tmp_path / "none", unfused(), unfused())


def test_a_fused_run_and_benchmark_tensors(tmp_path: Path) -> None:
    tree = small_tree(
        tmp_path / "precision_data",
        [replace(data(), golden=FED), replace(fused(WRONG)[1], inputs=(data(),), golden=RIGHT)],
    )
    (result,) = compare_folders(str(tree.leaf), str(tree.root / "tf" / "dump"), resources=THIS_THREAD)
    found = verdict_of(result)
    assert (found.passes[0].verdict, found.switch_off) == (BlameVerdict.GUILTY, ("ThingPass",))


@pytest.mark.parametrize("factor", [1.0, 1.002, 1.5])
def test_recomputing_decides_whatever_the_other_run_says(tmp_path: Path, factor: float) -> None:
    """A ReLU and a square: the fused op is fed other numbers than the other run, or that run is wrong.

    Where neither does what the formula says, and nothing shows that both were fed the same, a doubt is left.
    """
    fed = values(-1, 2, 3, 4)
    right = np.maximum(fed, 0) ** 2
    op = Node(
        name="r/Relur/Square", type="Relu", inputs=(data(fed),), output=right * np.float32(factor),
        originals=("r/Relu", "r/Square"), passes=("ChainPass",),
    )  # fmt: skip
    for name, other_fed in (("fed", values(4, 3, 2, -1)), ("wrong", fed)):
        source = data(other_fed)
        relu = Node(
            name="r/Relu", type="Relu", inputs=(source,), output=np.maximum(other_fed, 0), originals=("r/Relu",)
        )
        square = Node(name="r/Square", type="Square", inputs=(relu,), output=WRONG, originals=("r/Square",))
        (found,) = judged(tmp_path / name, [data(fed), op], [source, relu, square]).ops
        wrong = BlameVerdict.GUILTY if name == "wrong" else BlameVerdict.SUSPICIOUS
        assert found.verdict is (BlameVerdict.CLEAN if factor == 1.0 else wrong)
        assert render(found.reason).startswith("recomputed (Relu, Square) from its own inputs")
        assert found.recomputed is not None
        assert found.recomputed.error == pytest.approx(factor - 1, abs=1e-6)
        if factor == 1.0:
            assert (found.reason.inherited, found.reason.other is None) == (
                (True, True) if name == "fed" else (False, False)
            )


@pytest.mark.parametrize(("end", "word"), [(65504, "saturates"), (np.inf, "overflows")])
def test_an_op_that_is_right_and_saturates_says_so(tmp_path: Path, end: float, word: str) -> None:
    """The square of 300 is 90000, and float16 ends at 65504."""
    fed = np.array([-1, 2, 3, 300], np.float16)
    op = Node(
        name="r/Relur/Square", type="Relu", inputs=(data(fed),), output=np.array([0, 4, 9, end], np.float16),
        originals=("r/Relu", "r/Square"), passes=("ChainPass",),
    )  # fmt: skip
    source = data(fed)
    relu = Node(name="r/Relu", type="Relu", inputs=(source,), output=np.maximum(fed, 0), originals=("r/Relu",))
    true = np.array([0, 4, 9, 90000], np.float32)
    square = Node(name="r/Square", type="Square", inputs=(relu,), output=true, originals=("r/Square",))
    found = judged(tmp_path, [data(fed), op], [source, relu, square])
    (one,) = found.ops
    told = f"it {word} in 1 of 4 elements (the correct result reaches 90000, the limit of float16 is 65504)"
    assert one.verdict is BlameVerdict.CLEAN
    assert told in render(one.reason)
    assert told in pass_words(found.passes[0])
    out = io.StringIO()
    Console(file=out, width=250).print(*(part for parts in blame_lines(found, 3) for part in parts))
    assert f"1 clean, 1 beyond its type's range: [{one.index}] {told}" in out.getvalue()


def test_a_formula_that_fits_neither_side_is_not_trusted(tmp_path: Path) -> None:
    """A kernel that computes an op otherwise than we think: both runs agree on it. Further on it accuses nobody."""

    def square(name: str, source: Node, output: Array, passes: tuple[str, ...]) -> list[Node]:
        names = (f"{name}/Square", f"{name}/Abs")
        if passes:
            return [
                Node(
                    name="".join(names), type="Square", inputs=(source,), output=output, originals=names, passes=passes
                )
            ]
        first = Node(name=names[0], type="Square", inputs=(source,), output=output, originals=names[:1])
        return [first, Node(name=names[1], type="Abs", inputs=(first,), output=output, originals=names[1:])]

    sides = []
    for passes, last in ((("P",), WRONG), ((), RIGHT)):
        first = square("a", data(), RIGHT, passes)  # not the squares of what it is fed
        other = Node(name="other", type="Thing", output=last, originals=("other",))
        sides.append([data(), *first, other, *square("b", other, last[::-1].copy(), passes)])
    found = {op.op_name: op for op in judged(tmp_path, *sides).ops}
    assert found["a/Squarea/Abs"].verdict is BlameVerdict.CLEAN
    assert "the formula of Square, Abs fits neither side where the two agree" in render(found["a/Squarea/Abs"].reason)
    assert found["b/Squareb/Abs"].verdict is BlameVerdict.NOT_JUDGED


def test_a_number_that_should_be_finite(tmp_path: Path) -> None:
    broken, right = values(25, np.nan, 49, 64), values(25, 36, 49, 64)
    nodes = [data(), Node(name="s/Squares/Abs", type="Square", inputs=(data(),), output=broken,
                          originals=("s/Square", "s/Abs"), passes=("P",))]  # fmt: skip
    (op,) = judged(tmp_path, nodes, [data(), Node(name="s/Abs", type="Abs", output=right, originals=("s/Abs",))]).ops
    assert op.verdict is BlameVerdict.GUILTY
    assert "its output is not finite in 1 element where it should be" in render(op.reason)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_pair_of_the_demo(tmp_path: Path, seed: int) -> None:
    truth = generate_demo(tmp_path, fault="fusion", seed=seed)
    (result,) = compare_folders(
        str(tmp_path / "npu/debug_1/dump"), str(tmp_path / "npu/debug_0/dump"), resources=THIS_THREAD,
        options=CompareOptions(other_graph=""),
    )  # fmt: skip
    found = verdict_of(result)
    guilty = [one.name for one in found.passes if one.verdict is BlameVerdict.GUILTY]
    assert tuple(guilty) == truth.culprit_passes == found.switch_off
    assert [op.op_name for op in found.ops if op.verdict is BlameVerdict.GUILTY] == [truth.culprit]
    # Those after it are fed wrong numbers, and are found right all the same.
    assert all(op.recomputed is not None for op in found.ops if is_switchable(op.passes[0]))
    (benchmark,) = compare_folders(str(tmp_path / "npu/debug_1/dump"), str(tmp_path / "tf/dump"), resources=THIS_THREAD)
    assert verdict_of(benchmark).switch_off == truth.culprit_passes


def test_runs_whose_inputs_were_not_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dump_mode="output"`: what an op was fed is what the one before it put out, in the same run. The ops behind the
    faulty one differ from the other run and are right all the same.
    """

    def outputs_only(path: Path, name: str, _: object, outputs: list[OutTensor], **more: int) -> int:
        return write_dump(path, name, [], outputs, **more)

    with monkeypatch.context() as patch:
        patch.setattr("precision_tool.lib.demo.generate.write_dump", outputs_only)
        truth = generate_demo(tmp_path, fault="fusion")
    sides: tuple[tuple[str, CompareOptions], ...] = (
        ("npu/debug_0/dump", CompareOptions(other_graph="")),
        ("tf/dump", CompareOptions()),
    )
    for other, options in sides:
        (result,) = compare_folders(
            str(tmp_path / "npu/debug_1/dump"), str(tmp_path / other), resources=THIS_THREAD, options=options
        )
        found = verdict_of(result)
        assert found.switch_off == truth.culprit_passes
        verdicts = {op.op_name: op.verdict for op in found.ops if is_switchable(op.passes[0])}
        assert truth.culprit is not None
        assert verdicts.pop(truth.culprit) is BlameVerdict.GUILTY
        assert set(verdicts.values()) == {BlameVerdict.CLEAN}
        assert all(op.recomputed is not None and not op.recomputed.borrowed for op in found.ops
                   if op.op_name in verdicts)  # fmt: skip


def test_an_op_after_a_wrong_one_whose_inputs_nobody_knows(tmp_path: Path) -> None:
    source, op = fused(WRONG)
    after = Node(name="c+d", type="Thing", output=WRONG, originals=("c", "d"), passes=("LaterPass",))
    other = [*unfused(), *(Node(name=name, type="Thing", output=RIGHT, originals=(name,)) for name in "cd")]
    verdicts = {one.name: one.verdict for one in judged(tmp_path, [source, op, after], other).passes}
    assert verdicts == {"ThingPass": BlameVerdict.GUILTY, "LaterPass": BlameVerdict.NOT_JUDGED}
    (alone,) = judged(tmp_path / "alone", [after], other[2:]).passes
    assert alone.verdict is BlameVerdict.SUSPICIOUS


# --- the smallest set -------------------------------------------------------------------------------------------------

NAMES = [f"Pass{number}" for number in range(8)] + ["PackFusionPass"]
made_by = st.lists(st.tuples(st.sets(st.sampled_from(NAMES), min_size=1, max_size=4), st.booleans()), max_size=8)


def passes_of(ops: list[tuple[set[str], bool]]) -> list[PassBlame]:
    blames = [
        OpBlame(op_name=str(number), op_type="", passes=tuple(sorted(passes)), originals=(), index=number,
                verdict=BlameVerdict.GUILTY if guilty else BlameVerdict.CLEAN,
                reason=Message("screen.view.blame.not_dumped"))
        for number, (passes, guilty) in enumerate(ops)
    ]  # fmt: skip
    return [
        PassBlame(name=name, verdict=BlameVerdict.GUILTY, ops=tuple(op for op in blames if name in op.passes),
                  is_switchable=is_switchable(name))
        for name in sorted({name for op in blames for name in op.passes})
    ]  # fmt: skip


@given(made_by)
def test_the_smallest_set_has_a_part_in_every_guilty_op(ops: list[tuple[set[str], bool]]) -> None:
    off, unavoidable = smallest_switches(passes_of(ops))
    guilty = [passes - {"PackFusionPass"} for passes, wrong in ops if wrong]
    assert "PackFusionPass" not in off
    assert len(unavoidable) == guilty.count(set())
    wanted = [passes for passes in guilty if passes]
    assert all(set(off) & passes for passes in wanted)
    smaller = [found for found in combinations(NAMES, len(off) - 1) if len(off)] if off else []
    assert not any(all(set(found) & passes for passes in wanted) for found in smaller)


def test_of_two_passes_the_one_that_made_nothing_right_is_switched_off() -> None:
    off, _ = smallest_switches(passes_of([({"Pass0", "Pass1"}, True), ({"Pass0"}, False)]))
    assert off == ("Pass1",)


def test_a_great_many_passes() -> None:
    """Beyond what is tried by size the choice is made one by one, the pass with most guilty ops first."""
    ops = [({f"P{number}", "Common"}, True) for number in range(40)] + [({"Alone"}, True)]
    off, _ = smallest_switches(passes_of(ops))
    assert set(off) == {"Common", "Alone"}
