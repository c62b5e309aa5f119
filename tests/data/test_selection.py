"""Ops chosen by id or by name, from graphs of a few ops."""

from __future__ import annotations

import pytest

from precision_tool.lib.data.pair_selection import OpIds, OpNames, OpRange, is_by_number, parse_ids, parse_range, select
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import Graph, GraphFile, Op


def pair(index: int, name: str, slot: str = "output:0", **others: object) -> Pair:
    given: dict[str, object] = {
        "op_type": "Add", "npu_ops": (name,), "golden_ops": (name,), "slot": slot, **others
    }  # fmt: skip
    return Pair(index=index, op_name=name, **given)  # type: ignore[arg-type]


def graph(*ops: Op) -> GraphFile:
    return GraphFile(path="g.txt", graphs=(Graph(name="g", ops=ops),))


#: Ids 0 to 83, a group each, as the vendor's tool chose from such a graph (26.2.0: `-r 20,30,3`).
NUMBERED = graph(*(Op(name=f"op{number}", type="Add", id=number) for number in range(84)))
ALL = [pair(number, f"op{number}") for number in range(84)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20,30,3", [20, 23, 26, 29, 30]),  # the end always is in it
        ("80,-1,1", [80, 81, 82, 83]),
        (",,40", [1, 41, 81, 83]),
        (" 5, 5 ,1", [5]),
    ],
)
def test_a_range_is_the_vendors(text: str, expected: list[int]) -> None:
    selection = parse_range(text)
    assert is_by_number(selection)
    selected = select(ALL, selection, NUMBERED)
    assert [one.index for one in selected.pairs] == expected
    assert [one.sequence for one in selected.pairs] == expected
    assert selected.notes == [Message("note.data.some_groups", count=len(expected), all=84)]


@pytest.mark.parametrize("text", ["", "1", "1,2", "1,2,3,4", "a,2,3", "-1,2,3", "1,-2,3", "1,2,-3", "1,2,0x3", "1;2;3"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match="is not START,END,STEP"):
        parse_range(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [("84,-1,1", "start 84"), ("5,4,1", "end 4"), ("1,84,1", "end 84"), ("1,5,0", "step 0"),
     ("1,5,83", "step 83")],
)  # fmt: skip
def test_a_range_outside_the_graph(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"--range: {what} is not within"):
        select(ALL, parse_range(text), NUMBERED)


def test_ids() -> None:
    selection = parse_ids("7, 1,5,,5")
    assert selection == OpIds(ids=(1, 5, 7))
    assert [one.sequence for one in select(ALL, selection, NUMBERED).pairs] == [1, 5, 7]
    some = select(ALL, OpIds(ids=(3, 90)), NUMBERED)
    assert [one.index for one in some.pairs] == [3]
    assert some.notes[0] == Message("note.data.no_such_id", ids=["90"])
    with pytest.raises(UsageError, match="90, 91 is beyond the last op, which is 83"):
        select(ALL, OpIds(ids=(90, 91)), NUMBERED)
    for text in ("", ",", "x", "-1", "1 2"):
        with pytest.raises(UsageError):
            parse_ids(text)


def test_a_group_is_chosen_whole_by_the_id_of_any_of_its_ops() -> None:
    """Also by that of an op that was not dumped and has no row."""
    file = graph(
        Op(name="data", type="Data", id=0),
        Op(name="fused", type="Conv2D", id=3, original_names=("a", "b")),
        Op(name="rest", type="Relu", id=9, original_names=("a", "b")),
        Op(name="other", type="Add", id=11),
    )
    pairs = [pair(0, "data"), pair(1, "fused", "input:0"), pair(1, "fused"), pair(2, "other")]
    for number in (3, 9):
        chosen = select(pairs, OpIds(ids=(number,)), file).pairs
        assert [(one.op_name, one.slot, one.sequence) for one in chosen] == [
            ("fused", "input:0", 3), ("fused", "output:0", 3)
        ]  # fmt: skip
    with pytest.raises(DataNotFoundError, match="no op has one of the requested ids"):
        select(pairs, OpIds(ids=(7,)), file)


def test_without_a_graph_ops_have_the_numbers_of_their_order() -> None:
    pairs = [pair(0, "a"), pair(1, "b", "input:0"), pair(1, "b"), pair(2, "c")]
    selected = select(pairs, OpRange(start=1, end=1), None)
    assert [(one.op_name, one.sequence) for one in selected.pairs] == [("b", 1), ("b", 1)]
    assert selected.notes[0] == Message("note.data.numbered_by_time")


FUSED = graph(
    Op(name="conv1/Conv2Dconv1/Relu", type="Conv2D", original_names=("conv1/Conv2D", "conv1/Relu")),
    Op(name="fc/MatMul", type="MatMul"),
    Op(name="fc/MatMul_1", type="MatMul"),
    Op(name="weight", type="Variable"),
)
NAMED = [
    pair(0, "conv1/Conv2Dconv1/Relu", "input:0"),
    pair(0, "conv1/Conv2Dconv1/Relu", "input:1"),
    pair(0, "conv1/Conv2Dconv1/Relu"),
    pair(1, "fc/MatMul"),
    pair(2, "fc/MatMul_1"),
    pair(
        3,
        "weight",
        "",
        status=Status.NO_NPU_DUMP,
        reason=Message("row.data.not_dumped", op="weight", op_type="Variable"),
    ),
]


def chosen_by(names: tuple[str, ...], file: GraphFile | None) -> list[int]:
    selection = OpNames(names=names)
    assert not is_by_number(selection)
    chosen = select(NAMED, selection, file).pairs
    assert all(one.sequence is None for one in chosen)
    return [NAMED.index(one) for one in chosen]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("fc/MatMul",), [3]),  # whole, though another name begins like it
        (("fc_MatMul",), [3]),
        (("conv2dconv1",), [0, 1, 2]),  # a part that one op has
        (("MatMul_1", "conv1_Conv2Dconv1"), [0, 1, 2, 4]),
    ],
)
@pytest.mark.parametrize("file", [FUSED, None], ids=["graph", "none"])
def test_names(names: tuple[str, ...], expected: list[int], file: GraphFile | None) -> None:
    assert chosen_by(names, file) == expected


def test_an_op_of_the_script_stands_for_the_op_it_was_fused_into() -> None:
    assert chosen_by(("conv1_Relu",), FUSED) == [0, 1, 2]


def test_slots_of_a_name() -> None:
    chosen = select(NAMED, OpNames(names=("conv1/Relu",), inputs=(1,), outputs=(0,)), FUSED).pairs
    assert [one.slot for one in chosen] == ["input:1", "output:0"]
    with pytest.raises(DataNotFoundError, match="has no output:3") as caught:
        select(NAMED, OpNames(names=("conv1/Relu",), outputs=(3,)), FUSED)
    assert caught.value.hint == "its tensors are input:0, input:1, output:0"


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("MatMu", UsageError, "fc/MatMul, fc/MatMul_1"),
        ("fc/MatMull", DataNotFoundError, "fc/MatMull"),
        ("weight", DataNotFoundError, "the NPU dumped no file of weight"),
        (" ", UsageError, "empty"),
    ],
)
def test_names_that_choose_nothing(name: str, kind: type[PrecisionToolError], words: str) -> None:
    with pytest.raises(kind, match=words):
        select(NAMED, OpNames(names=(name,)), FUSED)


def test_a_range_may_begin_with_the_first_op() -> None:
    """As the list of ids does, and as `ls` shows them."""
    assert [one.index for one in select(ALL, parse_range("0,5,2"), NUMBERED).pairs] == [0, 2, 4, 5]
    assert [one.index for one in select(ALL, parse_ids("0"), NUMBERED).pairs] == [0]


def test_ops_that_have_nothing_to_compare_are_told_with_the_reason() -> None:
    lost = [pair(0, "op0", status=Status.NO_NPU_DUMP, reason=Message("text", text="not dumped")), *ALL[1:]]
    notes = select(lost, parse_ids("0"), NUMBERED).notes
    assert str(notes[-1]) == "nothing of the selection can be compared: 0: op0: not dumped"
    kinds = [note.kind for note in select(lost, parse_ids("0,1"), NUMBERED).notes]
    assert "note.data.nothing_comparable" not in kinds
