"""What a training script may ask for: `'dump'`, `'fusion_off|dump'`, … This module runs on Python 3.7."""

import difflib
import os
from typing import FrozenSet, Mapping, Optional

from precision_tool.lib.collect.packages import ScriptError
from precision_tool.lib.errors import shown

ACTIONS = ("dump", "overflow", "fusion_off", "fusion_switch", "prof", "mixlist")

#: Set to `True` by `npu_dump` and `npu_overflow` for the command they run.
DUMP_FLAG = "PRECISION_TOOL_DUMP"
OVERFLOW_FLAG = "PRECISION_TOOL_OVERFLOW"

_CONTRADICTIONS = (
    ("dump", "overflow", "the device cannot dump data and detect overflow in one run"),
    ("fusion_off", "fusion_switch", "there is one fusion switch file, and they name different ones"),
)


def parse_action(action: object, environment: Optional[Mapping[str, str]] = None) -> FrozenSet[str]:
    """The actions in a text like `'fusion_off | dump'`; without a text those that the environment asks for.

    Raises ScriptError (a ValueError) for an unknown action or two that contradict each other.
    """
    if action is None or action == "":
        return _check(_flagged(os.environ if environment is None else environment), "the environment asks for")
    if not isinstance(action, str):
        raise ScriptError(f"action must be a text such as 'dump', not {action!r}", _KNOWN)
    words = [word.strip() for word in action.lower().split("|")]
    for word in words:
        if word not in ACTIONS:
            close = difflib.get_close_matches(word, ACTIONS, n=1)
            hint = f"did you mean {close[0]!r}? {_KNOWN}" if close else _KNOWN
            raise ScriptError(f"unknown action {shown(word)} in {shown(action)}", hint)
    return _check(frozenset(words), f"action {shown(action)} asks for")


_KNOWN = "known are " + ", ".join(ACTIONS) + ", combined with |"


def _flagged(environment: Mapping[str, str]) -> FrozenSet[str]:
    flags = (("dump", DUMP_FLAG), ("overflow", OVERFLOW_FLAG))
    return frozenset(name for name, flag in flags if environment.get(flag, "").lower() in ("true", "1"))


def _check(actions: FrozenSet[str], asks: str) -> FrozenSet[str]:
    for action, other, why in _CONTRADICTIONS:
        if action in actions and other in actions:
            raise ScriptError(f"{asks} both {action} and {other}: {why}", "choose one of them")
    return actions
