"""The data of a report: one JSON document with a schema version, which the page draws everything from.

Ops, tensors, wires and groups are columns: lists of equal length, one value an op, tensor, wire or group. Texts are
positions in the table `texts`; numbers that are not finite are "nan", "inf" and "-inf", None stands for none. Long
columns, those of tensors, are texts with a sign a value (`columns.signs`, `columns.decimals`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.report.columns import Texts, decimals, numbers, signs, sound
from precision_tool.lib.report.network import Network, error_path, lowest, network_of
from precision_tool.lib.report.sentences import verdict_document
from precision_tool.lib.results.columns import IN_REPORT, Column
from precision_tool.lib.settings import DEFAULT_THRESHOLD
from precision_tool.lib.verdict.model import Verdict
from precision_tool.lib.verdict.stored import JudgedRun, StoredVerdict
from precision_tool.lib.workspace import shown_path

#: To be raised when a key changes its meaning or goes; not for a new one.
SCHEMA = 2
#: Attributes are kept of every op of a network up to this size, else of the ops that are looked at closely.
_MOST_WITH_ATTRIBUTES = 2500
#: Names that a note tells at most.
_MOST_NAMED = 3
#: Significant digits of numbers, with more tensors than this `_FEWER`.
_DIGITS, _FEWER, _MANY_TENSORS = 6, 4, 20000
#: The cosine, by which ops are judged, keeps its digits.
_COSINE_DIGITS = 9
#: The columns of a result that the table of tensors has beside the op, the cosine and what is found of them here.
_NUMBERS = tuple(column for column in IN_REPORT if column.form.kind == "number")
_COUNTS = tuple(column for column in IN_REPORT if column.form.kind == "whole")
_SHAPES = tuple(column for column in IN_REPORT if column.form.kind == "indices")
_TEXTS = tuple(column for column in IN_REPORT if column not in (*_NUMBERS, *_COUNTS, *_SHAPES))


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
    threshold: float = DEFAULT_THRESHOLD
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
        rows = analysis.rows if analysis is not None else ()
        #: The rows of tensors, without those that stand for a whole op.
        self.slotted: Sequence[Row] = [row for row in rows if row.slot]
        self.agreements: dict[_Key, OpAgreement] = {}
        key_of_row: dict[int, _Key] = {}
        for one in analysis.ops if analysis is not None else ():
            key = self._key(one.op_name, one.index)
            self.agreements.setdefault(key, one)
            key_of_row |= dict.fromkeys(map(id, one.rows), key)
        known = self.network.positions if self.network is not None else {}
        self.graph_ops: Sequence[Op] = self.network.ops if self.network is not None else ()
        self._own_names = frozenset(known)
        #: Ops that only the result has come behind those of the graph; so do those whose name several ops of it have.
        self.others = [key for key in self.agreements if key.name not in known]
        self.positions: dict[_Key, int] = {_Key(name): at for name, at in known.items()}
        self.positions |= {key: len(self.graph_ops) + at for at, key in enumerate(self.others)}
        self._op_of_row = {row: self.positions[key] for row, key in key_of_row.items()}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._descs: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._headrooms: list[float] | None = None
        self.digits = _DIGITS if len(self.slotted) <= _MANY_TENSORS else _FEWER

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
            "tensor_columns": [
                {"key": one.report_key, "name": one.name, "part": one.part, "look": one.report_look}
                for one in IN_REPORT
            ],
            **self._map(verdict),
            "details": self._details(),
            "attributes": self._attributes(),
            "overflowed": self._overflowed(),
        }  # fmt: skip
        return {**document, "texts": self.texts.to_json()}

    # --- ops ---

    def _ops(self) -> dict[str, list[Any]]:
        judged = self.material.judged()
        keys = [*(_Key(op.name) if op.name in self._own_names else None for op in self.graph_ops), *self.others]
        known = [None if key is None else judged.get(key.name) for key in keys]
        found = [None if key is None else self.agreements.get(key) for key in keys]
        return {**self._names(), **self._judged(known), **self._compared(found)}

    def _names(self) -> dict[str, list[Any]]:
        """What the graph says of its ops, and the result of those that only it has."""
        texts, ops = self.texts, self.graph_ops
        graphs = self.network.graphs if self.network is not None else ()
        others = [self.agreements[key] for key in self.others]
        of_graph: dict[str, list[Any]] = {
            "name": texts.all_of(op.name for op in ops), "type": texts.all_of(op.type for op in ops),
            "id": [op.id for op in ops], "graph": texts.all_of(graphs),
            "pass": [texts.all_of(op.pass_names) for op in ops],
            "originals": [None if op.original_names is None else texts.all_of(op.original_names) for op in ops],
            "stream": [op.stream_id for op in ops], "kernel": texts.all_of(op.kernel_name for op in ops),
            "inputs": [[*map(self._desc, op.input_descs)] for op in ops],
            "outputs": [[*map(self._desc, op.output_descs)] for op in ops],
            "dtype": [texts[op.output_descs[0].dtype] if op.output_descs else 0 for op in ops],
        }  # fmt: skip
        named: dict[str, list[Any]] = {
            "name": texts.all_of(key.name for key in self.others), "type": texts.all_of(one.op_type for one in others),
            "pass": [texts.all_of(one.pass_names) for one in others],
            "originals": [texts.all_of(one.original_ops) for one in others],
        }  # fmt: skip
        nothing: list[Any] = [None] * len(others)
        return {name: column + named.get(name, nothing) for name, column in of_graph.items()}

    def _desc(self, desc: TensorDesc) -> int:
        key = (desc.dtype, desc.layout, desc.shape)
        known = self._descs.get(key)
        if known is None:
            text = " ".join(filter(None, (desc.dtype, desc.layout, shape_text(desc.shape))))
            known = self._descs[key] = self.texts[text]
        return known

    def _judged(self, ops: Sequence[JudgedOp | None]) -> dict[str, list[Any]]:
        """What recomputing said of each op."""
        texts = self.texts
        beyond = [
            one.worst / one.slack if one is not None and one.worst is not None and one.slack else None for one in ops
        ]
        return {
            "state": [one and texts[one.state] for one in ops],
            "reason": [one and texts[reason_words(one.reason)] for one in ops],
            "how": [one and texts[", ".join(one.how)] for one in ops],
            "own": numbers([None if one is None else one.own_error for one in ops], 4),
            "rounding": numbers([None if one is None else one.rounding for one in ops], 4),
            "fed": numbers([None if one is None else one.fed for one in ops], 4),
            "benchmark_own": numbers([None if one is None else one.benchmark_own for one in ops], 4),
            "beyond": numbers(beyond, 4),
        }  # fmt: skip

    def _compared(self, ops: Sequence[OpAgreement | None]) -> dict[str, list[Any]]:
        """What comparing said of each op: of its outputs, and where none was dumped of its inputs."""
        rooms = dict(zip(map(id, self.slotted), self._rooms(), strict=True))
        cosines = [None if one is None else lowest([row.cosine for row in one.outputs]) for one in ops]
        fed = [None if one is None else lowest([row.cosine for row in one.inputs]) for one in ops]
        free = [
            min((room for row in one.outputs if not isnan(room := rooms[id(row)])), default=None) if one else None
            for one in ops
        ]
        return {
            "cosine": numbers(cosines, _COSINE_DIGITS), "cosine_in": numbers(fed, _COSINE_DIGITS),
            "agree": [one and one.outputs_agree for one in ops], "agree_in": [one and one.inputs_agree for one in ops],
            "status": [one and self.texts[_status(one)] for one in ops], "headroom": numbers(free, 3),
        }  # fmt: skip

    # --- tensors ---

    def _rooms(self) -> list[float]:
        """Bits between the largest value of each NPU tensor and the limit of its type; NaN where that is not known."""
        if self._headrooms is None:
            self._headrooms = _headrooms(self.slotted).tolist()
        return self._headrooms

    def _tensors(self) -> dict[str, Any]:
        texts, threshold, rows = self.texts, self.material.threshold, self.slotted
        choice = self.material.analysis.choice if self.material.analysis is not None else ColumnChoice()
        columns: dict[str, Any] = {
            "op": signs([self._op_of_row[id(row)] for row in rows]),
            "slot": signs([texts[row.slot] for row in rows]),
            "agree": [agrees(row, threshold) for row in rows],
            "worst_at": signs([self._shape(row.max_error_index or None) for row in rows]),
            "cosine": decimals([row.cosine for row in rows], _COSINE_DIGITS),
            "headroom": decimals([None if isnan(room) else room for room in self._rooms()], 3),
        }
        for column in _TEXTS:
            held = (column.held(row, choice) for row in rows)
            columns[column.report_key] = signs([texts[column.text(value)] for value in held])
        for column in _SHAPES:
            columns[column.report_key] = signs([self._shape(column.held(row, choice)) for row in rows])
        integers = _integers(rows)
        for column, values in _values(rows, (*_NUMBERS, *_COUNTS), choice):
            key = column.report_key
            if column in _NUMBERS:
                columns[key] = decimals(values, self.digits, integers.get(key, ()))
            else:  # a column of nothing but zeros is left out, None is none
                columns[key] = [] if not any(values) and None not in values else list(values)
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

    def _overflowed(self) -> dict[str, dict[str, Any]]:
        """By position the ops some of whose true results are beyond their type: how many elements, and the largest."""
        judged = self.material.judged()
        return {
            str(at): {"count": one.overflowed, "largest": sound(one.largest)}
            for name, one in judged.items()
            if one.overflowed and (at := self.positions.get(_Key(name))) is not None
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


def _values(
    rows: Sequence[Row], columns: Sequence[Column], choice: ColumnChoice
) -> Iterator[tuple[Column, Sequence[Any]]]:
    """The values of columns: those that are fields of one part of a row together, as there are very many rows."""
    parts: dict[str, list[Column]] = {}
    for column in columns:
        if column.value is None and column.part:
            parts.setdefault(column.part, []).append(column)
        else:
            yield column, [column.held(row, choice) for row in rows]
    for part, together in parts.items():
        yield from zip(together, _fields(rows, part, [column.field for column in together]), strict=True)


def _fields(rows: Sequence[Row], part: str, paths: Sequence[str]) -> list[tuple[Any, ...]]:
    """Fields of one part of each row; None where a row has no such part, or its file lacked the field."""
    names = [path.rpartition(".")[2] for path in paths]
    take = attrgetter(*names) if len(names) > 1 else lambda holder: (getattr(holder, names[0]),)
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


def _headrooms(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    """Of each row; an overflow leaves no room."""
    largest_of: dict[str, float] = {}
    limits: list[float] = []
    sides: list[tuple[float, float]] = []
    for row in rows:
        side, dtype = row.npu, row.npu_dtype or (row.pair.npu.dtype if row.pair.npu is not None else "")
        if dtype not in largest_of:
            limit = data_types.FLOATS.get(dtype)
            largest_of[dtype] = nan if limit is None else limit.largest
        limits.append(largest_of[dtype])
        sides.append((nan, nan) if side is None else (inf, inf) if side.inf_count else (side.minimum, side.maximum))
    largest = np.abs(np.array(sides, np.float64).reshape(-1, 2)).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rooms = np.where(largest >= np.array(limits), 0.0, np.log2(limits) - np.log2(largest))
    rooms[largest == 0] = nan
    for at, row in enumerate(rows):
        if row.extremes is not None:
            rooms[at] = row.extremes.headroom
    return rooms


def _status(one: OpAgreement) -> str:
    """Compared if an output was; else why it was not."""
    if any(row.cosine is not None for row in one.outputs):
        return "compared"
    return (one.outputs or tuple(row for row in one.rows if not row.slot) or one.rows)[0].status
