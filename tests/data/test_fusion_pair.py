"""Which of two runs is the fused one, told by their graphs; and what is missing if none is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import graph_op

from precision_tool.lib.data.fusion_pair import Fusion, find_pair, is_fused, pair_notes
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.graph_choice import GraphChoice
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
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
    return RunGraph(number=number, leaf=LEAF, file=file(*ops), reason="")


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
    assert note.startswith("debug_0 is not free of fusion: MatMulPass made 1 op")


def test_fused_ops_without_a_pass_still_tell_the_runs_apart() -> None:
    nameless = replace(FUSED[0], pass_names=())
    assert find_pair([run(0, *UNFUSED), run(1, nameless, *single("matmul", "bias"))]).fused.number == 1
    assert Fusion(file(nameless, ALWAYS)).nameless == (nameless,)
    assert is_fused(nameless)
    assert not is_fused(single("a")[0])


@pytest.mark.parametrize(
    ("runs", "kind", "words"),
    [
        ([], DataNotFoundError, "no NPU run has a graph"),
        ([run(0, *FUSED)], DataNotFoundError, "only debug_0 has both a dump and a graph"),
        (
            [run(0, *FUSED), replace(run(1, *UNFUSED), leaf=None)],
            DataNotFoundError,
            "only debug_0 has both a dump and a graph; debug_1 has a graph but no dump",
        ),
        (
            [run(0, *FUSED), run(1, *FUSED)],
            UsageError,
            "debug_0 and debug_1 were both compiled with fusion: 2 and 2 ops",
        ),
        (
            [run(0, *UNFUSED), run(1, *UNFUSED)],
            UsageError,
            "neither debug_0 nor debug_1 has an op that a switchable fusion pass made",
        ),
        (
            [run(0, *FUSED), run(1, *single("other", "network", "conv"))],
            UsageError,
            "debug_0 and debug_1 are of different networks: their graphs have 33% of",
        ),
        (
            [
                replace(run(0, *FUSED), leaves=(replace(LEAF, step="3"),)),
                replace(run(1, *UNFUSED), leaves=(replace(LEAF, step="5"),)),
            ],
            UsageError,
            "dumps of different steps: debug_0 has 3, debug_1 has 5",
        ),
    ],
)
def test_what_is_wrong_and_what_to_collect(runs: list[RunGraph], kind: type[PrecisionToolError], words: str) -> None:
    with pytest.raises(kind) as caught:
        find_pair(runs)
    assert caught.value.message.startswith(words)
    assert "collect" in caught.value.hint


def test_two_graphs_that_were_named() -> None:
    one, two, other = (
        GraphChoice(file=file(*ops), reason="", matched=1, total=1)
        for ops in (FUSED, UNFUSED, tuple(single("x", "y", "z")))
    )
    assert pair_notes(one, two) == []
    (note,) = pair_notes(two, one)
    assert "more fused ops than this one" in note
    (note,) = pair_notes(one, one)
    assert note.startswith("the other run is not free of fusion")
    with pytest.raises(UsageError, match="graphs of different networks, with 0% of"):
        pair_notes(one, other)
