"""Goes on with a study as new steps arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.study.preparing import Prepared
from precision_tool.lib.study.study import Study


def watch(
    prepare: Callable[[], Prepared],
    study: Callable[[Prepared], Study],
    seen: Callable[[Study], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Study:
    """Studies what is there, and again whenever there is more, until Ctrl+C; the last study.

    `seen` is called with each. A folder that is new, or has changed, is taken when it has stayed as it is from one look
    to the next, `seconds` apart: it may still be written. That the data cannot be listed for a while is waited for.
    """
    prepared = prepare()
    last = study(prepared)
    seen(last)
    known = _prints(prepared)
    before = known
    while True:
        try:
            sleep(seconds)
            prepared = prepare()
        except KeyboardInterrupt:
            return last
        except PrecisionToolError:
            continue  # a server that does not answer now may do so later
        now = _prints(prepared)
        settled = {path: mark for path, mark in now.items() if before.get(path) == mark}
        if any(known.get(path) != mark for path, mark in settled.items()):
            plans = tuple(plan for plan in prepared.plans if plan.leaf.path in settled)
            last = study(replace(prepared, plans=plans))
            seen(last)
            known = settled
        before = now


def _prints(prepared: Prepared) -> dict[str, str]:
    return {plan.leaf.path: plan.fingerprint for plan in prepared.plans}
