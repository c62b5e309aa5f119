"""Runs a kernel of the user's: a command that reads inputs from one folder and writes outputs to another."""

from __future__ import annotations

import json
import shlex
import tempfile
import tokenize
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.toolkit import run_command
from precision_tool.lib.diagnose.minimize import Case, KernelFailedError
from precision_tool.lib.diagnose.recorded_script import NoCodeError, call_code
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import RecordedTensor
from precision_tool.lib.ops.base import Output
from precision_tool.lib.view.minimal_case import attributes_of
from precision_tool.lib.view.reproduction import as_stored, described

#: Characters of what a command that failed wrote last.
_LAST = 300
_NAME = "op.json"


@dataclass(frozen=True, kw_only=True)
class KernelCommand:
    """A kernel that is a command; calling it runs one case. `op_of` returns the op of a case.

    The command gets two arguments: the folder with `op.json` and the inputs, and an empty one for the outputs.
    """

    command: str
    #: Seconds that a run may take.
    timeout: float
    framework: str
    #: Types and layouts of the outputs by slot.
    outputs: Mapping[int, tuple[str, str]]
    op_of: Callable[[Case], Op]

    def __call__(self, case: Case) -> dict[int, npt.NDArray[Any]]:
        """Return what the command puts out of a case, by slot. KernelFailedError where it does not."""
        with tempfile.TemporaryDirectory(prefix="precision_tool_") as folder:
            given, made = Path(folder, "inputs"), Path(folder, "outputs")
            given.mkdir()
            made.mkdir()
            document = {**self._document(case), "inputs": _saved(case, given)}
            (given / _NAME).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
            self._run(given, made, Path(folder, "log"))
            return {slot: _read(made / f"output_{slot}.npy") for slot in self.outputs}

    def _document(self, case: Case) -> dict[str, Any]:
        op, stages = self.op_of(case), case.formula.stages
        made = case.formula.run(case.inputs, only_values=True)
        document: dict[str, Any] = {
            "op": op.name,
            "type": op.type,
            "attributes": attributes_of(stages[0]) if len(stages) == 1 else {},
            "stages": [{"type": stage.op_type, "attributes": attributes_of(stage)} for stage in stages],
            "outputs": [
                {
                    "slot": slot,
                    "file": f"output_{slot}.npy",
                    "dtype": dtype,
                    "layout": layout,
                    **_made(case, slot, made),
                }
                for slot, (dtype, layout) in sorted(self.outputs.items())
            ],
        }
        code = _code(op, self.framework)
        return {**document, "call": code} if code else document

    def _run(self, given: Path, made: Path, log: Path) -> None:
        command = f"{self.command} {shlex.quote(str(given))} {shlex.quote(str(made))}"
        try:
            code = run_command(command, log=str(log), time_limit=self.timeout)
        except OSError as error:
            raise KernelFailedError(Message("minimal.kernel.not_run", why=error.strerror or str(error))) from error
        if code is None:
            raise KernelFailedError(Message("minimal.kernel.hangs", seconds=self.timeout))
        if code:
            last = log.read_text("utf-8", errors="replace").strip().rpartition("\n")[2][-_LAST:]
            raise KernelFailedError(Message("minimal.kernel.exit", code=code, last=last or None))


def _made(case: Case, slot: int, made: Mapping[int, Output]) -> dict[str, Any]:
    """Return which stage makes an output, by its place in `stages`, its type and the shape; None of what is unknown."""
    ref = case.formula.outputs.get(slot)
    stage = None if ref is None else ref.stage or 0
    return {
        "stage": stage,
        "type": None if stage is None else case.formula.stages[stage].op_type,
        "shape": list(made[slot].array.shape) if slot in made else None,
    }


def _saved(case: Case, folder: Path) -> list[dict[str, Any]]:
    inputs = []
    for slot, tensor in sorted(case.inputs.items()):
        name = f"input_{slot}.npy"
        np.save(folder / name, np.ascontiguousarray(as_stored(tensor)), allow_pickle=False)
        inputs.append({"slot": slot, "file": name, **described(tensor)})
    return inputs


def _read(path: Path) -> npt.NDArray[Any]:
    if not path.is_file():
        raise KernelFailedError(Message("minimal.kernel.no_file", file=path.name))
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise KernelFailedError(Message("minimal.kernel.unreadable", file=path.name, why=str(error))) from error
    if array.dtype.kind not in "biuf":
        raise KernelFailedError(Message("minimal.kernel.no_numbers", file=path.name, dtype=str(array.dtype)))
    return array


def _code(op: Op, framework: str) -> str:
    """Return a recorded call as Python, with its inputs as `input_N`; "" where there is none."""
    recorded = op.recorded
    if recorded is None:
        return ""
    numbers = {slot: number for number, slot in enumerate(recorded.input_slots)}
    prefix = "" if recorded.forward is None else "forward."

    def name(slot: str, _: RecordedTensor) -> str:
        return f"input_{numbers[prefix + slot]}"

    with suppress(NoCodeError, KeyError):
        return call_code(recorded.forward or recorded.call, framework, name)
    return ""
