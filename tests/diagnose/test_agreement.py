"""The judgement over rows: which op made an error, on results written by hand."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from itertools import pairwise
from math import inf, nan, sqrt
from typing import Any

import pytest

from precision_tool.lib.diagnose.agreement import (
    agrees,
    find_first_fault,
    find_unreadable,
    is_only_noise,
    ops_of,
    overview,
)
from precision_tool.lib.diagnose.run_checks import analyse, explain_overflow
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import STATISTICS_AGREE, STATISTICS_DIFFER, Metrics, Pair, Summary
from precision_tool.lib.model.finding import Finding, FindingKind, Grade
from precision_tool.lib.model.table import Row, Table
from precision_tool.lib.view.findings import render_finding


def row(
    op: str,
    slot: str,
    cosine: float | None,
    *,
    index: int = 0,
    mismatches: int = 0,
    golden_size: float | None = None,
    reason: Message | None = None,
    distance: float | None = None,
    error: float | None = None,
    is_scalar: bool = False,
    status: str = "compared",
    golden_tensor: str = "",
) -> Row:
    """A result row of one tensor."""
    known = {"cosine": cosine, "relative_euclidean_distance": distance, "max_absolute_error": error}
    found: dict[str, Any] = {field.name: nan for field in fields(Metrics) if field.default is MISSING}
    found |= {name: value for name, value in known.items() if value is not None}
    metrics = Metrics(**found, non_finite_mismatches=mismatches, is_scalar=is_scalar)
    return Row(
        pair=Pair(
            index=index, op_name=op, op_type="Add", npu_ops=(op,), golden_ops=(op,), slot=slot, status=status,
            golden_tensor=golden_tensor,
        ),
        metrics=None if cosine is None else metrics,
        golden=None if golden_size is None else Summary(minimum=-golden_size, maximum=golden_size),
        reason=reason,
        absent=frozenset(f"metrics.{name}" for name, value in known.items() if value is None),
    )  # fmt: skip


def chain(*cosines: float) -> list[Row]:
    """Ops op0, op1, … in a row: input and output of each; op i's input is what op i-1 put out."""
    rows: list[Row] = []
    for index, (before, after) in enumerate(pairwise(cosines)):
        rows.append(row(f"op{index}", "input:0", before, index=index))
        rows.append(row(f"op{index}", "output:0", after, index=index))
    return rows


def test_noise_is_no_error() -> None:
    """An error of up to three times what two runs of one script differ by."""
    far = row("op", "output:0", 0.9)  # sqrt(2 * 0.1) = 0.447
    for noise, expected in ((None, False), (0.0, False), (0.14, False), (0.15, True)):
        noisy = replace(far, noise=noise)
        assert agrees(noisy, 0.98) is expected
        assert is_only_noise(noisy, 0.98) is expected
    assert agrees(replace(row("op", "output:0", 0.9, mismatches=1), noise=9.0), 0.98) is False
    scalar = row("op", "output:0", 1.0, distance=0.5, is_scalar=True)
    assert [agrees(replace(scalar, noise=noise), 0.98) for noise in (None, 0.1, 0.2)] == [False, False, True]
    assert not is_only_noise(row("op", "output:0", 1.0), 0.98)


def faults(rows: list[Row], threshold: float = 0.98) -> list[tuple[FindingKind, str]]:
    """Kind and op of every finding."""
    return [(finding.kind, finding.op_name) for finding in find_first_fault(ops_of(rows, threshold), threshold)]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (row("a", "output:0", None), None),
        (row("a", "output:0", 0.98), True),
        (row("a", "output:0", 0.9799), False),
        (row("a", "output:0", nan), False),
        (row("a", "output:0", 1.0, mismatches=1), False),
        # One number: 0.98 stands for a relative distance of sqrt(0.04) = 0.2.
        (row("a", "output:0", 1.0, is_scalar=True, distance=0.19), True),
        (row("a", "output:0", 1.0, is_scalar=True, distance=0.21), False),
        # The benchmark is 0: there is no relative error, only an absolute one.
        (row("a", "output:0", 1.0, is_scalar=True, distance=0.0, error=0.0), True),
        (row("a", "output:0", 1.0, is_scalar=True, distance=0.0, error=5.0), False),
    ],
)
def test_agreement_of_one_tensor(tensor: Row, expected: bool | None) -> None:
    assert agrees(tensor, 0.98) is expected


def test_the_first_op_with_good_inputs_and_a_bad_output_is_named() -> None:
    assert faults(chain(1.0, 0.9999, 0.7, 0.6, 0.5)) == [(FindingKind.FIRST_FAULTY_OP, "op1")]


def test_nothing_wrong_and_nothing_compared() -> None:
    assert faults(chain(1.0, 0.999, 0.99)) == [(FindingKind.ALL_AGREE, "")]
    rows = [row("a", "output:0", None, status="no_benchmark")]
    findings = find_first_fault(ops_of(rows, 0.98), 0.98)
    assert [(one.kind, one.grade) for one in findings] == [(FindingKind.NOTHING_COMPARED, Grade.WARNING)]


def test_statistics_tell_where_nothing_else_does() -> None:
    def of(op: str, slot: str, reason: Message, index: int) -> Row:
        return row(op, slot, None, index=index, status="statistics_only", reason=reason)

    good = Message(STATISTICS_AGREE, statistics="min, max")
    bad = Message(STATISTICS_DIFFER, differences="min, max")
    neither = Message("text", text="other words: min, max")
    rows = [of("a", "input:0", good, 0), of("a", "output:0", good, 0)]
    assert [one.grade for one in find_first_fault(ops_of(rows, 0.98), 0.98)] == [Grade.INFO]
    rows += [of("b", "input:0", bad, 1), of("b", "output:0", bad, 1)]
    (finding,) = find_first_fault(ops_of(rows, 0.98), 0.98)
    assert (finding.grade, finding.op_name) == (Grade.WARNING, "")
    assert finding.message == Message("finding.statistics.differ", ops=1, unread_graph=None)
    rows += [of("c", "input:0", good, 2), of("c", "input:1", neither, 2), of("c", "output:0", bad, 2)]
    (finding,) = find_first_fault(ops_of(rows, 0.98), 0.98)
    assert (finding.kind, finding.grade, finding.op_name) == (FindingKind.NOTHING_COMPARED, Grade.WARNING, "c")
    facts = [value for _, value in render_finding(finding).facts]
    assert "b before it already has different statistics" in facts
    assert "input:1 was not compared: other words: min, max" in facts
    damage = Message("error.place", where="graph.txt", reason="damaged")
    (finding,) = find_first_fault(ops_of(rows, 0.98), 0.98, damage)
    assert finding.op_name == ""
    assert finding.message.unread_graph == damage


def test_accumulated_error_that_creeps_over_the_threshold_is_not_the_culprit() -> None:
    """Rounding takes the chain below 0.98 at op2; op4 then loses far more than it was given."""
    rows = chain(1.0, 0.995, 0.985, 0.979, 0.972, 0.2, 0.1)
    assert faults(rows) == [(FindingKind.FIRST_FAULTY_OP, "op4")]
    finding = find_first_fault(ops_of(rows, 0.98), 0.98)[0]
    assert Message("finding.fact.passed_over", op_name="op2") in [fact.value for fact in finding.facts]
    assert finding.message.kind != "finding.first_faulty_op.inputs_agree"


def test_an_accumulated_error_is_named_with_doubt_when_there_is_no_other() -> None:
    finding = find_first_fault(ops_of(chain(1.0, 0.995, 0.985, 0.979), 0.98), 0.98)[0]
    assert finding.op_name == "op2"
    assert any(name == "doubt" for name, _ in render_finding(finding).facts)


def test_own_error_is_three_times_the_distance_of_the_inputs() -> None:
    def output_at(distance: float) -> float:
        return 1 - distance**2 / 2

    for factor, expected in ((2.9, False), (3.1, True)):
        rows = [row("a", "input:0", output_at(0.1)), row("a", "output:0", output_at(0.1 * factor))]
        assert ops_of(rows, 0.98)[0].made_error is expected
    assert output_at(sqrt(0.04)) == pytest.approx(0.98)


def test_an_output_that_is_zero_on_paper_is_passed_over() -> None:
    rows = [
        row("bias_grad", "input:0", 0.9999, index=0, golden_size=1.0),
        row("bias_grad", "output:0", 0.05, index=0, golden_size=1e-7, error=1e-3),
        row("conv_grad", "input:0", 0.9999, index=1, golden_size=1.0),
        row("conv_grad", "output:0", 0.5, index=1, golden_size=0.3),
    ]
    assert faults(rows) == [(FindingKind.FIRST_FAULTY_OP, "conv_grad")]
    assert faults(rows[:2]) == [(FindingKind.FIRST_FAULTY_OP, "bias_grad")]
    facts = dict(render_finding(find_first_fault(ops_of(rows[:2], 0.98), 0.98)[0]).facts)
    assert "rounding alone" in facts["doubt"]


def test_an_error_far_above_rounding_is_no_cancellation() -> None:
    """The benchmark of a whole tensor may be zero, and the NPU's not."""
    rows = [
        row("relu", "input:0", 0.9999, index=0, golden_size=1.0),
        row("relu", "output:0", nan, index=0, golden_size=0.0, error=5.0),
        row("later", "input:0", 0.9999, index=1, golden_size=1.0),
        row("later", "output:0", 0.5, index=1, golden_size=0.3),
    ]
    assert faults(rows) == [(FindingKind.FIRST_FAULTY_OP, "relu")]


def test_nan_in_an_output_is_an_error_of_the_op_whatever_its_size() -> None:
    rows = [
        row("a", "input:0", 0.9999, golden_size=1.0),
        row("a", "output:0", nan, golden_size=1e-9, mismatches=3),
    ]
    op = ops_of(rows, 0.98)[0]
    assert op.made_error
    assert not op.is_cancelled


def test_different_data_is_said_before_any_op_is_blamed() -> None:
    rows = [
        row("conv", "input:0", 0.3, index=0),
        row("conv", "output:0", 0.3, index=0),
        row("late", "input:0", 0.9999, index=1),
        row("late", "output:0", 0.1, index=1),
    ]
    assert faults(rows) == [(FindingKind.DIFFERENT_INPUT, "conv"), (FindingKind.FIRST_FAULTY_OP, "late")]
    assert faults(rows[:2]) == [(FindingKind.DIFFERENT_INPUT, "conv"), (FindingKind.BELOW_THRESHOLD, "conv")]


def test_an_input_that_was_put_out_right_was_changed_in_between() -> None:
    rows = [
        row("pool", "output:0", 0.9999, index=0, golden_tensor="pool:0"),
        row("fc", "input:0", 0.3, index=1, golden_tensor="pool:0"),
        row("fc", "output:0", 0.3, index=1),
    ]
    finding, _ = find_first_fault(ops_of(rows, 0.98), 0.98)
    assert finding.kind == FindingKind.DIFFERENT_INPUT
    assert finding.message == Message("finding.different_input.changed", slot="input:0", op_name="fc", producer="pool")
    assert "`random`" in dict(render_finding(finding).facts)["next"]
    for other in (
        row("pool", "output:0", 0.9999, index=0, golden_tensor="pool:1"),
        row("pool", "output:0", None, index=0, golden_tensor="pool:0", status="layout"),
    ):
        changed, _ = find_first_fault(ops_of([other, *rows[1:]], 0.98), 0.98)
        assert changed.message.kind == "finding.different_input.early"


def test_a_single_number_is_told_by_its_error() -> None:
    (finding,) = find_first_fault(ops_of([row("mean", "output:0", 1.0, is_scalar=True, distance=0.356)], 0.98), 0.98)
    assert dict(render_finding(finding).facts)["outputs"] == "0: relative error 35.6 %"


def overflowing(op: str) -> Finding:
    return Finding(kind=FindingKind.OVERFLOW, grade=Grade.WARNING, message=Message("finding.overflow.none"), op_name=op)


@pytest.mark.parametrize(
    ("rows", "op", "words"),
    [
        (chain(1.0, 1.0, 0.5), "op0", "op0 overflows earlier"),
        (chain(1.0, 1.0, 1.0), "op1", "op1 overflows; start"),
        (chain(1.0, 0.5, 0.5), "op0", ""),
        (chain(1.0, 0.5, 0.5), "op1", ""),
        (chain(1.0, 0.5), "elsewhere", ""),
    ],
)
def test_the_verdict_tells_of_an_earlier_overflow(rows: list[Row], op: str, words: str) -> None:
    """A few saturated values hardly change a cosine."""
    (finding,) = explain_overflow(analyse("", Table(tuple(rows)), 0.98), overflowing(op)).findings
    facts = dict(render_finding(finding).facts)
    assert ("overflow" in facts) is bool(words)
    assert words in facts.get("overflow", "")


def test_an_input_that_was_not_compared_is_shown() -> None:
    rows = [
        row("a", "input:0", 1.0),
        row("a", "input:1", None, status="no_benchmark"),
        row("a", "output:0", 0.1),
    ]
    finding = find_first_fault(ops_of(rows, 0.98), 0.98)[0]
    assert dict(render_finding(finding).facts)["inputs"] == "0: 1.000000, 1: not compared"
    assert "input:1 was not compared" in dict(render_finding(finding).facts)["doubt"]
    assert finding.message.kind == "finding.first_faulty_op.compared_inputs_agree"
    only_output = find_first_fault(ops_of(rows[2:], 0.98), 0.98)[0]
    assert only_output.message.kind == "finding.first_faulty_op.no_input_compared"


def test_ops_keep_execution_order_and_their_slots() -> None:
    rows = [
        row("b", "output:0", 1.0, index=2),
        row("a", "input:0", 1.0, index=1),
        row("a", "output:0", 1.0, index=1),
        row("a", "output:1", 0.1, index=1),
    ]
    ops = ops_of(rows, 0.98)
    assert [(op.op_name, len(op.inputs), len(op.outputs)) for op in ops] == [("a", 1, 2), ("b", 0, 1)]
    assert [op.outputs_agree for op in ops] == [False, True]
    assert ops[1].inputs_agree is None


def test_the_overview_counts_tensors_by_status() -> None:
    rows = [*chain(1.0, 0.5), row("x", "output:0", None, status="layout"), row("y", "output:0", inf, status="")]
    view = overview(rows, ops_of(rows, 0.98), 0.98)
    assert (view.rows, view.compared, view.below, view.ops_below) == (4, 3, 1, 1)
    assert view.not_compared == (("layout", 1),)


@pytest.mark.parametrize(("status", "grade"), [("no_benchmark", Grade.WARNING), ("no_npu_dump", Grade.FAULT)])
def test_an_op_that_ran_unseen_may_have_made_the_difference(status: str, grade: Grade) -> None:
    """Fused against unfused without a graph: the faulty op has no partner, its reader shows the difference."""
    rows = [
        row("conv", "output:0", None, index=0, status=status),
        row("pool", "input:0", 0.8, index=1),
        row("pool", "output:0", 0.8, index=1),
    ]
    finding = find_first_fault(ops_of(rows, 0.98), 0.98)[0]
    assert (finding.kind, finding.grade) == (FindingKind.DIFFERENT_INPUT, grade)
    assert (("not compared", "conv") in render_finding(finding).facts) is (grade is Grade.WARNING)


def test_what_could_not_be_read_is_a_finding() -> None:
    rows = [*chain(1.0, 1.0), row("x", "output:0", None, status="unreadable")]
    (finding,) = find_unreadable(rows)
    assert (finding.grade, finding.op_name) == (Grade.WARNING, "x")
    assert finding.message == Message("finding.unreadable", count=1)
    assert find_unreadable(rows[:-1]) == []


def test_the_first_rows_that_could_not_be_read_are_named() -> None:
    rows = [
        row(f"x{at}", "output:0", None, status="unreadable", reason=Message("text", text=f"why {at}"))
        for at in range(7)
    ]
    (finding,) = find_unreadable(rows)
    assert render_finding(finding).facts[:2] == (("first", "x0 output:0: why 0"), ("", "x1 output:0: why 1"))
    assert len(render_finding(finding).facts) == 6
    assert render_finding(finding).facts[-1] == ("", "and 2 more rows of the result with the status unreadable")
