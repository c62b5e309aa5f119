"""The JSON Schema (2020-12) of what commands print with `--json`.

Objects that documents take over from dataclasses follow from the types of their fields, those of rows from the columns;
the others stand here. An object has the keys that are named and no others; a key that ends with "?" may be missing.
The tests hold every document that a command prints in them against the schema of its command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from precision_tool.lib.compare.columns import IN_NI, JSON_COLUMNS, JSON_PARTS, PARTS, SCHEMA, Column
from precision_tool.lib.compare.convert import Decoded
from precision_tool.lib.data.graph_survey import FoundIn, GraphRow
from precision_tool.lib.diagnose.agreement import Overview
from precision_tool.lib.diagnose.bisect import Outcome, Try
from precision_tool.lib.diagnose.curves import BENCHMARK, FIGURES, TENSOR, Leaving
from precision_tool.lib.diagnose.device_profile import TypePrecision
from precision_tool.lib.diagnose.fusion_blame import BlameVerdict, OpBlame
from precision_tool.lib.diagnose.fusion_effect import GraphFusion
from precision_tool.lib.diagnose.graph_diff import GraphDiff
from precision_tool.lib.diagnose.minimize import SizeRule, Span
from precision_tool.lib.diagnose.overflow import LeafOverflow, OverflowOp
from precision_tool.lib.diagnose.overflow_advice import AdviceKind
from precision_tool.lib.diagnose.passports import Difference
from precision_tool.lib.diagnose.preflight_model import LossScale, Preflight, TypeForecast
from precision_tool.lib.diagnose.random_errors import Between, RandomOp, SlotPair
from precision_tool.lib.diagnose.redump import Redump
from precision_tool.lib.diagnose.replica_feeds import SameBatch
from precision_tool.lib.diagnose.replica_votes import Role
from precision_tool.lib.diagnose.roles import Role as TensorRole
from precision_tool.lib.diagnose.sharded import ShardFault
from precision_tool.lib.diagnose.study_conclusion import Culprit
from precision_tool.lib.diagnose.study_journal import Excuse
from precision_tool.lib.diagnose.study_plan import Judging
from precision_tool.lib.diagnose.study_statistics import Evidence, EvidenceKind
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, StepText
from precision_tool.lib.diagnose.whatif import Stop, WhatIf
from precision_tool.lib.io.opdebug import UnitStatus
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError, shown
from precision_tool.lib.model.comparison import Metrics, Summary
from precision_tool.lib.model.elements import AxisShares, Element, ErrorBin
from precision_tool.lib.model.finding import FindingKind, Grade
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.version import __version__
from precision_tool.lib.view.bisect_screen import NOT_FUSION
from precision_tool.lib.view.op_screen import OpReport

#: A part of a schema.
Part = dict[str, Any]

TEXT, NULL, BOOL, INTEGER = ({"type": name} for name in ("string", "null", "boolean", "integer"))
#: JSON has no NaN and Inf: they are texts.
NUMBER: Part = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_PLAIN: Mapping[Any, Part] = {
    str: TEXT, Message: TEXT, NoneType: NULL, bool: BOOL, int: INTEGER, float: NUMBER, Any: {},
    complex: {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
}  # fmt: skip


def json_schema(command: str = "") -> Part:
    """Return the schema of the documents of a command; without one, of all of them.

    Raises
    ------
    UsageError
        No command of this name prints JSON.
    """
    made = _all_parts()
    if command and command not in COMMANDS:
        raise UsageError("cli.no_schema", command=shown(command), commands=tuple(COMMANDS))
    wanted = [command] if command else list(COMMANDS)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:precision-tool:json:{SCHEMA}" + (f":{command}" if command else ""),
        "title": f"precision-tool {command or 'COMMAND'} --json",
        "description": f"What precision-tool {__version__} prints; newer versions may add keys.",
        "version": SCHEMA,
    }
    tops = [{"$ref": f"#/$defs/{name}"} for name in wanted]
    return {**head, **_either(*tops), "$defs": _reached(made, wanted)}


def _reached(made: Mapping[str, Part], names: Sequence[str]) -> dict[str, Part]:
    """Return the definitions of these names, and of those that they refer to."""
    reached: dict[str, Part] = {}

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in reached:
                reached[name] = made[name]
                visit(made[name])
            for item in part.values():
                visit(item)
        elif isinstance(part, list):
            for item in part:
                visit(item)

    for name in names:
        visit({"$ref": name})
    return {name: reached[name] for name in sorted(reached)}


class _Parts:
    """The definitions of a schema, by name."""

    def __init__(self) -> None:
        self.made: dict[str, Part] = {}
        self._kinds: dict[str, object] = {}

    def of(self, kind: Any) -> Part:
        """Return the schema of a type, as `asdict` and `json_text` write its values; of a schema itself."""
        if isinstance(kind, dict):
            return kind
        if isinstance(kind, list):
            return {"type": "array", "items": self.of(kind[0])}
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return _either(*map(self.of, args))
        if origin is Literal:
            return {"enum": list(args)}
        if origin is tuple and args[-1] is not Ellipsis:
            items = [self.of(arg) for arg in args]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin in (tuple, list, Sequence, frozenset):
            return {"type": "array", "items": self.of(args[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if is_dataclass(kind):
            return self.record(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        raise TypeError(f"no schema of {kind}")

    def record(
        self, kind: Any, name: str = "", number: Part = NUMBER, without: Sequence[str] = (), **more: Any
    ) -> Part:
        """Return the object of a dataclass; `more` are keys with other values, or that it has not."""
        hints = get_type_hints(kind)
        members = {field.name: hints[field.name] for field in fields(kind) if field.name not in without}
        known = {key: number if hint is float else hint for key, hint in members.items()}
        return self.object(name or kind.__name__, {**known, **more}, kind)

    def object(self, name: str, members: Mapping[str, Any], kind: object = None) -> Part:
        """Return an object with these keys and no others, which may be missing where "?" follows them."""
        if name in self.made:
            if self._kinds[name] != (kind or name):
                raise ValueError(f"two objects of the name {name}")
            return {"$ref": f"#/$defs/{name}"}
        self._kinds[name] = kind or name
        part = self.made[name] = {"type": "object"}  # before its members, which may be of its kind
        part |= {
            "properties": {key.removesuffix("?"): self.of(value) for key, value in members.items()},
            "required": [key for key in members if not key.endswith("?")],
            "additionalProperties": False,
        }
        return {"$ref": f"#/$defs/{name}"}


def _either(*parts: Part) -> Part:
    """Return a schema of what is of one of these; numbers and texts once."""
    every: list[Part] = []
    for part in parts:
        every += [each for each in part.get("anyOf", [part]) if each not in every]
    return every[0] if len(every) == 1 else {"anyOf": every}


# --- what several commands have -------------------------------------------------------------------------------------


def _nullable(kinds: _Parts, kind: Any, name: str) -> Part:
    """Return the object of a dataclass of which each value may be missing."""
    return kinds.object(name, {key: _either(kinds.of(hint), NULL) for key, hint in get_type_hints(kind).items()})


def _column(kinds: _Parts, column: Column) -> Part:
    """Return the values of a column in JSON; None stands for none."""
    if column.value is not None and column.form.kind == "text":
        return _either(TEXT, NULL)
    name = column.field.rpartition(".")[2]
    return _either(kinds.of(get_type_hints(PARTS[column.part])[name]), NULL)


def _row(kinds: _Parts) -> Part:
    figures = {part: _either(_nullable(kinds, kind, f"Row{kind.__name__}"), NULL) for part, kind in JSON_PARTS}
    return kinds.object("Row", {
        "op": str, "slot": str, "noise": float | None,
        **{key: _column(kinds, column) for key, column in JSON_COLUMNS.items()},
        "reason": str, "custom": dict[str, float | str | None],
        "left_out": kinds.object("LeftOut", dict.fromkeys(("npu_ops", "benchmark_ops", "original_ops"), int)),
        **figures,
    })  # fmt: skip


def _judged(kinds: _Parts) -> Part:
    hints = get_type_hints(OpVerdict)
    return kinds.object("Judged", {
        **{"fed" if field.name == "inherited" else field.name: hints[field.name] for field in fields(OpVerdict)},
        "state": {"enum": ["right", "wrong", "doubtful", "not_recomputed"]}, "reason": str, "reason_kind": str | None,
    })  # fmt: skip


def _evidence(kinds: _Parts) -> Part:
    """Facts by name: which there are depends on the cause (VERDICT.md)."""
    value = _either(TEXT, NULL, BOOL, NUMBER)
    listed = {"type": "array", "items": _either(value, {"type": "array", "items": value})}
    facts = {"type": "object", "propertyNames": {"pattern": "^[a-z0-9_]+$"}}
    kinds.made.setdefault("Evidence_of_a_verdict", facts | {"additionalProperties": _either(value, listed)})
    return {"$ref": "#/$defs/Evidence_of_a_verdict"}


def _verdict(kinds: _Parts) -> Part:
    suspect = kinds.object("Suspect", {
        "culprit": str, "type": str, "number": int, "order": int, "cause": Cause, "pass": str | None, "proof": Proof,
        "confidence": float, "also": [str], "followers": int, "below": int, "module": str, "source": str,
        "evidence": _evidence(kinds),
    })  # fmt: skip
    counts = ("judged", "right", "wrong", "imprecise", "doubtful", "not_recomputed")
    return kinds.object("Verdict", {
        "culprit": str | None, "cause": Cause, "pass": str | None, "confidence": float, "ranking": [str],
        "module": str, "source": str, "evidence": _evidence(kinds), "next": [StepText], "suspects": [suspect],
        "ops": kinds.object("JudgedOps", {
            **dict.fromkeys(counts, int), "reasons": dict[str, int], "reason_kinds": dict[str, int],
        }),
        "worst_cosine": _either(NULL, kinds.object("WorstCosine", {
            "op": str, "slot": str, "cosine": float, "below": int, "grows_from": str,
        })),
        "run": int | None, "benchmark": bool, "gaps": [str],
    })  # fmt: skip


def _finding(kinds: _Parts) -> Part:
    return kinds.object("Finding", {
        "kind": FindingKind, "grade": {"enum": [grade.name.lower() for grade in Grade]}, "message": str,
        "op_name": str, "op_type": str, "pass_name": str, "original_ops": str,
        "facts": [kinds.object("FindingFact", {"name": str, "value": str})],
    })  # fmt: skip


def _passports(kinds: _Parts) -> Part:
    hints = get_type_hints(Difference)
    difference = {
        "topic": hints["topic"],
        "names": [str],
        "npu": hints["npu"],
        "benchmark": hints["benchmark"],
        "text": str,
    }
    return _either(NULL, kinds.object("Passports", {
        "npu": str, "benchmark": str, "differences": [kinds.object("PassportDifference", difference)],
    }))  # fmt: skip


def _element(kinds: _Parts) -> Part:
    return kinds.record(Element, error=float, relative=float | None)


def _results(kinds: _Parts) -> Part:
    """`vc`, `vcs` and `ac` on one comparison."""
    detail = kinds.object("Detail", {
        "tensor": str, "shape": [int], "count": int, "equal": int,
        "worst_absolute": [_element(kinds)], "worst_relative": [_element(kinds)],
    })  # fmt: skip
    result = {
        "file": str | None, "npu": str | None, "benchmark": str | None, "graph": str | None, "notes": [str],
        "threshold": float, "overview": kinds.record(Overview, tensors=int), "findings": [_finding(kinds)],
        "details": [detail], "rows": [_row(kinds)],
    }  # fmt: skip
    check = kinds.object("Check", {
        "name": str, "looked_at": str, "skipped": str, "finding": _either(NULL, _finding(kinds)),
        "details": [{"type": "object"}],  # each check's own, those of other packages too
    })  # fmt: skip
    other = kinds.object("OtherRun", {
        "debug": int, "is_fused": bool, "results": [kinds.object("ResultOfOtherRun", result)],
    })  # fmt: skip
    since = kinds.object("Since", {
        "file": str, "culprit": str, "cause": Cause, "state": str, "mended": bool,
        "own_error_before": float | None, "own_error": float | None,
        "changes": [kinds.object("Change", {
            "what": str, "name": str, "before": str, "now": str, "changed": bool, "why": str | None,
        })],
        "same_dump": bool, "next_culprit": str | None, "next_cause": Cause,
    })  # fmt: skip
    return kinds.object("Results", {
        "schema": {"const": SCHEMA}, "results": [kinds.object("Result", {**result, "verdict?": _verdict(kinds)})],
        "checks?": [check], "passports?": _passports(kinds), "verdict?": _verdict(kinds), "other_run?": other,
        "since?": since,
    })  # fmt: skip


def _study(kinds: _Parts) -> Part:
    """`ac --all`."""
    departure = kinds.object("DepartureInVotes", {
        "op": str, "type": str, "role": Role, "ranks": [int], "agreeing": [int], "undecided": bool,
        "fed_alike": bool | None,
    })  # fmt: skip
    leaf = kinds.object("Leaf", {
        "step": int, "rank": int, "device": int, "model": str, "path": str, "tensors": int, "compared": int,
        "below": int, "not_finite": int, "judged": bool, "right": int, "network": str,
        "accused": [kinds.object("Accused", {"op": str, "type": str, "cause": Cause})],
        "excused": [kinds.object("Excused", {"op": str, "type": str, "cause": Cause, "excuse": Excuse})],
        "failure": str | None,
    })  # fmt: skip
    heat_map = kinds.object("HeatMap", {
        "what": {"enum": ["step", "rank"]}, "places": [int], "ops": [str], "values": [[float | None]],
        "recomputed": [[int]],
    })  # fmt: skip
    suspicion = kinds.object("Suspicion", {
        "step": int, "op": str, "type": str, "ranks": [int], "right": [int], "unknown": [int], "certain": bool,
        "kinds": [EvidenceKind], "evidence": [kinds.record(Evidence, number=_either({"type": "number"}, NULL))],
    })  # fmt: skip
    return kinds.object("Study", {
        "culprit": Culprit | None, "further": [Culprit],
        "not_finite": _either(NULL, kinds.object("NotFinite", {"step": int, "rank": int, "tensor": str})),
        "same_batch": [SameBatch],
        "steps": [int], "ranks": [int], "judging": Judging, "tells": bool, "is_recomputed": bool, "threshold": float,
        "leaves": [leaf],
        "votes": [kinds.object("Votes", {"step": int, "agreed": int, "departures": [departure]})],
        "maps": [heat_map], "table": str | None,
        "statistics": _either(NULL, kinds.object("Statistics", {
            "suspicions": [suspicion], "leaves": int, "tensors": int, "unread": [str],
        })),
        "notes": [str], "sharded?": _sharded(kinds),
        "redump": _either(NULL, kinds.record(Redump, settings=dict[str, str], path=str | None)),
        "unread": _either(NULL, kinds.object("Unread", {"files": int, "reason": str})),
    })  # fmt: skip


def _sharded(kinds: _Parts) -> Part:
    """`ac --sharded`."""
    finding = kinds.object("ShardFinding", {
        "fault": ShardFault, "step": int, "ranks": [int], "tensor": str, "own_name": str, "distance": float,
        "axis": int, "parts": int, "expected": [int], "held": [int], "other": str, "more": int,
    })  # fmt: skip
    placement = kinds.object("Placement", {
        "splits": [kinds.object("Split", {"axis": int, "parts": int, "stride": int, "groups": int})],
        "flat": bool, "terms": int, "mean": bool, "shifted": bool, "scale": float,
    })  # fmt: skip
    tensor = kinds.object("MergedTensor", {
        "step": int, "tensor": str, "agrees": bool | None, "placement": _either(placement, NULL), "is_certain": bool,
        "cosine": float | None, "distance": float | None, "max_absolute_error": float | None, "reason": str | None,
        "ranks": [kinds.object("OfRanks", {"ranks": [int], "slices": [int], "distance": float})],
    })  # fmt: skip
    return kinds.object("Sharded", {
        "npu": str, "benchmark": str, "ranks": [int], "benchmark_ranks": [int], "steps": [int],
        "micro_batches": [int], "compared": int, "off": int, "threshold": float, "findings": [finding],
        "tensors": [tensor],
    })  # fmt: skip


# --- the commands ---------------------------------------------------------------------------------------------------


def _ac(kinds: _Parts) -> Part:
    return _either(_results(kinds), _study(kinds), _sharded(kinds))


def _fusion(kinds: _Parts) -> Part:
    """The passes, switch files, blame (one document for each leaf), and a bisection."""
    passes = kinds.object("Passes", {"graphs": [GraphFusion]})
    switches = kinds.object("Switches", {"files": [kinds.object("SwitchFile", {
        "file": str, "old_form": bool, "passes": dict[str, dict[str, bool]], "refused": [str], "notes": [str],
        "left_on": [str], "warnings": [str],
    })]})  # fmt: skip
    blame = kinds.object("Blame", {
        "fused": str, "other": str | None, "graph": str | None, "other_graph": str | None, "result": str,
        "passes": [kinds.object("PassBlame", {
            "pass": str, "verdict": BlameVerdict, "reason": str, "switchable": bool, "worst": float | None,
            "median": float | None, "ops": [str],
        })],
        "ops": [kinds.record(OpBlame, not_recomputed=str, beyond_range=str)],
        "switch_off": [str], "unavoidable": [str], "judged": bool, "notes": [str],
    })  # fmt: skip
    bisection = kinds.object("FusionBisection", {
        "outcome": {"enum": [NOT_FUSION if word is Outcome.NOT_FIXED else str(word) for word in Outcome]},
        "off": [str], "interact": bool, "sets": int, "passes": [str],
        "tries": [kinds.object("FusionTry", {
            "off": [str], "succeeded": bool, "code": int | None, "seconds": float, "log": str,
        })],
    })  # fmt: skip
    return _either(passes, switches, {"type": "array", "items": blame}, bisection)


def _bisect(kinds: _Parts) -> Part:
    return kinds.object("Bisection", {
        "outcome": Outcome, "changes": [str], "interact": bool, "sets": int, "confidence": float | None, "rate": float,
        "outvoted": int, "searched": [str], "switches": {"type": "object"}, "keep": [str], "tries": [Try],
    })  # fmt: skip


def _overflow(kinds: _Parts) -> Part:
    slot = kinds.object("OverflowSlot", {
        "slot": str, "dtype": str | None, "layout": str | None, "shape": list[int] | None, "producer": str | None,
        "reason": str, "count": int | None, "largest": float | None, "headroom": float | None,
        "saturated": int | None, "nan": int | None, "positive_inf": int | None, "negative_inf": int | None,
        "statistics_only": bool,
        "summary": _either(NULL, kinds.object("Bounds", dict.fromkeys(("max", "min", "mean", "std"), float))),
    })  # fmt: skip
    op = kinds.object("OverflowOp", {
        "name": str, "type": str, "origin": get_type_hints(OverflowOp)["origin"], "why": str,
        "judged": _either(NULL, _judged(kinds)), "pass": [str], "original_ops": [str], "gradient": bool,
        "files": [str], "tensors": [slot],
    })  # fmt: skip
    unreadable = [kinds.object("UnreadFile", {"file": str, "reason": str})]
    status = kinds.object("Status", {
        "file": str, "output": int, "decoded": bool, "timestamp": int, "device": str | None, "step": str | None,
        "units": [kinds.record(UnitStatus, words=[str])], "op": _either(NULL, op), "doubt": str, "notes": [str],
    })  # fmt: skip
    step = kinds.object("TrailStep", {
        "op": str, "type": str, "slot": str, "dtype": str, "largest": float, "benchmark_largest": float | None,
        "headroom": float, "growth": float | None, "dumped": bool,
    })  # fmt: skip
    scale = kinds.object("LossScale", {
        "current": float | None, "source": str | None, "exponent": int | None, "is_bound": bool,
        "fitting": float | None, "tightest": str | None, "reason": str,
    })  # fmt: skip
    leaf = kinds.object("OverflowLeaf", {
        "path": str, "device": str | None, "step": str | None, "graph": str | None,
        "mode": get_type_hints(LeafOverflow)["mode"], "scanned_ops": int, "scanned_bytes": int,
        "not_scanned_ops": int, "unreadable": unreadable, "first": str | None, "ops": [op], "trail": [step],
        "loss_scale": _either(NULL, scale),
    })  # fmt: skip
    native = kinds.object("Overflow", {
        "first": str | None, "statuses": [status], "unreadable": unreadable, "leaves": [leaf],
        "advice": [kinds.object("Advice", {"kind": AdviceKind, "text": str, "op_types": [str], "lines": [str]})],
        "mixlist": str | None,
    })  # fmt: skip
    return _either(native, kinds.object("OverflowOfToolkit", {
        "engine": {"const": "cann"}, "results": [kinds.object("Decoded_statuses", {"summary": str, "files": [str]})],
    }))  # fmt: skip


def _random(kinds: _Parts) -> Part:
    tensor = kinds.object("RandomTensor", {
        "slot": str, "state": get_type_hints(SlotPair)["state"], "in_place": bool, "producer": str | None,
        "reason": str, "metrics": Metrics | None,
    })  # fmt: skip
    op = kinds.object("RandomOp", {
        "name": str, "type": str, "kind": get_type_hints(RandomOp)["kind"], "why": str, "judged": [_judged(kinds)],
        "pass": [str], "original_ops": [str], "tensors": [tensor],
    })  # fmt: skip
    overwritten = kinds.object("Overwritten", {
        "run": str, "consumer": str, "input": int, "producer": str, "output": int, "address": int | None,
        "first_byte": int, "last_byte": int, "bytes_that_differ": int, "bytes": int, "suspects": [Between],
        "between": [Between], "ran_between": int,
    })  # fmt: skip
    pair = kinds.object("PairOfRuns", {
        "run": str, "other_run": str | None, "graph": str | None, "first": str | None, "ops": [op], "is_pair": bool,
        "one_run_only": [str], "first_run_only": [str], "other_run_only": [str], "other_types": [str],
        "unreadable": [str], "memory_checked": int, "overwritten": [overwritten], "advice": str | None,
    })  # fmt: skip
    return kinds.object("Random", {"pairs": [pair], "noise_floor": str | None, "passports": _passports(kinds)})


def _preflight(kinds: _Parts) -> Part:
    scale = kinds.record(LossScale, "ScalesThatFit")
    forecast = kinds.record(TypeForecast, scale=scale)
    file = kinds.object("PrecisionFile", {"file": str, "option": str | None})
    return kinds.record(Preflight, types=[forecast], not_emulated=dict[str, str], files=[file])


def _profile(kinds: _Parts) -> Part:
    entry = kinds.object("TypePrecision", {
        "type": str, "input_dtype": str | None, "dtype": str, "kind": get_type_hints(TypePrecision)["kind"],
        "ops": int, "float32": float, "allowed": float, "own": float, "imprecision": float, "largest": float,
        "acceptance": float, "accepted": bool, "hf32": bool, "sums": str | None, "computed": [str],
        "curve": [tuple[float, float]],
    })  # fmt: skip
    return kinds.object("Profile", {
        "files": [str], "device": str | None, "mode": dict[str, str], "runs": int, "flushes": [str], "missed": int,
        "conclusion": [str], "types": [entry],
    })  # fmt: skip


def _whatif(kinds: _Parts) -> Part:
    result = kinds.record(WhatIf, stopped=[kinds.record(Stop, reason=str)], conclusion=str)
    return kinds.object("Whatif", {"alone": [result], "together": _either(NULL, result)})


def _curves(kinds: _Parts) -> Part:
    leaving = kinds.record(Leaving, ranks=[int])
    first = kinds.record(Leaving, "FirstLeaving", ranks=[int], tensor=str)
    values = [float | None]
    band = kinds.object("Band", {"low": values, "median": values, "high": values})
    curve = kinds.object("Curve", {
        "role": {"enum": [*map(str, TensorRole), TENSOR]}, "name": str, "tensor": str, "type": str,
        "figures": kinds.object("CurveFigures", dict.fromkeys(FIGURES, band)),
        "lines": [kinds.object("CurveLine", {"rank": int} | dict.fromkeys(FIGURES, values))],
        "benchmark": kinds.object("CurveBenchmark", dict.fromkeys(BENCHMARK, values)), "leaves": [leaving],
    })  # fmt: skip
    return kinds.object("Curves", {
        "steps": [int], "ranks": [int], "first": _either(NULL, first), "curves": [curve], "left_out": int,
        "tensorboard": [str], "conclusion": str, "notes": [str],
    })  # fmt: skip


def _h5_op(kinds: _Parts) -> dict[str, Any]:
    value = kinds.object("H5Value", {
        "name": str, "direction": {"enum": ["input", "output"]}, "kind": str, "pytorch_type": str | int | None,
        "device": int | None, "dtype": str | None, "shape": list[int] | None, "elements": int | None,
        "reason": str | None,
    })  # fmt: skip
    return {"name": str, "type": str, "sequence": int, "values": [value]}


def _ls(kinds: _Parts) -> Part:
    op = kinds.object("OpOfGraph", {
        "index": int, "id": int | None, "name": str, "type": str, "graph": str, "module": str, "source": str,
        "passes": [str], "kernel": str, "kernel_lib": str, "original_ops": list[str] | None,
        "outputs": [kinds.object("Output", {"dtype": str, "layout": str, "shape": [int]})],
        "cosine": float | None, "values": list[float] | None, "own_error": float | None,
        "state": str | None, "dumped": bool,
    })  # fmt: skip
    graph = kinds.object("GraphOps", {
        "run": int | None, "graph": str, "graph_names": [str], "reason": str, "total": int, "matching": int,
        "ops": [op],
    })  # fmt: skip
    file = kinds.object("DumpFile", {
        "file": str, "op": str, "type": str, "task": int | None, "stream": int | None, "timestamp": int | None,
        "statistics": bool, "size": int | None,
    })  # fmt: skip
    dump = kinds.object("Dump", {
        "run": int, "folder": str, "device": str, "model": str, "model_id": str, "step": str, "total": int,
        "matching": int, "files": [file],
    })  # fmt: skip
    h5_dump = kinds.object("H5Dump", {
        "file": str, "side": str | None, "device": str | int | None, "total": int, "matching": int,
        "ops": [kinds.object("H5OpOfList", {**_h5_op(kinds), "cosine": float | None})],
    })  # fmt: skip
    return _either(
        kinds.object("Ops", {"graphs": [graph]}),
        kinds.object("Dumps", {"dumps": [dump], "pytorch?": [h5_dump]}),
        kinds.object("H5Dumps", {"dumps": [h5_dump]}),
    )


def _ni(kinds: _Parts) -> Part:
    hints = get_type_hints(OpReport)
    side = _either(NULL, kinds.object("TensorOfSide", {
        "path": str, "dtype": str, "layout": str, "shape": [int], "summary": Summary | None,
    }))  # fmt: skip
    figures = {
        column.json or column.field.rpartition(".")[2]: _column(kinds, column)
        for column in IN_NI
        if column.json or column.part not in ("npu", "golden")
    }
    row = kinds.object("TensorOfOp", {
        "slot": str, "status": str, "note": str, "benchmark_tensor": str, "npu": side, "benchmark": side,
        "cosine": float | None, "agrees": bool | None, **figures,
    })  # fmt: skip
    edge = {"op": str, "through": [str]}
    described = _either(NULL, kinds.of(get_type_hints(Op)["output_descs"])["items"])
    source = {
        "slot": int, "producer": str | None, "index": int | None,
        "sources": [kinds.object("EdgeFrom", {**edge, "index": int})], "desc": described,
    }  # fmt: skip
    output = {"index": int, "readers": [kinds.object("EdgeTo", {**edge, "slot": int})], "desc": described}
    op = kinds.object("OpReport", {
        "name": str, "type": str, "id": int | None, "stream": int | None, "kernel": str | None,
        "kernel_lib": str | None, "is_custom": bool | None, "pass": [str], "original_ops": list[str] | None,
        "asked": str | None, "module": str, "source_line": str, "graph": str, "graph_file": str, "reason": str,
        "debug": int | None, "called_by": str | None, "subgraphs": [str],
        "inputs": [kinds.object("Input", source)], "outputs": [kinds.object("OutputOfOp", output)],
        "runs_after": [str], "runs_before": [str], "attributes?": dict[str, str], "not_dumped": str | None,
        "verdict": _either(NULL, _judged(kinds)), "source": hints["source"],
        "elements": [kinds.record(get_args(hints["elements"])[0], "ElementOfOp")], "tensors": [row],
    })  # fmt: skip
    h5_op = kinds.object("H5Op", {
        **_h5_op(kinds), "file": str, "side": str | None, "benchmark": str | None, "parameters": dict[str, str],
        "tensors": [row],
    })  # fmt: skip
    return _either(kinds.object("OpReports", {"ops": [op], "files": [str]}), kinds.object("H5Ops", {"ops": [h5_op]}))


def _graphs(kinds: _Parts) -> Part:
    found = kinds.record(FoundIn, ops=[kinds.object("FoundOp", {"name": str, "type": str})], error=str)
    return _either(
        kinds.object("Graphs", {
            "graphs": [kinds.record(GraphRow, error=str, reason=str)], "other_stages": dict[str, int],
            "unreadable": int, "problem": str,
        }),
        kinds.object("Found", {"find": str, "looked_at": int, "files": [found]}),
        kinds.record(GraphDiff, share=float),
    )  # fmt: skip


def _tensor() -> dict[str, Any]:
    return {
        "path": str, "slot": str | None, "side": str | None, "op": str | None, "run": str | None,
        "dtype": str | None, "layout": str | None, "shape": list[int] | None, "original_shape": list[int] | None,
        "read_as": str | None, "read_shape": list[int] | None, "note": str,
    }  # fmt: skip


def _pt(kinds: _Parts) -> Part:
    histogram = kinds.object("Histogram", {"edges": [float], "counts": [int]})
    view = kinds.object("ShownTensor", {
        **_tensor(), "reason": str, "figures": Summary | None, "histogram": _either(NULL, histogram),
        "first": list[float | bool | complex] | None,
    })  # fmt: skip
    return kinds.object("Tensors", {"tensors": [view], "saved": [str]})


def _cp(kinds: _Parts) -> Part:
    side = kinds.object("ComparedTensor", {**_tensor(), "figures": Summary | None})
    return kinds.object("ComparedTensors", {
        "npu": side, "benchmark": side, "note": str, "shape": [int], "metrics": Metrics | None, "atol": float,
        "rtol": float, "count": int, "outside": int, "equal": int, "all_close": bool,
        **{key: [_element(kinds)] for key in ("first", "worst_absolute", "worst_relative")},
        "error_histogram": [ErrorBin], "axes": [AxisShares], "shares_of_mismatches": bool, "saved": str | None,
    })  # fmt: skip


def _dc(kinds: _Parts) -> Part:
    tensor = kinds.record(Decoded, note=str, as_stored=str, reason=str)
    return _either(
        kinds.object("DecodedFiles", {
            "folder": str, "decoded": int, "kept_as_stored": int, "failed": int, "tensors": [tensor],
        }),
        kinds.object("DecodedByToolkit", {"engine": {"const": "cann"}, "files": [str]}),
    )  # fmt: skip


def _h5copy(kinds: _Parts) -> Part:
    return kinds.object("H5Copy", {"input": str, "output": str, "ops": [str], "replaced": [str], "size": int})


def _toolkit(kinds: _Parts) -> Part:
    paths = dict.fromkeys(("root", "atc", "msaccucmp", "set_env"), str | None)
    return kinds.object("Toolkit", {
        **paths, "version": str, "python": str, "looked_in": [str], "searched": bool, "engine": str,
        "arithmetic": str,
    })  # fmt: skip


def _repro(kinds: _Parts) -> Part:
    as_if = kinds.object("AsIf", dict.fromkeys(("name", "value", "other"), str))
    minimized = kinds.object("Minimized", {
        "sentence": str, **dict.fromkeys(("elements_before", "elements", "runs", "failed", "limit"), int),
        **dict.fromkeys(("is_limited", "is_stopped", "is_at_any_size", "is_cut"), bool),
        "rules": [SizeRule], "spans": [Span], "as_if": _either(NULL, as_if),
        "changed": Mapping[str, Any],
    })  # fmt: skip
    return kinds.object("Repro", {
        "folder": str, "op": str, "type": str, "state": str, "not_recomputed": str | None,
        "files": Mapping[str, int], "minimized": _either(NULL, minimized),
    })  # fmt: skip


COMMANDS: Mapping[str, Callable[[_Parts], Part]] = {
    "ac": _ac, "vc": _results, "vcs": _results, "overflow": _overflow, "random": _random, "fusion": _fusion,
    "bisect": _bisect, "preflight": _preflight, "profile": _profile, "ls": _ls, "ni": _ni, "graphs": _graphs,
    "pt": _pt, "cp": _cp, "dc": _dc, "h5copy": _h5copy, "toolkit": _toolkit, "repro": _repro,
    "whatif": _whatif, "curves": _curves,
}  # fmt: skip


@cache
def _all_parts() -> Mapping[str, Part]:
    """Return all definitions, those of commands by their word."""
    kinds = _Parts()
    tops = {name: make(kinds) for name, make in COMMANDS.items()}
    unread = kinds.object("Unread", {"files": int, "reason": str})  # of what storage did not give, in any object
    for top in tops.values():
        for part in top.get("anyOf", [top]):
            document = kinds.made.get(part.get("$ref", "").rpartition("/")[2], {})
            if "properties" in document:
                document["properties"].setdefault("unread", unread)
    return kinds.made | tops
