"""Words for what differs between the passports of two runs, and their JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_tool.lib.checks.passports import (
    Difference,
    OneSideOnly,
    OtherSetting,
    OtherValues,
    PassportPair,
    Topic,
)
from precision_tool.lib.formats.passport import Plain, TensorHash
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted, first_of

#: Names of tensors that a line shows.
_SHOWN = 3
_TENSORS = {Topic.VARIABLES: "variable", Topic.BATCH: "fed tensor"}
#: Settings that are called otherwise than in the passport.
_SETTINGS = {
    (Topic.SEEDS, "helper"): "seed",
    (Topic.SEEDS, "graph"): "seed of the graph",
    (Topic.SEEDS, "ops_without_seed"): "random ops without a seed",
    (Topic.OPTIMIZER, "type"): "optimizer",
    (Topic.OPTIMIZER, "groups"): "groups of hyperparameters",
}


def difference_words(pair: PassportPair, one: Difference) -> str:
    """What differs, in one line."""
    words = SENTENCES[type(one.evidence)]
    return words(one.evidence, "benchmark" if pair.has_benchmark else "other run")


def _other_values(one: OtherValues, other: str) -> str:
    have = "has" if len(one.names) == 1 else "have"
    text = f"{len(one.names):,} of {counted(one.both, _TENSORS[one.topic])} {have} other values: "
    text += first_of(one.names, _SHOWN)
    if one.forms is not None:
        name, npu, theirs = one.forms
        text += f" ({name} is {_form(npu)} and {_form(theirs)})"
    return text


def _one_side_only(one: OneSideOnly, other: str) -> str:
    side = "NPU" if one.is_npu else other
    return f"{counted(len(one.names), _TENSORS[one.topic])} only on the {side} side: {first_of(one.names, _SHOWN)}"


def _other_setting(one: OtherSetting, other: str) -> str:
    what = f"{one.name} of {one.optimizer}" if one.optimizer else _SETTINGS.get((one.topic, one.name), one.name)
    return f"{what}: NPU {_value(one.npu)}, {other} {_value(one.other)}"


def _form(one: TensorHash) -> str:
    return f"{one.type} {list(one.shape)}"


def _value(value: Plain) -> str:
    return "not set" if value is None else str(value)


def pair_json(pair: PassportPair) -> dict[str, Any]:
    """The object of JSON."""
    return {
        "npu": pair.npu.path,
        "benchmark": pair.other.path,
        "differences": [
            {
                "topic": one.topic,
                "names": list(one.names),
                "npu": one.npu,
                "benchmark": one.benchmark,
                "text": difference_words(pair, one),
            }
            for one in pair.differences
        ],
    }


#: The second argument is what the other side is called.
SENTENCES: dict[type[Evidence], Callable[[Any, str], str]] = {
    OneSideOnly: _one_side_only,
    OtherSetting: _other_setting,
    OtherValues: _other_values,
}
