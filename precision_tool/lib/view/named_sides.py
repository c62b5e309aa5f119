"""Next steps after a comparison of dumps of msprobe that were named, and are not those of the data folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.workspace import Workspace, lies_in
from precision_tool.lib.diagnose.verdict_model import Step, StepText
from precision_tool.lib.io.files import real_path


def are_named_dumps(space: Workspace, npu: str | None, golden: str | None) -> bool:
    """Return whether dumps of msprobe were named that are not those of the data folder."""
    own = (space.dump_dir(0), space.msprobe_benchmark_dir)
    return any(
        side is not None and MSPROBE.lies_at(side) and not (folder and lies_in(real_path(side), real_path(str(folder))))
        for side, folder in zip((npu, golden), own, strict=True)
    )


def on_named_sides(
    steps: Iterable[Step | StepText], npu: str | None, golden: str | None, *, at_prompt: bool = False
) -> Iterator[Step | StepText]:
    """Yield the steps with the dumps that were named: a comparison names them again, else one is the data folder.

    What takes both sides, and is no comparison, becomes one.
    """
    named = [word for option, side in (("-lt", npu), ("-rt", golden)) if side for word in (option, side)]
    data = "data" if at_prompt else "--data"
    for step in steps:
        if isinstance(step, StepText) or not step.command:
            yield step
        elif step.command[0] == "whatif":
            yield replace(step, command=("ac", "--prove", *named))
        elif step.command[0] == "ac":
            yield replace(step, command=(*step.command, *(word for word in named if word not in step.command)))
        elif npu is not None:
            yield replace(step, command=(data, npu, *step.command))
        else:
            yield step
