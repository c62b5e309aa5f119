"""Which of two runs is the fused one, told by their graphs; and what is missing if none is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import graph_op

from precision_tool.lib.data.fusion_pair import Fusion, find_pair, is_fused, pair_notes
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.graph_choice import NAMED, GraphChoice
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf

LEAF = DumpLeaf(path="leaf", files=())


def single(*names: str) -> list[Op]:
    return [graph_op(name, original_names=[name]) for name in names]


def fused(passes: str, *names: str) -> Op:
    return graph_op("".join(names), original_names=names, pass_names=passes.split())


def file(*ops: Op) -> GraphFile:
    return GraphFile(path="g.txt", graphs=(Graph(name="g", ops=ops),))


def run(number: int, *ops: Op) -> RunGraph:
    return RunGraph(number=number, leaf=LEAF, file=file(*ops), reason=None)


ALWAYS = fused("PackFusionPass", "p", "q")
FUSED = (fused("ConvReluPass", "conv", "relu"), fused("MatMulPass", "matmul", "bias"), ALWAYS)
UNFUSED = (*single("conv", "relu", "matmul", "bias"), ALWAYS)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (2, 5)])
def test_the_graphs_tell_not_the_folders(numbers: tuple[int, int]) -> None:
    pair = find_pair([run(numbers[0], *FUSED), run(numbers[1], *UNFUSED)])
    assert (pair.fused.number, pair.unfused.number) == numbers
    # A pass that is never switched off is in both and says nothing.
    assert pair.notes == ()


def test_a_run_with_less_fusion_is_told() -> None:
    partly = (fused("MatMulPass", "matmul", "bias"), *single("conv", "relu"))
    pair = find_pair([run(0, *partly), run(1, *FUSED)])
    assert pair.fused.number == 1
    (note,) = pair.notes
    assert str(note).startswith("debug_0 is not free of fusion: MatMulPass made 1 op")


def test_fused_ops_without_a_pass_still_tell_the_runs_apart() -> None:
    nameless = replace(FUSED[0], pass_names=())
    assert find_pair([run(0, *UNFUSED), run(1, nameless, *single("matmul", "bias"))]).fused.number == 1
    assert Fusion(file(nameless, ALWAYS)).nameless == (nameless,)
    assert is_fused(nameless)
    assert not is_fused(single("a")[0])


@pytest.mark.parametrize(
    ("runs", "error_class", "kind", "fields"),
    [
        ([], DataNotFoundError, "data.no_run_has_graph", {}),
        ([run(0, *FUSED)], DataNotFoundError, "data.one_run_dumped", {"run": "debug_0", "without_dump": []}),
        (
            [run(0, *FUSED), replace(run(1, *UNFUSED), leaf=None)],
            DataNotFoundError,
            "data.one_run_dumped",
            {"run": "debug_0", "without_dump": ["debug_1"]},
        ),
        (
            [run(0, *FUSED), run(1, *FUSED)],
            UsageError,
            "data.both_fused",
            {"first": 0, "second": 1, "first_ops": 2, "second_ops": 2},
        ),
        (
            [run(0, *UNFUSED), run(1, *UNFUSED)],
            UsageError,
            "data.no_switchable_fusion",
            {"first": 0, "second": 1},
        ),
        (
            [run(0, *FUSED), run(1, *single("other", "network", "conv"))],
            UsageError,
            "data.runs_of_two_networks",
            {"first": 0, "second": 1, "share": pytest.approx(1 / 3)},
        ),
        (
            [
                replace(run(0, *FUSED), leaves=(replace(LEAF, step="3"),)),
                replace(run(1, *UNFUSED), leaves=(replace(LEAF, step="5"),)),
            ],
            UsageError,
            "data.steps_differ",
            {"fused": 0, "fused_steps": ["3"], "unfused": 1, "unfused_steps": ["5"]},
        ),
    ],
)
def test_what_is_wrong_and_what_to_collect(
    runs: list[RunGraph], error_class: type[PrecisionToolError], kind: str, fields: dict[str, object]
) -> None:
    with pytest.raises(error_class) as caught:
        find_pair(runs)
    assert (caught.value.kind, caught.value.fields) == (kind, fields)
    assert "collect" in caught.value.hint


def test_two_graphs_that_were_named() -> None:
    one, two, other = (
        GraphChoice(file=file(*ops), reason=NAMED, matched=1, total=1)
        for ops in (FUSED, UNFUSED, tuple(single("x", "y", "z")))
    )
    assert pair_notes(one, two) == []
    (note,) = pair_notes(two, one)
    assert note.kind == "note.data.more_fused"
    (note,) = pair_notes(one, one)
    assert str(note).startswith("the other run is not free of fusion")
    with pytest.raises(UsageError, match="graphs of different networks, with 0% of"):
        pair_notes(one, other)
