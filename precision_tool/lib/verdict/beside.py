"""An op beside the benchmark: what it would have been fed there, what it inherited, and the benchmark's own error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

import numpy as np
import numpy.typing as npt

from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input, NotComputedError
from precision_tool.lib.verdict.formulas import Formula
from precision_tool.lib.verdict.judgement import OpJudgement
from precision_tool.lib.verdict.rounding import norm
from precision_tool.lib.verdict.rows import Rows
from precision_tool.lib.verdict.values import NoValueError, Root, RunValues

#: Elements farthest from the benchmark's that a sample has too.
_FARTHEST = 16
#: The benchmark obeys a formula up to this relative distance (it computes in float32, in other orders).
_OBEYS = 2e-3


class Beside:
    """What the benchmark of a run says of its ops."""

    def __init__(self, values: RunValues) -> None:
        self._values = values

    def golden(self, name: str, index: int, rows: Rows | None = None) -> np.ndarray | None:
        """A tensor of the script as the benchmark has it; `rows`: only these of one that has as many."""
        golden = self._values.benchmark.output_of(name, index)
        if not isinstance(golden, Tensor):
            return None
        try:
            return np.asarray(self._values.load(golden, None, rows=rows).array, np.float64)
        except NoValueError:
            return None

    def lend(self, key: tuple[str, int], desc: TensorDesc | None) -> Input | None:
        """A tensor of the script as the benchmark has it, with the axes that a graph describes; None if it has none."""
        golden = self._values.benchmark.output(*key)
        if not isinstance(golden, Tensor):
            return None
        try:
            return self._values.load(golden, desc)
        except NoValueError:
            return None

    def inputs(
        self, op: Op, fed: Mapping[int, Input], rows: Rows | None = None, cut: frozenset[int] = frozenset()
    ) -> dict[int, Input] | None:
        """The op's inputs as the benchmark has them, of constants that it lacks the run's; None if others lack.

        Of the slots in `cut` only `rows`, as `fed` has them.
        """
        values = self._values
        inputs: dict[int, Input] = {}
        for slot in values.input_slots(op):
            root = values.fed_by.get((id(op), slot.graph_index))
            some = rows if slot.index in cut else None
            loaded = values.load_benchmark(root, some) if root is not None else None
            mine = fed.get(slot.index)
            if loaded is None:
                if mine is None or root is None or values.parameter_of(root) is None:
                    return None
                inputs[slot.index] = mine
                continue
            array = loaded.input.array
            if mine is not None and array.shape != mine.array.shape and array.size == mine.array.size:
                array = array.reshape(mine.array.shape)
            layout = mine.layout if mine is not None and len(mine.layout) == array.ndim else loaded.input.layout
            inputs[slot.index] = Input(array=array, dtype=loaded.input.dtype, layout=layout)
        return inputs

    def farthest(self, op: Op, got: Mapping[int, Input]) -> npt.NDArray[np.intp]:
        """The flat places of output 0 that are farthest from the benchmark's; none where that has no such tensor."""
        golden = self._values.load_benchmark(Root(op, 0)) if 0 in got else None
        if golden is None or golden.input.array.size != got[0].array.size or not golden.input.array.size:
            return np.zeros(0, np.intp)
        mine, theirs = np.asarray(got[0].array).reshape(-1), np.asarray(golden.input.array).reshape(-1)
        if mine.dtype.kind not in "fiub" or theirs.dtype.kind not in "fiub":
            return np.zeros(0, np.intp)
        with np.errstate(all="ignore"):
            off = np.abs(np.subtract(mine, theirs, dtype=np.float64))
        off[~np.isfinite(off)] = 0.0
        off[np.isfinite(mine) != np.isfinite(theirs)] = np.inf
        return np.argpartition(off, -min(_FARTHEST, off.size))[-_FARTHEST:]

    def split(
        self,
        found: OpJudgement,
        formula: Formula,
        fed: Mapping[int, Input],
        rows: Rows | None = None,
        cut: frozenset[int] = frozenset(),
    ) -> OpJudgement | None:
        """The judgement with the inherited error and the benchmark's own; None where the benchmark does not tell.

        With `rows` both are those of some rows of the batch, which the inputs in `cut` have.
        """
        values = self._values
        op = found.op
        if rows is not None:
            formula, fed = formula.unshaped(), rows.cut(fed, cut)
        inputs = self.inputs(op, fed, rows, cut)
        if inputs is None:
            return None
        try:
            true = formula.run(inputs)
            mine_true = formula.run(fed)
        except (NotComputedError, ValueError, IndexError, TypeError, KeyError):
            return None
        moved = _relative(
            np.concatenate(
                [np.asarray(fed[n].array, np.float64).reshape(-1) for n in inputs if n in fed] or [np.zeros(0)]
            ),
            np.concatenate(
                [np.asarray(inputs[n].array, np.float64).reshape(-1) for n in inputs if n in fed] or [np.zeros(0)]
            ),
        )
        slots = []
        for slot in found.slots:
            golden = values.load_benchmark(Root(op, slot.slot), rows)
            if golden is None or slot.slot not in true or golden.input.array.size != true[slot.slot].array.size:
                return None
            f_b = np.asarray(true[slot.slot].array, np.float64).reshape(-1)
            f_n = np.asarray(mine_true[slot.slot].array, np.float64).reshape(-1)
            own = _relative(np.asarray(golden.input.array, np.float64).reshape(-1), f_b)
            inherited = _relative(f_n, f_b)
            kappa = inherited / moved if moved and isfinite(inherited) and isfinite(moved) else None
            slots.append(replace(slot, fed=inherited, benchmark_own=own, amplification=kappa))
        return replace(found, slots=tuple(slots))


def _relative(x: np.ndarray, y: np.ndarray) -> float:
    both = np.isfinite(x) & np.isfinite(y)
    size = norm(y[both])
    distance = norm(x[both] - y[both])
    return distance / size if size else (0.0 if not distance else np.inf)


def is_obeyed(split: OpJudgement) -> bool:
    """Whether the benchmark obeys the formula of a judgement that `Beside.split` gave."""
    return all(slot.benchmark_own is not None and slot.benchmark_own <= _OBEYS for slot in split.slots)
