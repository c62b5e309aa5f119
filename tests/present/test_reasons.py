"""Why an op was not recomputed: each kind has its words, and whoever gives a reason gives what the words need."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from string import Formatter

import pytest

from precision_tool.lib.model.reason import Reason, Why, joined, read_reason
from precision_tool.lib.present.reasons import WORDS, kind_counts, reason_counts, reason_kind, reason_words
from precision_tool.lib.verdict.judgement import Tally

LIB = Path(__file__).resolve().parents[2] / "precision_tool" / "lib"


def given(room: Path) -> Iterator[tuple[str, Why, set[str]]]:
    """Where a reason is made, of which kind, and the fields that it is given."""
    for path in sorted(room.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason"):
                continue
            kind, place = node.args[0], f"{path.relative_to(room)}:{node.lineno}"
            if isinstance(kind, ast.Attribute):  # `missing_reason` chooses one of several with the same field
                yield place, Why[kind.attr], {str(one.arg) for one in node.keywords}


def wanted(why: Why) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(WORDS[why]) if name}


def test_every_kind_has_words_of_fields_that_there_are() -> None:
    assert set(WORDS) == set(Why)
    for why in Why:
        assert wanted(why) <= {each.name for each in fields(Reason)}, why


def test_whoever_gives_a_reason_gives_what_its_words_name() -> None:
    """In `ops` the type of the op is filled in where a function of the table ends."""
    found = list(given(LIB))
    assert len(found) > 200
    for place, why, names in found:
        may_lack = {"op_type"} if place.startswith("ops/") else set()
        assert wanted(why) - may_lack <= names, place
        assert names <= wanted(why) | {"op_type"}, place


def test_no_kind_is_there_for_nothing() -> None:
    chosen = {Why.INPUT_STATISTICS, Why.INPUT_NOT_DUMPED}
    assert {why for _, why, _ in given(LIB)} | chosen == set(Why)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason(Why.NO_FORMULA, op_type="Foo"), "there is no formula for Foo"),
        (
            Reason(Why.SHAPE_MISFIT, op_type="BiasAdd", name="bias", shape=(3,), other="x", other_shape=(2, 4)),
            "BiasAdd: bias of the shape (3,) does not fit x of the shape (2, 4)",
        ),
        (
            Reason(Why.NO_BROADCAST, op_type="Add", shapes=((2, 3), (4,), ())),
            "the shapes (2, 3) and (4,) and () of Add do not broadcast",
        ),
        (Reason(Why.TOO_MANY_PRODUCTS, number=3.2e12), "too large to recompute whole: 3.2e+12 products"),
        (Reason(Why.TOO_MANY_ELEMENTS, number=70_000_000), "too large to recompute whole: 70,000,000 elements"),
        (
            joined((Reason(Why.INPUT_NOT_DUMPED, slot=0), Reason(Why.INPUT_STATISTICS, slot=2))),
            "input 0 was not dumped; only statistics of input 2 were dumped",
        ),
        ("as an older release said it", "as an older release said it"),
        (None, ""),
    ],
)
def test_words(reason: Reason | str | None, words: str) -> None:
    assert reason_words(reason) == words
    assert reason_kind(reason) == (str(reason.why) if isinstance(reason, Reason) else None)


def test_kept_in_json_and_read_back() -> None:
    reason = joined((
        Reason(Why.SHAPES_DIFFER, op_type="Add", shapes=((2, 3), ())), Reason(Why.SHAPE, name="x", shape=()),
    ))  # fmt: skip
    assert reason is not None
    kept = json.loads(json.dumps(reason.to_dict()))
    assert kept == {
        "why": "shapes_differ", "op_type": "Add", "shapes": [[2, 3], []],
        "also": [{"why": "shape", "name": "x", "shape": []}],
    }  # fmt: skip
    assert read_reason(kept) == reason
    assert read_reason("in words") == "in words"
    assert read_reason(None) == ""


@pytest.mark.parametrize("odd", [{"why": "no such kind"}, {"name": "x"}, {"why": "shape", "colour": 1}])
def test_what_is_no_reason_is_an_error(odd: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_reason(odd)


def test_reasons_are_counted_by_their_words_and_kinds() -> None:
    """What differs only in what the words leave out is one reason."""
    reasons = (
        (Reason(Why.OUT_OF_TIME), 2),
        (Reason(Why.NO_FORMULA, op_type="B"), 1), (Reason(Why.NO_FORMULA, op_type="A"), 1),
        (Reason(Why.FUSED_UNKNOWN, op_type="C"), 2), (Reason(Why.FUSED_UNKNOWN), 1), ("as it was said before", 1),
    )  # fmt: skip
    tally = Tally(ops=9, right=1, wrong=0, doubtful=0, not_recomputed=8, reasons=reasons)
    assert reason_counts(tally) == [
        ("how it is fused is not known", 3), ("the time for recomputing was over", 2), ("as it was said before", 1),
        ("there is no formula for A", 1), ("there is no formula for B", 1),
    ]  # fmt: skip
    assert kind_counts(tally) == {"fused_unknown": 3, "no_formula": 2, "out_of_time": 2}
