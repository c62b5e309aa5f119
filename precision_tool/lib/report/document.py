"""The data of a report: one JSON document with a schema version, which the page draws everything from.

Ops, tensors, wires and groups are columns: lists of equal length, one value an op, tensor, wire or group. Texts are
positions in the table `texts`; numbers that are not finite are "nan", "inf" and "-inf", None stands for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, log2
from operator import attrgetter
from typing import Any, NamedTuple

from precision_tool.lib.checks.agreement import OpAgreement, agrees
from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.named import names_in
from precision_tool.lib.model.finding import Finding
from precision_tool.lib.model.graph import GraphFile, Op, TensorDesc
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.table import ColumnChoice, Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.numbers import data_types
from precision_tool.lib.present.evidence.told import tell
from precision_tool.lib.present.op import attribute_text
from precision_tool.lib.report.columns import Texts, number, numbers, sound, whole
from precision_tool.lib.report.network import Network, error_path, lowest, network_of
from precision_tool.lib.report.sentences import verdict_document
from precision_tool.lib.results.columns import METRIC_FIELDS, READABLE
from precision_tool.lib.verdict.model import Verdict
from precision_tool.lib.verdict.stored import JudgedRun, StoredVerdict
from precision_tool.lib.workspace import shown_path

#: To be raised when a key changes its meaning or goes; not for a new one.
SCHEMA = 1
#: Attributes are kept of every op of a network up to this size, else of the ops that are looked at closely.
_MOST_WITH_ATTRIBUTES = 2500
#: Names that a note tells at most.
_MOST_NAMED = 3
#: Significant digits of numbers, with more tensors than this `_FEWER`.
_DIGITS, _FEWER, _MANY_TENSORS = 6, 4, 20000
#: The cosine, by which ops are judged, keeps its digits.
_COSINE_DIGITS = 9
#: Metrics that a report leaves out, or has beside the others; and those that it calls otherwise than their field.
_LEFT_OUT = ("cosine", "accumulated_relative_error", "kullback_leibler_divergence", "root_mean_square_error")
_METRIC_NAMES = {"relative_euclidean_distance": "relative_distance"}
#: Numbers of a tensor: their field in a row.
TENSOR_NUMBERS = {
    **{_METRIC_NAMES.get(name, name): f"metrics.{name}" for name in METRIC_FIELDS if name not in _LEFT_OUT},
    **{
        f"{side}_{short}": f"{side}.{name}"
        for side in ("npu", "golden")
        for short, name in (("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("std", "std"))
    },
}
#: Those that are counts.
TENSOR_COUNTS = {
    "mismatches": "metrics.non_finite_mismatches",
    **{
        f"{side}_{short}": f"{side}.{name}"
        for side in ("npu", "golden")
        for short, name in (
            ("nan", "nan_count"), ("pos_inf", "positive_inf_count"), ("neg_inf", "negative_inf_count"),
            ("zeros", "zero_count"),
        )
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Material:
    """What one result of a report is made of. `analysis` is None where nothing was compared, `file` without a graph.

    `details` are the values of a few ops by name, `checks` what was found beside the comparison, `passport` what
    the passports of the two runs say: their files, and what differs.
    """

    title: str
    path: str = ""
    npu: str = ""
    golden: str = ""
    threshold: float = 0.98
    analysis: Analysis | None = None
    verdict: StoredVerdict | None = None
    file: GraphFile | None = None
    details: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    checks: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    passport: Mapping[str, Any] | None = None
    #: The ops of the result's own run as they were judged.
    run: JudgedRun | None = None

    def judged(self) -> Mapping[str, JudgedOp]:
        """What recomputing said of each op; nothing of names that several ops have.

        Of another run than the verdict's the ops that the verdict blames are as they are in that run.
        """
        if self.verdict is None or not self.verdict.runs:
            return {}
        found = _by_name(self.run.ops if self.run is not None else ())
        blamed = self.verdict.blamed
        return found | {name: op for name, op in _by_name(self.verdict.runs[0].ops).items() if name in blamed}

    def verdict_object(self) -> Verdict | None:
        """The verdict; None where there is none, or the file was changed by hand."""
        try:
            return None if self.verdict is None else self.verdict.as_verdict()
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def _by_name(ops: Sequence[JudgedOp]) -> dict[str, JudgedOp]:
    names = Counter(op.name for op in ops)
    return {op.name: op for op in ops if names[op.name] == 1}


def document_of(materials: Sequence[Material], *, tool: str, time: str) -> dict[str, Any]:
    """The data of a report on these results. `tool` and `time` say who made it, and when."""
    results = [_Result(material).document() for material in materials]
    return {"schema": SCHEMA, "tool": tool, "time": time, "results": results}


class _Key(NamedTuple):
    """An op of a result by its name; by the number of its group too where the name stands for several ops."""

    name: str
    group: int = 0


class _Result:
    """One result on its way to JSON."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.texts = Texts()
        self.network: Network | None = network_of(material.file) if material.file is not None else None
        self._name_of = names_in(material.file)
        analysis = material.analysis
        self.rows: Sequence[Row] = analysis.rows if analysis is not None else ()
        self.agreements: dict[_Key, OpAgreement] = {}
        for one in analysis.ops if analysis is not None else ():
            self.agreements.setdefault(self._key(one.op_name, one.index), one)
        known = self.network.positions if self.network is not None else {}
        self.graph_ops: Sequence[Op] = self.network.ops if self.network is not None else ()
        #: Ops that only the result has come behind those of the graph; so do those whose name several ops of it have.
        self.others = [key for key in self.agreements if key.name not in known]
        self.positions: dict[_Key, int] = {_Key(name): at for name, at in known.items()}
        self.positions |= {key: len(self.graph_ops) + at for at, key in enumerate(self.others)}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._descs: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self.digits = _DIGITS if len(self.rows) <= _MANY_TENSORS else _FEWER

    def _key(self, name: str, index: int) -> _Key:
        name = self._name_of(name)
        is_repeated = self.network is not None and name in self.network.repeated
        return _Key(name, index if is_repeated else 0)

    def _repeated_note(self) -> list[str]:
        """Says that the values of some ops stand beside the map; nothing where all names tell their op."""
        names = list(dict.fromkeys(key.name for key in self.others if self._key(key.name, 1).group))
        if not names:
            return []
        shown = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
        stand = "name stands" if len(names) == 1 else "names stand"
        told = "which one was compared is not known, so its values are in the tables and not on the map"
        return [f"{len(names)} {stand} for ops of several graphs ({shown}): {told}"]

    def document(self) -> dict[str, Any]:
        material, verdict = self.material, self.material.verdict_object()
        analysis = material.analysis
        ops = self._ops()
        document: dict[str, Any] = {
            "title": sound(material.title), "file": sound(material.path), "npu": sound(material.npu),
            "golden": sound(material.golden),
            "graph": sound(shown_path(material.file.path) if material.file is not None else ""),
            "threshold": material.threshold,
            "is_pytorch": analysis is not None and not analysis.has_graph,
            "is_two_runs": analysis is not None and analysis.is_two_runs,
            "compared": analysis is not None,
            "part": analysis.part if analysis is not None else "",
            "notes": sound([*material.notes, *self._repeated_note()]),
            "passport": sound(material.passport),
            "counts": self._counts(),
            "verdict": verdict_document(verdict) if verdict is not None and not verdict.is_empty else None,
            "findings": self._findings(),
            "ops": ops,
            "tensors": self._tensors(),
            **self._map(verdict),
            "details": self._details(),
            "attributes": self._attributes(),
        }  # fmt: skip
        return {**document, "texts": self.texts.to_json()}

    # --- ops ---

    def _ops(self) -> dict[str, list[Any]]:
        judged = self.material.judged()
        columns: dict[str, list[Any]] = {name: [] for name in (
            "name", "type", "id", "graph", "pass", "originals", "stream", "kernel", "inputs", "outputs", "state",
            "reason", "how", "own", "rounding", "fed", "benchmark_own", "beyond", "cosine", "cosine_in", "agree",
            "agree_in", "status", "headroom", "dtype",
        )}  # fmt: skip
        graphs = self.network.graphs if self.network is not None else ()
        for op, graph in zip(self.graph_ops, graphs, strict=True):
            values = self._of_graph(op, graph)
            if _Key(op.name) in self.positions:
                values |= {**self._judged(judged.get(op.name)), **self._row(_Key(op.name))}
            self._add(columns, values)
        for key in self.others:
            row = self._row(key)
            one = self.agreements[key]
            named = {
                "name": self.texts[key.name], "type": self.texts[one.op_type],
                "pass": self.texts.all_of(one.pass_names), "originals": self.texts.all_of(one.original_ops),
            }  # fmt: skip
            self._add(columns, {**named, **self._judged(judged.get(key.name)), **row})
        return columns

    @staticmethod
    def _add(columns: dict[str, list[Any]], values: Mapping[str, Any]) -> None:
        for name, column in columns.items():
            column.append(values.get(name))

    def _of_graph(self, op: Op, graph: str) -> dict[str, Any]:
        texts = self.texts
        dtype = op.output_descs[0].dtype if op.output_descs else ""
        return {
            "name": texts[op.name], "type": texts[op.type], "id": op.id, "graph": texts[graph],
            "pass": texts.all_of(op.pass_names),
            "originals": None if op.original_names is None else texts.all_of(op.original_names),
            "stream": op.stream_id, "kernel": texts[op.kernel_name],
            "inputs": [*map(self._desc, op.input_descs)], "outputs": [*map(self._desc, op.output_descs)],
            "dtype": texts[dtype],
        }  # fmt: skip

    def _desc(self, desc: TensorDesc) -> int:
        key = (desc.dtype, desc.layout, desc.shape)
        known = self._descs.get(key)
        if known is None:
            text = " ".join(filter(None, (desc.dtype, desc.layout, shape_text(desc.shape))))
            known = self._descs[key] = self.texts[text]
        return known

    def _judged(self, one: JudgedOp | None) -> dict[str, Any]:
        if one is None:
            return {}
        beyond = one.worst / one.slack if one.worst is not None and one.slack else None
        return {
            "state": self.texts[one.state], "reason": self.texts[one.reason],
            "how": self.texts[", ".join(one.how)], "own": number(one.own_error, 4),
            "rounding": number(one.rounding, 4), "fed": number(one.fed, 4),
            "benchmark_own": number(one.benchmark_own, 4), "beyond": number(beyond, 4),
        }  # fmt: skip

    def _row(self, key: _Key) -> dict[str, Any]:
        one = self.agreements.get(key)
        if one is None:
            return {}
        outputs = one.outputs or tuple(row for row in one.rows if not row.slot)
        statuses = [row.status for row in outputs] or [row.status for row in one.rows]
        status = "compared" if any(row.cosine is not None for row in one.outputs) else statuses[0]
        free = [bits for row in one.outputs if (bits := _headroom(row)) is not None]
        return {
            "cosine": number(lowest([row.cosine for row in one.outputs]), _COSINE_DIGITS),
            "cosine_in": number(lowest([row.cosine for row in one.inputs]), _COSINE_DIGITS),
            "agree": one.outputs_agree, "agree_in": one.inputs_agree, "status": self.texts[status],
            "headroom": number(min(free), 3) if free else None,
        }  # fmt: skip

    # --- tensors ---

    def _tensors(self) -> dict[str, list[Any]]:
        texts, threshold = self.texts, self.material.threshold
        rows = [row for row in self.rows if row.slot]
        npu_type, golden_type = READABLE["DataType"].value, READABLE["GroundTruthDataType"].value
        assert npu_type is not None
        assert golden_type is not None
        choice = self.material.analysis.choice if self.material.analysis is not None else ColumnChoice()
        columns: dict[str, list[Any]] = {
            "op": [self.positions[self._key(row.op_name, row.index)] for row in rows],
            "slot": [texts[row.slot] for row in rows],
            "status": [texts[row.status] for row in rows],
            "reason": [texts[row.reason] for row in rows],
            "agree": [agrees(row, threshold) for row in rows],
            "shape": [self._shape(row.shape) for row in rows],
            "npu_type": [texts[npu_type(row, choice) or ""] for row in rows],
            "golden_type": [texts[golden_type(row, choice) or ""] for row in rows],
            "golden_tensor": [texts[row.golden_tensor] for row in rows],
            "worst_at": [self._shape(row.max_error_index or None) for row in rows],
            "cosine": numbers([row.cosine for row in rows], _COSINE_DIGITS),
            "headroom": numbers([_headroom(row) for row in rows], 3),
        }
        integers = _integers(rows)
        for part in ("metrics", "npu", "golden"):
            wanted = {name: path for name, path in {**TENSOR_NUMBERS, **TENSOR_COUNTS}.items() if path.startswith(part)}
            for name, column in zip(wanted, _values(rows, part, list(wanted.values())), strict=True):
                if name in TENSOR_NUMBERS:
                    columns[name] = numbers(column, self.digits)
                    for at in integers.get(name, ()):
                        columns[name][at] = whole(column[at])
                else:  # a column of nothing but zeros is left out, None is none
                    columns[name] = [] if all(count == 0 for count in column) else list(column)
        return columns

    def _shape(self, shape: tuple[int, ...] | None) -> int:
        """The position of a shape's text; of none that of the empty one."""
        if shape is None:
            return 0
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = self.texts[shape_text(shape)]
        return known

    # --- the map ---

    def _map(self, verdict: Verdict | None) -> dict[str, Any]:
        """Wires, groups and places; None without a graph."""
        network = self.network
        if network is None:
            return {"wires": None, "map": None, "error_path": []}
        layout = network.layout()
        groups = layout.groups
        return {
            "wires": {
                "producer": [wire.producer for wire in network.wires], "output": [w.output for w in network.wires],
                "reader": [wire.reader for wire in network.wires], "slot": [wire.slot for wire in network.wires],
            },
            "map": {
                "groups": {
                    "name": self.texts.all_of(group.name for group in groups),
                    "ops": [group.ops for group in groups],
                    "section": [int(group.is_section) for group in groups],
                },
                "parent": list(layout.parents), "rank": list(layout.ranks), "order": list(layout.orders),
                "backward": [int(one) for one in layout.backward], "against": list(layout.against),
            },
            "error_path": self._path(network, verdict),
        }  # fmt: skip

    def _path(self, network: Network, verdict: Verdict | None) -> list[int]:
        culprit = network.positions.get(verdict.culprit) if verdict is not None and verdict.culprit else None
        if culprit is None:
            return []
        positions = network.positions
        wrong = {positions[key.name] for key, one in self.agreements.items() if one.is_below and key.name in positions}
        cosines = {
            positions[key.name]: cosine
            for key, one in self.agreements.items()
            if key.name in positions and (cosine := lowest([row.cosine for row in one.outputs])) is not None
        }
        return error_path(network, culprit, wrong, cosines)

    # --- counts and findings ---

    def _counts(self) -> dict[str, Any]:
        analysis = self.material.analysis
        counts: dict[str, Any] = {"ops": len(self.graph_ops) + len(self.others)}
        if analysis is None:
            return counts
        view = analysis.overview
        return counts | {
            "tensors": analysis.tensors, "dumped_ops": analysis.dumped_ops, "compared": view.compared,
            "below": view.below, "ops_below": view.ops_below,
            "not_compared": [[status, count] for status, count in view.not_compared],
        }  # fmt: skip

    def _findings(self) -> list[dict[str, Any]]:
        found = [
            *(self.material.analysis.findings if self.material.analysis is not None else ()),
            *self.material.checks,
        ]
        return [
            {
                "kind": str(one.kind), "grade": one.grade.name.lower(), "message": sound(one.message),
                "op": sound(self._name_of(one.op_name)), "facts": sound([list(fact) for fact in one.facts]),
            }
            for one in map(tell, found)
        ]  # fmt: skip

    # --- ops that are looked at closely ---

    def _details(self) -> dict[str, Any]:
        details = self.material.details.items()
        return {
            str(self.positions[_Key(name)]): list(tensors) for name, tensors in details if _Key(name) in self.positions
        }

    def _attributes(self) -> dict[str, dict[str, str]]:
        """Attributes by position: of a large network those of the ops that were looked at, of others without GE's."""
        is_small = len(self.graph_ops) <= _MOST_WITH_ATTRIBUTES
        found: dict[str, dict[str, str]] = {}
        for position, op in enumerate(self.graph_ops):
            is_close = op.name in self.material.details
            if is_close or is_small:
                found[str(position)] = _attributes(op, everything=is_close)
        return found


def _attributes(op: Op, *, everything: bool) -> dict[str, str]:
    try:
        names = sorted(name for name in op.attrs if everything or not name.startswith("_"))
    except PrecisionToolError:  # a damaged part of the graph
        return {}
    return {sound(name): sound(attribute_text(op, name)) for name in names}


def _values(rows: Sequence[Row], part: str, paths: Sequence[str]) -> list[tuple[Any, ...]]:
    """Columns of fields of one part of each row; None where a row has no such part, or its file lacked the field."""
    take = attrgetter(*(path.partition(".")[2] for path in paths))
    nothing = (None,) * len(paths)
    wanted = frozenset(paths)
    found = []
    for row in rows:
        holder = getattr(row, part)
        values = nothing if holder is None else take(holder)
        if row.absent and not row.absent.isdisjoint(wanted):
            values = tuple(None if path in row.absent else value for path, value in zip(paths, values, strict=True))
        found.append(values)
    return list(zip(*found, strict=True)) if found else [() for _ in paths]


def _integers(rows: Sequence[Row]) -> dict[str, list[int]]:
    """The rows in which a number is an integer, because of the types of the tensors, by its column."""
    known: dict[str, bool] = {}

    def is_integer(tensor: AnyTensor | None, read: str) -> bool:
        name = read or (tensor.dtype if tensor is not None else "")
        if name not in known:
            known[name] = name in data_types.BY_NAME and data_types.BY_NAME[name].is_integer
        return known[name]

    npu = [at for at, row in enumerate(rows) if is_integer(row.pair.npu, row.npu_dtype)]
    golden = [at for at, row in enumerate(rows) if is_integer(row.pair.golden, row.golden_dtype)]
    return {
        "npu_min": npu, "npu_max": npu, "golden_min": golden, "golden_max": golden,
        "max_absolute_error": sorted(set(npu).intersection(golden)),
    }  # fmt: skip


def _headroom(row: Row) -> float | None:
    """Bits between the largest value of the NPU's tensor and the limit of its type; None where that is not known."""
    if row.extremes is not None:
        return None if isnan(row.extremes.headroom) else row.extremes.headroom
    dtype = row.npu_dtype or (row.pair.npu.dtype if row.pair.npu is not None else "")
    limits = data_types.FLOATS.get(dtype)
    side = row.npu
    if limits is None or side is None or isnan(side.minimum) or isnan(side.maximum):
        return None
    largest = max(abs(side.minimum), abs(side.maximum))
    if side.inf_count or largest >= limits.largest:
        return 0.0
    return log2(limits.largest) - log2(largest) if largest else None
