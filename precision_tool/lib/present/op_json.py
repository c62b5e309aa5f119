"""What `ni` says of an op, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from precision_tool.lib.checks.agreement import agrees
from precision_tool.lib.graph.implementation import implementation
from precision_tool.lib.graph.neighbourhood import Step
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.graph import TensorDesc
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.present.judged import judged_json
from precision_tool.lib.present.op import _LONGEST_VALUE, _VALUE, OpReport, _shown_attributes, attribute_text
from precision_tool.lib.present.text import json_text
from precision_tool.lib.results.columns import IN_NI


def to_json(
    reports: Sequence[OpReport],
    threshold: float,
    everything: bool,
    attribute: str | None = None,
    drawings: Sequence[str] = (),
) -> str:
    """The same as one JSON document; attributes with `everything`, or that one."""
    ops = [_report_json(report, threshold, everything, attribute) for report in reports]
    return json_text({"ops": ops, "files": list(drawings)})


def _report_json(report: OpReport, threshold: float, everything: bool, attribute: str | None) -> dict[str, Any]:
    op, links, run = report.op, report.connections, report.run
    shown = _shown_attributes(op, attribute) if everything or attribute is not None else []
    longest = _VALUE if attribute is None else _LONGEST_VALUE
    code = implementation(op)
    caller = links.caller
    return {
        "name": op.name,
        "type": op.type,
        "id": op.id,
        "stream": op.stream_id,
        "kernel": op.kernel_name or None,
        "kernel_lib": op.kernel_lib or None,
        "is_custom": None if code is None else code.is_custom,
        "pass": list(op.pass_names),
        "original_ops": None if op.original_names is None else list(op.original_names),
        "asked": report.asked or None,
        "graph": report.graph.name,
        "graph_file": run.file.path,
        "reason": run.reason,
        "debug": run.number,
        "called_by": None if caller is None else caller.name,
        "subgraphs": list(op.subgraph_names),
        "inputs": [
            {
                "slot": one.slot,
                "producer": None if one.edge is None else one.edge.producer,
                "index": None if one.edge is None else one.edge.index,
                "sources": [_step_json(step, "index") for step in one.sources],
                **_desc_json(one.desc),
            }
            for one in links.inputs
        ],
        "outputs": [
            {
                "index": one.index,
                "readers": [_step_json(step, "slot") for step in one.readers],
                **_desc_json(one.desc),
            }
            for one in links.outputs
        ],
        "runs_after": [node.name for node in links.waits_for],
        "runs_before": [node.name for node in links.awaited_by],
        **({"attributes": {name: attribute_text(op, name, longest) for name in shown}} if shown else {}),
        "not_dumped": report.not_dumped or None,
        "verdict": None if report.judged is None else judged_json(report.judged),
        "source": None if report.source is None else asdict(report.source),
        "elements": [asdict(one) for one in report.elements],
        "tensors": [row_json(row, threshold) for row in report.rows],
    }


def _step_json(step: Step, place: str) -> dict[str, Any]:
    number = step.link.index if place == "index" else step.link.slot
    return {"op": step.end.name, place: number, "through": [node.name for node in step.through]}


def _desc_json(desc: TensorDesc | None) -> dict[str, Any]:
    return {"desc": None if desc is None else asdict(desc)}


def row_json(row: Row, threshold: float) -> dict[str, Any]:
    """A tensor of an op, with both sides' figures."""
    pair = row.pair
    return {
        "slot": pair.slot,
        "status": pair.status,
        "note": row.reason,
        "benchmark_tensor": pair.golden_tensor,
        "npu": _side_json(pair.npu, row.npu),
        "benchmark": _side_json(pair.golden, row.golden),
        "cosine": None if row.metrics is None else row.metrics.cosine,
        "agrees": agrees(row, threshold),
        # Figures of one side are in its summary.
        **{
            column.json or column.field.rpartition(".")[2]: column.held(row)
            for column in IN_NI
            if column.json or column.part not in ("npu", "golden")
        },
    }


def _side_json(tensor: AnyTensor | None, summary: Summary | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    figures = None if summary is None else asdict(summary)
    return {
        "path": tensor.path, "dtype": tensor.dtype, "layout": tensor.layout, "shape": list(tensor.shape),
        "summary": figures,
    }  # fmt: skip
