"""Casts that lose values, told by their types and by dumped tensors with values made for it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import STAMP, Array, graph_op, out_tensor, write_dump

from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.diagnose import casts
from precision_tool.lib.diagnose.casts import CastLoss, check_casts, narrows
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.finding import Finding, FindingKind, Grade
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.view.findings import render_finding


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("float32", "float16", True), ("float16", "float32", False), ("float32", "bfloat16", True),
        ("bfloat16", "float16", True), ("float16", "bfloat16", True), ("bfloat16", "float32", False),
        ("float64", "float32", True), ("float32", "float32", False), ("float16", "float8_e4m3fn", True),
        ("float32", "int32", True), ("float16", "uint8", True), ("int64", "int32", True), ("int32", "int64", False),
        ("int32", "uint32", True), ("uint8", "int16", False), ("uint8", "int8", True), ("int32", "float16", True),
        ("int8", "float16", False), ("int64", "float32", False), ("int16", "bfloat16", True),
        ("bool", "float16", False), ("float32", "bool", False), ("string", "float16", False), ("", "float16", False),
        ("float32", "", False),
    ],
)  # fmt: skip
def test_which_types_are_narrower(source: str, target: str, expected: bool) -> None:
    assert narrows(source, target) is expected


def desc(dtype: str) -> TensorDesc:
    return TensorDesc(dtype=dtype, layout="ND")


def an_op(name: str, source: str, target: str, op_type: str = "Cast") -> Op:
    return graph_op(name, op_type, ["x:0"], input_descs=[desc(source)], output_descs=[desc(target)])


def stored(values: OutTensor | Array | list[float], dtype: str) -> OutTensor:
    if isinstance(values, OutTensor):
        return values
    if dtype == "bfloat16":
        return OutTensor(data=np.asarray(values, ml_dtypes.bfloat16), dtype="bfloat16")
    with np.errstate(all="ignore"):
        return out_tensor(np.asarray(values).astype(dtype))


def run_of(folder: Path, ops: list[Op], dumps: dict[str, tuple[OutTensor, OutTensor]], number: int = 0) -> RunGraph:
    leaf = folder / "dump" / STAMP / "0" / "m" / "1" / "0"
    for at, (name, (before, after)) in enumerate(dumps.items()):
        write_dump(
            leaf / dump_file_name("Cast", name, at, 1_772_443_800_000_000 + at, stream_id=0), name, [before], [after]
        )
    return RunGraph(
        number=number,
        leaf=find_run(str(folder)).leaves[0] if dumps else None,
        file=GraphFile(path="g.txt", graphs=(Graph(name="m", ops=tuple(ops)),)),
        reason=None,
    )


def judged(folder: Path, source: str, target: str, before: list[float], after: list[float]) -> tuple[CastLoss, Finding]:
    """The verdict on one cast with these values."""
    run = run_of(folder, [an_op("c", source, target)], {"c": (stored(before, source), stored(after, target))})
    result = check_casts([run])
    assert result.finding is not None
    (loss,) = result.details
    return loss, result.finding


#: So many that a few of them are a small share.
PLAIN = [1.0, -2.0, 0.5, 3.0] * 50


@pytest.mark.parametrize(
    ("source", "target", "before", "after", "reason"),
    [
        ("float32", "float16", [1.0, 70000.0, -1e6], [1.0, 65504.0, -65504.0],
         "values up to 1e+06, while the type ends at 65504"),
        ("float32", "float16", [1.0, 70000.0], [1.0, np.inf], "the type ends at 65504; 1 Inf appear"),
        ("float32", "float16", [1e-9, 1e-8, 0.0, 1.0], [0, 0, 0, 1.0],
         "2 of 3 values become 0, too small for the type"),
        ("float32", "float16", [1.0, 2.0], [1.0, np.nan], "1 NaN appear"),
        ("float32", "bfloat16", [1.0, 2.0, 3.0], [1.0, 2.0, 2.5], "the output deviates from the input by 13.4%"),
        ("float32", "int32", [1.0, 3e9], [1, 2**31 - 1],
         "values from 1 to 3e+09, while the type holds -2147483648 to 2147483647"),
        ("float32", "int32", [1.0, 2.0**31], [1, -(2**31)], "the type holds -2147483648 to 2147483647"),
        ("float32", "uint8", [-1.0, 5.0], [255, 5], "values from -1 to 5, while the type holds 0 to 255"),
        ("float32", "int32", [np.nan, np.inf, 5.0], [0, 0, 5], "2 NaN or Inf become integers"),
        ("int64", "int32", [1, 2**40], [1, 0], "values from 1 to 1.09951e+12, while the type holds"),
        ("int32", "float16", [100000, 3], [65504, 3], "values up to 100000, while the type ends at 65504"),
        ("float32", "int32", [0.4, 0.6, 0.1], [0, 0, 0], "the output deviates from the input by 100.0%"),
    ],
)  # fmt: skip
def test_casts_that_lose_values(
    tmp_path: Path, source: str, target: str, before: list[float], after: list[float], reason: str
) -> None:
    loss, finding = judged(tmp_path, source, target, before, after)
    assert loss.verdict == "dangerous"
    assert reason in render(loss.reason)
    assert (finding.kind, finding.grade, finding.op_name) == (FindingKind.DANGEROUS_CASTS, Grade.WARNING, "c")
    assert render_finding(finding).message == "1 of 1 cast to a narrower type lost values"
    assert render_finding(finding).facts[0] == ("loses", f"c: {source} → {target}: {render(loss.reason)}")


@pytest.mark.parametrize(
    ("source", "target", "before"),
    [
        ("float32", "float16", [*PLAIN, 65504.0]),
        ("float32", "float16", [*PLAIN, 1e-30]),  # one of 201 becomes 0
        ("float32", "float16", [np.nan, np.inf, 1.0]),  # not the cast's doing
        ("float32", "bfloat16", [1.001, 3.3e38, 1e-38]),
        ("float32", "int32", [1.0, -(2.0**31), 2147483520.0]),
        ("float32", "int32", [100.4, 99.6]),  # fractions
        ("int64", "int32", [2**31 - 1, -(2**31)]),
        ("float32", "float16", []),
    ],
)
def test_casts_that_keep_what_the_type_can_hold(tmp_path: Path, source: str, target: str, before: list[float]) -> None:
    loss, finding = judged(tmp_path, source, target, before, before)
    assert loss.verdict == "harmless", render(loss.reason)
    assert finding.grade is Grade.INFO
    assert render_finding(finding).message == "no value was lost in 1 cast to a narrower type"


def test_only_the_types_are_known(tmp_path: Path) -> None:
    """Of a cast that was not dumped, of one whose file is damaged, and of an op that does more than a cast."""
    ops = [
        an_op("gone", "float32", "float16"),
        an_op("damaged", "float32", "int32"),
        an_op("conv", "float32", "float16", "Conv2D"),
        an_op("arg", "float32", "int32", "ArgMaxV2"),  # an index, not a cast
        an_op("wide", "float16", "float32"),
    ]
    run = run_of(tmp_path, ops, {"damaged": (stored([1.0], "float32"), stored([1], "int32"))})
    (dump,) = tmp_path.rglob("Cast.*")
    dump.write_bytes(dump.read_bytes()[:-4])
    result = check_casts([run])
    assert result.finding is not None
    assert [(loss.op_name, loss.verdict) for loss in result.details] == [
        ("gone", "suspicious"), ("damaged", "suspicious"), ("conv", "suspicious")
    ]  # fmt: skip
    assert result.finding.message == Message("finding.casts.suspicious", suspicious=3)
    assert result.finding.grade is Grade.INFO
    assert render(result.details[0].reason) == "not dumped"
    assert result.details[2].reason.kind == "check.cast.computes_more"
    assert result.looked_at == Message("check.dangerous_casts.looked_at", ops=5, run=0, casts=3, narrower=3, read=0)
    assert ("types", "float32 → float16: 2") in render_finding(result.finding).facts


def test_no_casts(tmp_path: Path) -> None:
    result = check_casts([run_of(tmp_path, [an_op("wide", "float16", "float32")], {})])
    assert result.finding is not None
    assert render_finding(result.finding).message == "no op casts to a narrower type"
    assert result.looked_at is not None
    assert (result.looked_at.casts, result.looked_at.narrower) == (1, None)


def test_only_the_run_under_test_is_read_and_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts, "_MAX_BYTES", 3 * 6 * 4)
    values = stored([1.0] * 4, "float32"), stored([1.0] * 4, "float16")
    ops = [an_op(f"c{number}", "float32", "float16") for number in range(5)]
    run = run_of(tmp_path / "zero", ops, {op.name: values for op in ops})
    other = run_of(tmp_path / "one", [an_op("other", "float32", "float16")], {"other": values}, number=1)
    result = check_casts([run, other])
    assert [(loss.op_name, loss.verdict) for loss in result.details] == [
        ("c0", "harmless"), ("c1", "harmless"), ("c2", "harmless"), ("c3", "suspicious"), ("c4", "suspicious")
    ]  # fmt: skip
    assert result.details[3].reason.kind == "check.cast.enough_read"


def test_two_casts_that_file_names_spell_alike_are_not_judged(tmp_path: Path) -> None:
    ops = [an_op("a/b", "float32", "float16"), an_op("a_b", "float32", "float16")]
    values = stored([70000.0], "float32"), stored([65504.0], "float16")
    result = check_casts([run_of(tmp_path, ops, {"a_b": values})])
    assert [loss.verdict for loss in result.details] == ["suspicious", "suspicious"]


def test_an_empty_dump_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, [an_op("c", "float32", "float16")], {"c": (stored([1.0], "float32"), stored([1], "float16"))}
    )
    (dump,) = tmp_path.rglob("Cast.*")
    dump.write_bytes(b"")
    (loss,) = check_casts([run]).details
    assert render(loss.reason).startswith(f"cannot be read: {dump}: the file is empty")


def test_a_run_whose_graph_is_not_there_is_not_taken_for_another(tmp_path: Path) -> None:
    values = stored([70000.0], "float32"), stored([65504.0], "float16")
    other = run_of(tmp_path, [an_op("c", "float32", "float16")], {"c": values}, number=1)
    lost = MissingGraph(number=0, model="m", reason=Message("text", text="it is damaged"))
    result = check_casts([other], [lost])
    assert result.finding is None
    assert result.skipped == Message("check.no_graph", number=0, reason=lost.reason)
    # Of two models of one run only one was looked at.
    result = check_casts([other], [MissingGraph(number=1, model="n", reason=Message("text", text="it is damaged"))])
    assert result.finding is not None
    assert render_finding(result.finding).facts[0] == ("not looked at", "debug_1 has no graph: it is damaged")


def test_of_many_dangerous_casts_none_of_the_unread_is_listed(tmp_path: Path) -> None:
    """The panel stays short: with six that lose values there is no room, not room for all but the last."""
    ops = [an_op(f"bad{number}", "float32", "float16") for number in range(6)]
    ops += [an_op(f"unread{number}", "float32", "float16") for number in range(4)]
    dumps = {op.name: (stored([1e6, 1.0], "float32"), stored([np.inf, 1.0], "float16")) for op in ops[:6]}
    finding = check_casts([run_of(tmp_path, ops, dumps)]).finding
    assert finding is not None
    assert [name for name, _ in render_finding(finding).facts].count("loses") == 6  # five, and how many more
    assert not [value for name, value in render_finding(finding).facts if name == "suspicious"]
