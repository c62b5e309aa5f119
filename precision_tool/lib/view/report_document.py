"""The data of a report: one JSON document with a schema version, which the page draws everything from.

Ops, tensors, wires and groups are columns: lists of equal length, one value an op, tensor, wire or group. Texts are
positions in the table `texts`; messages of the tool are by language, there and everywhere (`packed_columns.both`).
Numbers that are not finite are "nan", "inf" and "-inf", None stands for none. Long columns, those of tensors, are texts
with a sign a value (`packed_columns.signs`, `packed_columns.decimals`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite, isnan, nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.columns import IN_REPORT, Column
from precision_tool.lib.data.graph_catalog import names_in
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD, PROGRAM
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.agreement import OpAgreement, agrees
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.overflow_advice import OverflowResult, origin_name, unit_message
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.stored_verdict import StoredRun, StoredVerdict
from precision_tool.lib.diagnose.verdict_model import Cause, StepText, Suspect, Tally, Verdict
from precision_tool.lib.io import data_types
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import PrecisionToolError, escaped
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.graph import GraphFile, Op, TensorDesc
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.table import ColumnChoice, Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.op_screen import attribute_text
from precision_tool.lib.view.packed_columns import Texts, both, decimals, numbers, signs, sound
from precision_tool.lib.view.profile_screen import profile_document
from precision_tool.lib.view.report_calls import arguments_of, figures_of_call, short_name, tensor_lines
from precision_tool.lib.view.report_map import error_path, lowest, network_of
from precision_tool.lib.view.verdict_messages import (
    affects,
    cause_name,
    confidence,
    evidence,
    gap,
    is_whole,
    no_fault,
    plan_steps,
    what_is_wrong,
)
from precision_tool.lib.view.verdict_screen import is_of_device, verdict_json

#: To be raised when a key changes its meaning or goes; not for a new one.
SCHEMA = 4
#: Attributes are kept of every op of a network up to this size, else of the ops that are looked at closely.
_MOST_WITH_ATTRIBUTES = 2500
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
    """The material of one result of a report. `analysis` is None where nothing was compared, `file` without a graph.

    `details` are the values of a few ops by name, `checks` what was found beside the comparison, `passport` what
    the passports of the two runs say: their files, and what differs.
    """

    title: str
    npu: str = ""
    golden: str = ""
    analysis: Analysis | None = None
    verdict: StoredVerdict | None = None
    file: GraphFile | None = None
    details: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    checks: Sequence[CheckResult] = ()
    notes: Sequence[Message | str] = ()
    passport: Mapping[str, Any] | None = None
    #: The ops of the result's own run as they were judged.
    run: StoredRun | None = None
    #: How precise the device computed.
    profile: DeviceProfile | None = None
    #: What begins a command line for its data.
    command: str = PROGRAM

    @property
    def threshold(self) -> float:
        """Cosine similarity below which a tensor counts as wrong."""
        judge = self.analysis if self.analysis is not None else self.verdict
        return judge.threshold if judge is not None else DEFAULT_THRESHOLD

    def judged(self) -> Mapping[str, OpVerdict]:
        """Return the verdict on each op by its name; nothing for names that several ops have.

        Of another run than the verdict's the ops that the verdict blames are as they are in that run.
        """
        if self.verdict is None:
            return {}
        verdicts = _by_name(self.run.ops if self.run is not None else ())
        blamed = self.verdict.blamed
        return verdicts | {name: op for name, op in _by_name(self.verdict.runs[0].ops).items() if name in blamed}


def _by_name(ops: Sequence[OpVerdict]) -> dict[str, OpVerdict]:
    names = Counter(op.name for op in ops)
    return {op.name: op for op in ops if names[op.name] == 1}


def document_of(materials: Sequence[Material], *, tool: str, time: str) -> dict[str, Any]:
    """Return the data of a report on these results. `tool` and `time` say who made it, and when."""
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
        self.network = network_of(material.file or GraphFile(path=""))
        self._name_of = names_in(material.file)
        analysis = material.analysis
        #: The rows of tensors, without those that stand for a whole op.
        self.slotted: Sequence[Row] = [row for row in analysis.rows if row.slot] if analysis is not None else []
        self.agreements: dict[_Key, OpAgreement] = {}
        key_of_row: dict[int, _Key] = {}
        for agreement in analysis.ops if analysis is not None else ():
            key = self._key(agreement.op_name, agreement.index)
            self.agreements.setdefault(key, agreement)
            key_of_row |= dict.fromkeys(map(id, agreement.rows), key)
        #: Ops that only the result has come behind those of the graph; so do those whose name several ops of it have.
        self.others = [key for key in self.agreements if key.name not in self.network.positions]
        self.positions: dict[_Key, int] = {_Key(name): at for name, at in self.network.positions.items()}
        self.positions |= {key: len(self.network.ops) + at for at, key in enumerate(self.others)}
        self._op_of_row = {row: self.positions[key] for row, key in key_of_row.items()}
        self._headrooms = _headrooms(self.slotted).tolist()
        self.digits = _DIGITS if len(self.slotted) <= _MANY_TENSORS else _FEWER
        # There are far fewer shapes than tensors.
        self._shape = cache(lambda shape: 0 if shape is None else self.texts[shape_text(shape)])
        self._desc = cache(
            lambda dtype, layout, shape: self.texts[" ".join(filter(None, (dtype, layout, shape_text(shape))))]
        )

    def _key(self, name: str, index: int) -> _Key:
        name = self._name_of(name)
        return _Key(name, index if name in self.network.repeated else 0)

    def _repeated_note(self) -> list[Message]:
        """Return the note that the values of some ops are not on the map; nothing where all names are unique."""
        names = list(dict.fromkeys(key.name for key in self.others if key.name in self.network.repeated))
        return [Message("page.note.repeated_names", count=len(names), names=names)] if names else []

    def document(self) -> dict[str, Any]:
        material = self.material
        verdict = None if material.verdict is None else material.verdict.verdict
        analysis = material.analysis
        ops = self._ops()
        document: dict[str, Any] = {
            "title": sound(material.title), "file": _path(analysis.path if analysis is not None else ""),
            "npu": _path(material.npu), "golden": _path(material.golden),
            "graph": _path(material.file.path if material.file is not None else ""),
            "threshold": material.threshold, "command": material.command,
            "is_pytorch": analysis is not None and not analysis.has_graph,
            "is_two_runs": analysis is not None and analysis.is_two_runs,
            "is_recorded": self.network.is_recorded,
            "compared": analysis is not None,
            "part": both(analysis.part or "") if analysis is not None else "",
            "notes": sound([*material.notes, *self._repeated_note()]),
            "passport": sound(material.passport),
            "counts": self._counts(),
            "verdict": None if verdict is None or verdict.is_empty else verdict_document(verdict, material.command),
            "profile": sound(profile_document(material.profile)) if material.profile is not None else None,
            "findings": self._findings(),
            "ops": ops,
            "tensors": self._tensors(),
            "tensor_columns": [
                {"key": column.report_key, "name": column.name, "part": column.part, "look": column.report_look}
                for column in IN_REPORT
            ],
            **self._map(verdict),
            "details": self._details(),
            "attributes": self._attributes(),
            "overflowed": self._overflowed(),
            "overflow_notes": self._overflow_notes(),
            "recorded": self._recorded_figures(),
        }  # fmt: skip
        return {**document, "texts": self.texts.to_json()}

    # --- ops ---

    def _ops(self) -> dict[str, list[Any]]:
        judged = self.material.judged()
        own_names = self.network.positions
        keys = [*(_Key(op.name) if op.name in own_names else None for op in self.network.ops), *self.others]
        verdicts = [None if key is None else judged.get(key.name) for key in keys]
        agreements = [None if key is None else self.agreements.get(key) for key in keys]
        return {**self._names(), **self._judged(verdicts), **self._compared(agreements)}

    def _names(self) -> dict[str, list[Any]]:
        """Return what the graph says of its ops, and what the result says of ops that only it has."""
        of_graph, of_result = self._names_in_graph(), self._names_in_result()
        nothing: list[Any] = [None] * len(self.others)
        of_calls = self._calls() if self.network.is_recorded else {}
        return {name: column + of_result.get(name, nothing) for name, column in (of_graph | of_calls).items()}

    def _names_in_graph(self) -> dict[str, list[Any]]:
        texts, ops = self.texts, self.network.ops
        return {
            "name": texts.all_of(op.name for op in ops), "type": texts.all_of(op.type for op in ops),
            "id": list(self.network.numbers), "graph": texts.all_of(self.network.graphs),
            "pass": [texts.all_of(op.pass_names) for op in ops],
            "originals": [None if op.original_names is None else texts.all_of(op.original_names) for op in ops],
            "stream": [op.stream_id for op in ops], "kernel": texts.all_of(op.kernel_name for op in ops),
            "inputs": [self._descs(op.input_descs) for op in ops],
            "outputs": [self._descs(op.output_descs) for op in ops],
            "dtype": [texts[op.output_descs[0].dtype] if op.output_descs else 0 for op in ops],
        }  # fmt: skip

    def _calls(self) -> dict[str, list[Any]]:
        """Return what was recorded of calls; ops that stand for tensors which no call put out are `placeholder`."""
        texts, ops = self.texts, self.network.ops
        readers: dict[int, Op] = {}
        for wire in self.network.wires:
            readers.setdefault(wire.producer, ops[wire.reader])
        return {
            "label": texts.all_of(short_name(op, readers.get(at)) for at, op in enumerate(ops)),
            "module": texts.all_of(op.module for op in ops),
            "source": texts.all_of(op.source for op in ops),
            "arguments": [texts.all_of(arguments_of(op)) for op in ops],
            "placeholder": [int(not op.is_recorded) for op in ops],
            "recompute": [int(bool(op.attrs.get("is_recompute"))) for op in ops],
            "inputs": [texts.all_of(tensor_lines(op)) for op in ops],
            "outputs": [[self._desc(desc.dtype, "", desc.shape) for desc in op.output_descs] for op in ops],
            # The only graph needs no name, and calls are not made of others.
            "graph": [0] * len(ops), "originals": [None] * len(ops),
        }  # fmt: skip

    def _recorded_figures(self) -> dict[str, list[list[Any]]]:
        """Return the figures that were recorded of the tensors of calls by position, where nothing was compared.

        Of a large network only of ops that are looked at closely.
        """
        if not self.network.is_recorded or self.material.analysis is not None:
            return {}
        is_small = len(self.network.ops) <= _MOST_WITH_ATTRIBUTES
        return {
            str(at): sound(figures_of_call(op))
            for at, op in enumerate(self.network.ops)
            if is_small or op.name in self.material.details
        }

    def _names_in_result(self) -> dict[str, list[Any]]:
        texts, others = self.texts, [self.agreements[key] for key in self.others]
        return {
            "name": texts.all_of(key.name for key in self.others), "id": [agreement.index for agreement in others],
            "type": texts.all_of(agreement.op_type for agreement in others),
            "pass": [texts.all_of(agreement.pass_names) for agreement in others],
            "originals": [texts.all_of(agreement.original_ops) for agreement in others],
        }  # fmt: skip

    def _descs(self, descs: Sequence[TensorDesc]) -> list[int]:
        return [self._desc(desc.dtype, desc.layout, desc.shape) for desc in descs]

    def _judged(self, ops: Sequence[OpVerdict | None]) -> dict[str, list[Any]]:
        """Return the figures of recomputing each op."""
        texts = self.texts
        beyond = [None if op is None else _beyond(op) for op in ops]
        return {
            "state": [op and texts[op.state] for op in ops],
            "reason": [op and texts.at(_reason(op)) for op in ops],
            "how": [op and texts[", ".join(op.how)] for op in ops],
            "own": numbers([None if op is None else op.own_error for op in ops], 4),
            "rounding": numbers([None if op is None else op.rounding for op in ops], 4),
            "fed": numbers([None if op is None else op.inherited for op in ops], 4),
            "benchmark_own": numbers([None if op is None else op.benchmark_own for op in ops], 4),
            "worst_of_rounding": numbers([None if op is None else op.worst for op in ops], 4),
            "beyond": numbers(beyond, 4),
        }  # fmt: skip

    def _compared(self, ops: Sequence[OpAgreement | None]) -> dict[str, list[Any]]:
        """Return the figures of comparing each op's outputs and inputs."""
        rooms = dict(zip(map(id, self.slotted), self._headrooms, strict=True))
        cosines = [None if op is None else lowest([row.cosine for row in op.outputs]) for op in ops]
        input_cosines = [None if op is None else lowest([row.cosine for row in op.inputs]) for op in ops]
        free = [
            min((room for row in op.outputs if not isnan(room := rooms[id(row)])), default=None) if op else None
            for op in ops
        ]
        return {
            "cosine": numbers(cosines, _COSINE_DIGITS), "cosine_in": numbers(input_cosines, _COSINE_DIGITS),
            "agree": [op and op.outputs_agree for op in ops], "agree_in": [op and op.inputs_agree for op in ops],
            "status": [op and self.texts[_status(op)] for op in ops], "headroom": numbers(free, 3),
        }  # fmt: skip

    # --- tensors ---

    def _tensors(self) -> dict[str, Any]:
        texts, threshold, rows = self.texts, self.material.threshold, self.slotted
        choice = self.material.analysis.choice if self.material.analysis is not None else ColumnChoice()
        columns: dict[str, Any] = {
            "op": signs([self._op_of_row[id(row)] for row in rows]),
            "slot": signs([texts[row.slot] for row in rows]),
            "agree": [agrees(row, threshold) for row in rows],
            "worst_at": signs([self._shape(row.max_error_index or None) for row in rows]),
            "cosine": decimals([row.cosine for row in rows], _COSINE_DIGITS),
            "headroom": decimals([None if isnan(room) else room for room in self._headrooms], 3),
        }
        for column in _TEXTS:
            held = (column.held(row, choice) for row in rows)
            columns[column.report_key] = signs(
                [texts.at(value if isinstance(value, Message) else column.text(value)) for value in held]
            )
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

    # --- the map ---

    def _map(self, verdict: Verdict | None) -> dict[str, Any]:
        """Return wires, groups and places; None without a graph."""
        if self.material.file is None:
            return {"wires": None, "map": None, "error_path": []}
        network = self.network
        layout = network.layout()
        groups, classes = layout.groups, self.network.classes
        names = (
            f"{group.name} ({classes[group.scopes]})" if group.scopes in classes else group.name for group in groups
        )
        return {
            "wires": {
                "producer": [wire.producer for wire in network.wires], "output": [w.output for w in network.wires],
                "reader": [wire.reader for wire in network.wires], "slot": [wire.slot for wire in network.wires],
            },
            "map": {
                "groups": {
                    "name": self.texts.all_of(names),
                    "ops": [group.ops for group in groups],
                    "section": [int(group.is_section) for group in groups],
                },
                "parent": list(layout.parents), "order": list(layout.orders), "lane": list(map(int, layout.lanes)),
                "mirrors": layout.mirrors, "follows": network.order,
            },
            "error_path": self._path(verdict),
        }  # fmt: skip

    def _path(self, verdict: Verdict | None) -> list[int]:
        positions = self.network.positions
        culprit = positions.get(verdict.culprit) if verdict is not None and verdict.culprit else None
        if culprit is None:
            return []
        agreements = {positions[key.name]: op for key, op in self.agreements.items() if key.name in positions}
        wrong = {at for at, op in agreements.items() if op.is_below}
        cosines = {at: lowest([row.cosine for row in op.outputs]) for at, op in agreements.items()}
        compared = {at: cosine for at, cosine in cosines.items() if cosine is not None}
        return error_path(self.network, culprit, wrong, compared)

    # --- counts and findings ---

    def _counts(self) -> dict[str, Any]:
        analysis = self.material.analysis
        in_graph = [op for op in self.network.ops if not self.network.is_recorded or op.is_recorded]
        counts: dict[str, Any] = {"ops": len(in_graph) + len(self.others)}
        if analysis is None:
            return counts
        view = analysis.overview
        return counts | {
            "tensors": analysis.tensors, "dumped_ops": analysis.dumped_ops, "compared": view.compared,
            "below": view.below, "ops_below": view.ops_below,
            "not_compared": [[status, count] for status, count in view.not_compared],
        }  # fmt: skip

    def _findings(self) -> list[dict[str, Any]]:
        own = self.material.analysis.findings if self.material.analysis is not None else ()
        checked = [(check.finding, check.looked_at) for check in self.material.checks if check.finding is not None]
        return [
            {
                "kind": str(finding.kind), "grade": finding.grade.name.lower(), "message": sound(finding.message),
                "op": sound(self._name_of(finding.op_name)), "facts": sound([list(fact) for fact in finding.facts]),
                "looked_at": sound(looked_at),
            }
            for finding, looked_at in [*((finding, None) for finding in own), *checked]
        ]  # fmt: skip

    def _overflow_notes(self) -> dict[str, list[Any]]:
        """Return what is known of overflows beside the verdict, by position of the op.

        This is what the device recorded in status files, and the tensors that reach the limit of float16.
        """
        notes: dict[int, list[Message]] = {}
        for check in self.material.checks:
            for status in check.report.statuses if isinstance(check, OverflowResult) else ():
                at = None if status.op is None else self.positions.get(_Key(status.op.name))
                if status.op is not None and at is not None:
                    units = tuple(map(unit_message, status.units))
                    note = Message("page.op.status", units=units, origin=origin_name(status.op.origin))
                    notes.setdefault(at, []).append(note)
        for row in self.slotted:
            if row.overflow:
                at = self._op_of_row[id(row)]
                notes.setdefault(at, []).append(Message("page.op.at_limit", slot=row.slot))
        return {str(at): sound(list(dict.fromkeys(of_op))) for at, of_op in notes.items()}

    # --- ops that are looked at closely ---

    def _details(self) -> dict[str, Any]:
        return self._by_position({name: list(tensors) for name, tensors in self.material.details.items()})

    def _overflowed(self) -> dict[str, dict[str, Any]]:
        """Return the ops with correct results beyond their type, by position: how many elements, and the largest."""
        ops = {name: op for name, op in self.material.judged().items() if op.overflowed}
        return self._by_position(
            {name: {"count": op.overflowed, "largest": sound(op.largest)} for name, op in ops.items()}
        )

    def _by_position(self, by_name: Mapping[str, Any]) -> dict[str, Any]:
        positions = {name: self.positions.get(_Key(name)) for name in by_name}
        return {str(at): by_name[name] for name, at in positions.items() if at is not None}

    def _attributes(self) -> dict[str, dict[str, str]]:
        """Return attributes by position; of a large network only those of ops with details, else without GE's own."""
        is_small = len(self.network.ops) <= _MOST_WITH_ATTRIBUTES
        attributes: dict[str, dict[str, str]] = {}
        for position, op in enumerate(self.network.ops):
            is_close = op.name in self.material.details
            if (is_close or is_small) and not self.network.is_recorded:  # of calls the columns have everything
                attributes[str(position)] = _attributes(op, everything=is_close)
        return attributes


def _beyond(op: OpVerdict) -> float | None:
    """Return the largest error of an op over its limit; None where the precision of the device is the limit."""
    return op.worst / op.slack if op.worst is not None and op.slack and not is_of_device(op) else None


def _reason(op: OpVerdict) -> Message | str:
    """Return why an op was not decided; of one that is right by the precision of the device alone that it is."""
    return Message("page.op.of_device") if is_of_device(op) else op.reason


def _path(path: str) -> str:
    return escaped(shown_path(path)) if path else ""


def _attributes(op: Op, *, everything: bool) -> dict[str, str]:
    try:
        names = sorted(name for name in op.attrs if everything or not name.startswith("_"))
    except PrecisionToolError:  # a damaged part of the graph
        return {}
    return {sound(name): sound(attribute_text(op, name)) for name in names}


def _values(
    rows: Sequence[Row], columns: Sequence[Column], choice: ColumnChoice
) -> Iterator[tuple[Column, Sequence[Any]]]:
    """Yield the values of columns; fields of one part of a row are read together, as there are very many rows."""
    parts: dict[str, list[Column]] = {}
    for column in columns:
        if column.value is None and column.part:
            parts.setdefault(column.part, []).append(column)
        else:
            yield column, [column.held(row, choice) for row in rows]
    for part, together in parts.items():
        yield from zip(together, _fields(rows, part, [column.field for column in together]), strict=True)


def _fields(rows: Sequence[Row], part: str, paths: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return fields of one part of each row; None where a row has no such part, or its file lacked the field."""
    names = [path.rpartition(".")[2] for path in paths]
    take = attrgetter(*names) if len(names) > 1 else lambda holder: (getattr(holder, names[0]),)
    nothing = (None,) * len(paths)
    path_set = frozenset(paths)
    values_of_rows = []
    for row in rows:
        holder = getattr(row, part)
        values = nothing if holder is None else take(holder)
        if row.absent and not row.absent.isdisjoint(path_set):
            values = tuple(None if path in row.absent else value for path, value in zip(paths, values, strict=True))
        values_of_rows.append(values)
    return list(zip(*values_of_rows, strict=True)) if values_of_rows else [() for _ in paths]


def _integers(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Return the rows in which a number is an integer, by its column: the types of the tensors say so."""
    is_integer_type: dict[str, bool] = {}

    def is_integer(tensor: AnyTensor | None, read: str) -> bool:
        name = read or (tensor.dtype if tensor is not None else "")
        if name not in is_integer_type:
            is_integer_type[name] = name in data_types.BY_NAME and data_types.BY_NAME[name].is_integer
        return is_integer_type[name]

    npu = [at for at, row in enumerate(rows) if is_integer(row.pair.npu, row.npu_dtype)]
    golden = [at for at, row in enumerate(rows) if is_integer(row.pair.golden, row.golden_dtype)]
    return {
        "npu_min": npu, "npu_max": npu, "golden_min": golden, "golden_max": golden,
        "max_absolute_error": sorted(set(npu).intersection(golden)),
    }  # fmt: skip


def _headrooms(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    """Return the headroom of each row in bits; 0 for an overflow, NaN where it is unknown or all values are 0."""
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
            rooms[at] = row.extremes.headroom if isfinite(row.extremes.headroom) else nan  # inf: nothing but zeros
    return rooms


def _status(op: OpAgreement) -> str:
    """Return the status of an op: compared if an output was, else why not."""
    if any(row.cosine is not None for row in op.outputs):
        return "compared"
    return (op.outputs or tuple(row for row in op.rows if not row.slot) or op.rows)[0].status


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict_document(verdict: Verdict, command: str = PROGRAM) -> dict[str, Any]:
    """Return the verdict as JSON has it everywhere, and its texts in both languages.

    A suspect has `cause_text`, `sentence`, `affects`, `why` (the evidence) and `confidence_text`, with what that rests
    on; the verdict has a `sentence` for where it names no culprit, whether that `is_good`, a `confidence_text`, and the
    `reasons` why ops were not recomputed, each with the number of these ops.
    """
    document: dict[str, Any] = sound(verdict_json(verdict))
    document |= sound({
        "sentence": no_fault(verdict), "is_good": is_whole(verdict) or verdict.cause is Cause.LOSS_SCALE,
        "confidence_text": confidence(verdict.confidence), "reasons": _reasons(verdict.tally),
        "gaps": list(map(gap, verdict.gaps)),
    })  # fmt: skip
    document["next"] = steps_document(plan_steps(verdict.next), command)
    for written, suspect in zip(document["suspects"], verdict.suspects, strict=True):
        written.update(_suspect_texts(suspect))
    return document


def _reasons(tally: Tally) -> list[tuple[Message | str, int]]:
    """Return why ops were not recomputed, each with the number of these ops; most frequent first."""
    return sorted(tally.reasons, key=lambda item: (-item[1], render(item[0], "en")))


def _suspect_texts(suspect: Suspect) -> dict[str, Any]:
    texts = {"cause_text": cause_name(suspect.cause), "sentence": what_is_wrong(suspect), "affects": affects(suspect)}
    try:
        rests_on = {"why": evidence(suspect), "confidence_text": confidence(suspect.confidence, suspect)}
        return {**sound(texts), **sound(rests_on)}
    except (TypeError, ValueError):  # a file that somebody edited
        return {**sound(texts), "why": [], "confidence_text": sound(confidence(suspect.confidence))}


def _typed(step: StepText, command: str) -> str:
    return step.line if step.file or not step.line else f"{command} {step.line}"


def steps_document(steps: Iterable[StepText], command: str) -> list[dict[str, Any]]:
    """Return the steps of a plan; lines of code stay lines, and `command` begins those that are typed."""
    return [
        {
            "why": both(Message("step.line", why=step.why, file=step.file, line="")),
            "line": "\n".join(map(escaped, _typed(step, command).split("\n"))),
            "file": both(step.file),
        }
        for step in steps
    ]
