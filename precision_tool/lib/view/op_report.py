"""Everything about one op, for `ni` and for Python: its entry in the graph, its tensors, its own error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.compare.arrays import TensorProxy
from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.named_tensors import compare_op
from precision_tool.lib.compare.scheduler import Progress
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_catalog import FoundOp
from precision_tool.lib.data.neighbourhood import Wiring, connections
from precision_tool.lib.diagnose.stored_verdict import op_verdicts
from precision_tool.lib.messages import text
from precision_tool.lib.model.op_verdict import Examined, OpVerdict
from precision_tool.lib.model.table import Row
from precision_tool.lib.view.html import html_of, text_of
from precision_tool.lib.view.op_screen import OpReport, op_lines


def report_of(
    data: DataFolder, hit: FoundOp, name: str, workers: int = 0, progress: Progress | None = None
) -> OpReport:
    """Return what there is to say of an op in one graph.

    Parameters
    ----------
    data : DataFolder
        Where its tensors lie.
    hit : FoundOp
        The op, and the graph that it is in.
    name : str
        What it was asked for by.
    workers : int
        How many share the comparison of its tensors; 0: one per core.
    progress : callable, optional
        Called with (done, total), in bytes.
    """
    from precision_tool.lib.diagnose.checked_ops import examine_in

    rows = compare_op(hit.op, data.pairs_of(hit), workers, progress)
    run = hit.run
    examined = examine_in(data, run, hit.op)
    not_dumped = ""
    if not rows:
        not_dumped = text("screen.cli.no_dump_of_graph")
        if run.leaf is not None:
            not_dumped = text("screen.cli.no_file_of_op", folder=run.leaf.path, op=hit.op.name, type=hit.op.type)
    return OpReport(
        run=run,
        graph=hit.graph,
        op=hit.op,
        connections=connections(run.file.once(Wiring), hit.graph.name, hit.op),
        rows=tuple(rows),
        not_dumped=not_dumped,
        requested=_original(hit, name),
        judged=_judged(op_verdicts(data.workspace, run).get(hit.op.name), examined),
        source=None if examined is None else examined.source,
        elements=() if examined is None else examined.elements,
    )


def _judged(stored: OpVerdict | None, examined: Examined | None) -> OpVerdict | None:
    """Return the verdict on the op: as checked now, unless the verdict on its whole run has more.

    That one has the precision of the device, by which an op may be right that is wrong beside rounding alone.
    """
    now = None if examined is None else examined.judged
    if now is None or (stored is not None and stored.is_decided and not now.is_decided):
        return stored
    return stored if stored is not None and stored.state == "right" and now.is_wrong else now


def _original(hit: FoundOp, name: str) -> str:
    """Return the op of the training script with this name, if `hit` does its work under another name."""
    flat_name = flatten(name)
    if flatten(hit.op.name) == flat_name:
        return ""
    return next((original for original in hit.op.original_names or () if flatten(original) == flat_name), "")


@dataclass(frozen=True, eq=False, repr=False)
class OpView:
    """One op, for a notebook: what `ni` shows of it. ``print`` shows it as text.

    Attributes
    ----------
    reports : tuple of OpReport
        The op in each graph that has it; properties are those of the first.
    threshold : float
        Cosine similarity below which a tensor counts as wrong.
    tensors : tuple of TensorProxy
        Its dumped inputs, then outputs, as arrays; each has its `benchmark`. Empty where it was not dumped.
    """

    reports: tuple[OpReport, ...]
    threshold: float
    tensors: tuple[TensorProxy, ...]

    @property
    def name(self) -> str:
        """Its name in the graph."""
        return self.reports[0].op.name

    @property
    def type(self) -> str:
        """Its type."""
        return self.reports[0].op.type

    @property
    def pass_names(self) -> Sequence[str]:
        """The fusion passes that made it; empty for none."""
        return self.reports[0].op.pass_names

    @property
    def rows(self) -> Sequence[Row]:
        """Its tensors compared with the benchmark."""
        return self.reports[0].rows

    @property
    def verdict(self) -> OpVerdict | None:
        """What recomputing it from its own inputs showed: `state`, `own_error`, `rounding`; None if it was not."""
        return self.reports[0].judged

    def __repr__(self) -> str:
        return f"<OpView {self.name} ({self.type}): {len(self.tensors)} tensors>"

    def __str__(self) -> str:
        return text_of(*op_lines(self.reports, self.threshold, everything=False))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: all that `ni` shows."""
        return html_of(*op_lines(self.reports, self.threshold, everything=False))
