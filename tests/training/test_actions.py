"""What a training script may ask for."""

from __future__ import annotations

import pytest

from precision_tool.lib.training.switches import parse_action


@pytest.mark.parametrize(
    ("action", "names"),
    [
        ("dump", {"dump"}),
        ("fusion_off|dump", {"fusion_off", "dump"}),
        (" dump | prof |fusion_switch ", {"dump", "prof", "fusion_switch"}),
        ("Overflow|mixlist", {"overflow", "mixlist"}),
        ("dump|dump", {"dump"}),
    ],
)
def test_actions_are_read(action: str, names: set[str]) -> None:
    assert parse_action(action, {}) == names


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("dumb", "unknown action 'dumb' in 'dumb'; did you mean 'dump'"),
        ("dump|", "unknown action ''"),
        ("dump,overflow", "unknown action 'dump,overflow'"),
        ("dump|overflow", "both dump and overflow: the device cannot dump data and detect overflow in one run"),
        ("fusion_off|dump|fusion_switch", "both fusion_off and fusion_switch: there is one fusion switch file"),
        (["dump"], "action must be a text such as 'dump', not"),
        (True, "action must be a text"),
    ],
)
def test_what_is_no_action_is_a_value_error(action: object, message: str) -> None:
    with pytest.raises(ValueError, match="action") as caught:
        parse_action(action, {})
    assert message in str(caught.value)
    assert "; " in str(caught.value), "a traceback shows str() alone, so the advice must be in it"


@pytest.mark.parametrize("nothing", [None, ""])
@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, set()),
        ({"PRECISION_TOOL_DUMP": "True"}, {"dump"}),
        ({"PRECISION_TOOL_OVERFLOW": "True", "PRECISION_TOOL_DUMP": "False"}, {"overflow"}),
    ],
)
def test_without_an_action_the_environment_decides(
    nothing: str | None, environment: dict[str, str], names: set[str]
) -> None:
    assert parse_action(nothing, environment) == names


def test_an_action_beats_the_environment() -> None:
    assert parse_action("fusion_off", {"PRECISION_TOOL_DUMP": "True"}) == {"fusion_off"}


def test_contradicting_flags_are_told() -> None:
    with pytest.raises(ValueError, match="the environment asks for both dump and overflow"):
        parse_action(None, {"PRECISION_TOOL_DUMP": "True", "PRECISION_TOOL_OVERFLOW": "True"})
