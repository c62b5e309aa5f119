"""`passport.json`: what a run was, and what differs between two runs: the commonest causes are no kernels at all."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, NoReturn, TypeVar

from precision_tool.lib.data.workspace import PASSPORT, Workspace
from precision_tool.lib.io.files import is_file, open_binary, read_text, real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError, shown
from precision_tool.lib.training.passport import MOST_CHARACTERS

FORMAT, VERSION = "precision_tool passport", 1

Plain = str | int | float | bool | None
T = TypeVar("T")

_MAX_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
#: Folders above a leaf folder of dump files up to that of its run, at most.
_MAX_PARENTS = 8
#: The format stands in the first bytes of a passport.
_HEAD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHash:
    """Type, shape and hash of a variable or of an input batch."""

    type: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A kind of optimizer op with its hyperparameters; `variables` are updated by it."""

    type: str
    hyperparameters: Mapping[str, Plain]
    variables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passport:
    """One run. Tensors by name; `left_out` says of others why they have no hash."""

    path: str
    side: str
    written: str
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    switches: Mapping[str, str]
    seeds: Mapping[str, Plain]
    optimizers: tuple[Optimizer, ...]
    variables: Mapping[str, TensorHash]
    batch: Mapping[str, TensorHash]
    left_out: Mapping[str, str]


def read_passport(path: str) -> Passport:
    """Return the passport in a file. FormatError says where it is damaged; DataNotFoundError if it is not there."""
    return parse_passport(read_text(path, _MAX_BYTES), path)


def passport_above(folder: str) -> str | None:
    """Return the passport of the run of a folder of dump files or tensors: in it, or some folders above."""
    here = posixpath.abspath(folder)
    for _ in range(_MAX_PARENTS):
        path = posixpath.join(here, PASSPORT)
        if is_file(path) and _is_passport(path):
            return path
        here = posixpath.dirname(here)
    return None


def parse_passport(text: str, path: str = PASSPORT) -> Passport:
    """Return the passport in a text. FormatError as above."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError.of(path, "diagnose.passport.damaged", reason=str(error)[:200]) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError.of(path, "diagnose.passport.not_passport")
    version = document.get("version")
    if version != VERSION:
        raise FormatError.of(path, "diagnose.passport.version", version=shown(str(version)), expected=VERSION)
    reader = _Reader(path)
    return Passport(
        path=path,
        side=reader.text(document.get("side"), "side"),
        written=reader.text(document.get("written", ""), "written"),
        versions=reader.mapping(document, "versions", reader.text),
        environment=reader.mapping(document, "environment", reader.text),
        switches=reader.mapping(document, "switches", reader.text),
        seeds=reader.mapping(document, "seeds", reader.plain),
        optimizers=tuple(map(reader.optimizer, reader.rows(document, "optimizers"))),
        variables=reader.tensors(document, "variables"),
        batch=reader.tensors(document, "batch"),
        left_out=reader.mapping(document, "left_out", reader.text),
    )


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _is_passport(path: str) -> bool:
    try:
        with open_binary(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(_HEAD)
    except (PrecisionToolError, OSError):
        return False


class _Reader:
    """Checks of what stands in a passport; FormatError names the place."""

    def __init__(self, path: str) -> None:
        self._path = path

    def fail(self, where: str, problem: str, **fields: Any) -> NoReturn:
        """Raise the FormatError `diagnose.passport.<problem>` of the field `where`."""
        raise FormatError.of(self._path, f"diagnose.passport.{problem}", field=shown(where), **fields)

    def text(self, value: object, where: str) -> str:
        """Return a text of bounded length."""
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            self.fail(where, "not_text", limit=MOST_CHARACTERS)
        return value

    def plain(self, value: object, where: str) -> Plain:
        """Return a text, a finite number, a truth value or nothing."""
        if isinstance(value, float) and not isfinite(value):
            self.fail(where, "not_finite")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
            self.fail(where, "too_large")
        return value if value is None or isinstance(value, (bool, int, float)) else self.text(value, where)

    def mapping(self, document: Mapping[str, Any], key: str, check: Callable[[object, str], T]) -> dict[str, T]:
        """Return an object of checked values; nothing for one that is not there."""
        members = document.get(key, {})
        if not isinstance(members, dict):
            self.fail(key, "not_object")
        return {self.text(name, key): check(value, f"{key}.{name}") for name, value in members.items()}

    def rows(self, document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        """Return a list of objects."""
        rows = document.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
            self.fail(key, "not_objects")
        return rows

    def count(self, value: object, where: str) -> int:
        """Return a whole number, 0 or more."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            self.fail(where, "not_count")
        return value

    def optimizer(self, row: Mapping[str, Any]) -> Optimizer:
        """Return one optimizer."""
        return Optimizer(
            type=self.text(row.get("type"), "optimizers.type"),
            hyperparameters=self.mapping(row, "hyperparameters", self.plain),
            variables=self.count(row.get("variables", 0), "optimizers.variables"),
        )

    def tensors(self, document: Mapping[str, Any], key: str) -> dict[str, TensorHash]:
        """Return the hashes of a part, by name."""
        tensors: dict[str, TensorHash] = {}
        for row in self.rows(document, key):
            name = self.text(row.get("name"), f"{key}.name")
            shape, digest = row.get("shape"), row.get("sha256")
            if name in tensors:
                self.fail(f"{key}.{name}", "twice")
            if not isinstance(shape, list) or len(shape) > 64:
                self.fail(f"{key}.{name}", "no_shape")
            if not isinstance(digest, str) or not _SHA256.match(digest):
                self.fail(f"{key}.{name}", "no_hash")
            sizes = tuple(self.count(size, f"{key}.{name}") for size in shape)
            tensors[name] = TensorHash(type=self.text(row.get("type"), f"{key}.{name}"), shape=sizes, sha256=digest)
        return tensors


# --- comparison of the passports of two runs ---


#: Options of the NPU that change how precise it computes, and what of them changes nothing.
_PRECISION = (
    "precision_mode", "precision_mode_v2", "op_precision_mode", "customize_dtypes", "modify_mixlist",
    "op_select_implmode", "optypelist_for_implmode", "enable_reduce_precision", "allow_hf32",
)  # fmt: skip
_AS_THE_SCRIPT = ("must_keep_origin_dtype", "origin", "off", "False", "0")
#: Versions that both sides have.
_VERSIONS = ("tensorflow", "keras", "numpy", "python", "machine")
#: Variables that say where a run is, or that another part of the passport says.
_NOT_COMPARED = (
    "ASCEND_DEVICE_ID", "DEVICE_ID", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "SOC_VERSION",
    "ENABLE_HF32_EXECUTION", "HCCL_DETERMINISTIC", "ENABLE_FORCE_V2_CONTROL", "NPU_LOOP_SIZE", "PYTHONHASHSEED",
)  # fmt: skip


class Topic(StrEnum):
    """Subject of a difference between two runs."""

    VARIABLES = "variables"
    BATCH = "batch"
    SEEDS = "seeds"
    OPTIMIZER = "optimizer"
    PRECISION = "precision"
    VERSIONS = "versions"
    ENVIRONMENT = "environment"
    #: What calls have that msprobe recorded.
    ARGUMENTS = "arguments"
    CALLS = "calls"
    SHAPES = "shapes"
    ORDER = "order"
    RECORDING = "recording"
    DTYPES = "dtypes"


#: Settings that are called otherwise than in the passport.
_SETTINGS = {
    (Topic.SEEDS, "helper"): Message("check.passport.seed"),
    (Topic.SEEDS, "graph"): Message("check.passport.graph_seed"),
    (Topic.SEEDS, "ops_without_seed"): Message("check.passport.ops_without_seed"),
    (Topic.OPTIMIZER, "type"): Message("check.passport.optimizer"),
    (Topic.OPTIMIZER, "groups"): Message("check.passport.groups"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs. `npu` and `benchmark` are its values, None where a side has none.

    `names` are what differs, all of them.
    """

    topic: Topic
    names: tuple[str, ...]
    npu: Plain
    benchmark: Plain
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PassportPair:
    """The passports of the run under test and of the one it is compared with, and what differs between them."""

    npu: Passport
    other: Passport
    differences: tuple[Difference, ...]

    @property
    def has_benchmark(self) -> bool:
        """True if the other run is the benchmark, False for another run of the NPU."""
        return self.other.side == "benchmark"

    @property
    def is_other_setup(self) -> bool:
        """True if more differs than types, which mixed precision makes others of."""
        return any(difference.topic is not Topic.DTYPES for difference in self.differences)

    def hash_differs(self, name: str) -> bool | None:
        """Return whether a variable or an input batch has other values; None where a side has no hash of it."""
        for part in ("variables", "batch"):
            ours, others = getattr(self.npu, part), getattr(self.other, part)
            both = [each for each in ours if each in others and each.partition(":")[0] == name]
            if both:
                return any(ours[each].sha256 != others[each].sha256 for each in both)
        return None


def find_passports(space: Workspace, npu: str | None = None, golden: str | None = None) -> PassportPair | None:
    """Compare the passports of the runs of two folders, by default of the data folder; None if one is missing.

    One that is damaged is a note of the workspace.
    """
    ours = passport_above(npu) if npu is not None else str(space.npu_passport())
    if golden is not None:
        other = passport_above(golden)
    else:
        usual = (space.benchmark_passport, space.npu_passport(1))
        other = next((str(path) for path in usual if is_file(path)), None)
    if ours is None or other is None or not is_file(ours) or real_path(ours) == real_path(other):
        return None
    try:
        return compare_passports(read_passport(ours), read_passport(other))
    except PrecisionToolError as error:
        note = Message("note.diagnose.passports_unread", reason=error.full_message)
        space.notes += [note] if note not in space.notes else []
        return None


def compare_passports(npu: Passport, other: Passport) -> PassportPair:
    """Compare two passports: the likeliest cause of wrong results first."""
    side = Message("check.passport.benchmark") if other.side == "benchmark" else Message("check.passport.other_run")
    differences = [
        *_tensors(Topic.VARIABLES, npu.variables, other.variables, side),
        *_tensors(Topic.BATCH, npu.batch, other.batch, side),
        *_values(Topic.SEEDS, npu.seeds, other.seeds, side),
        *_optimizers(npu.optimizers, other.optimizers, side),
        *_precision(npu.switches, other.switches, side),
        *_values(Topic.VERSIONS, _versions(npu), _versions(other), side),
        *_environment(npu, other, side),
    ]
    return PassportPair(npu=npu, other=other, differences=tuple(differences))


def _tensors(
    topic: Topic, npu: Mapping[str, TensorHash], other: Mapping[str, TensorHash], side: Message
) -> Iterator[Difference]:
    npu_side = Message("check.passport.npu")
    if not npu or not other:
        return
    both = [name for name in npu if name in other]
    changed = tuple(name for name in both if npu[name].sha256 != other[name].sha256)
    if changed:
        form = next((name for name in changed if _form(npu[name]) != _form(other[name])), None)
        forms = None
        if form is not None:
            forms = Message("check.passport.forms", name=form, npu=_shown(npu[form]), other=_shown(other[form]))
        message = Message(
            f"check.passport.{topic}_differ", names=changed, count=len(changed), both=len(both), forms=forms
        )
        first = changed[0]
        yield Difference(
            topic=topic, names=changed, npu=npu[first].sha256, benchmark=other[first].sha256, message=message
        )
    for owner, tensors, others in ((npu_side, npu, other), (side, other, npu)):
        is_npu = owner is npu_side
        names = tuple(name for name in tensors if name not in others)
        if names:
            yield Difference(
                topic=topic,
                names=names,
                npu=len(names) if is_npu else 0,
                benchmark=0 if is_npu else len(names),
                message=Message(f"check.passport.{topic}_on_one_side", count=len(names), names=names, side=owner),
            )


def _shown(tensor: TensorHash) -> str:
    return f"{tensor.type} {list(tensor.shape)}"


def _form(tensor: TensorHash) -> tuple[str, tuple[int, ...]]:
    return tensor.type, tuple(tensor.shape)


def _values(topic: Topic, npu: Mapping[str, Plain], other: Mapping[str, Plain], side: Message) -> Iterator[Difference]:
    """Return values that both sides have, and that differ."""
    for name in npu:
        if name in other and npu[name] != other[name]:
            yield _difference(topic, name, npu[name], other[name], side)


def _difference(
    topic: Topic, name: str, npu: Plain, other: Plain, side: Message, setting: Message | None = None
) -> Difference:
    message = Message(
        "check.passport.setting",
        name=setting or _SETTINGS.get((topic, name), name),
        npu=_value(npu),
        side=side,
        other=_value(other),
    )
    return Difference(topic=topic, names=(name,), npu=npu, benchmark=other, message=message)


def _value(value: Plain) -> Message | str:
    return Message("check.passport.not_set") if value is None else str(value)


def _optimizers(npu: tuple[Optimizer, ...], other: tuple[Optimizer, ...], side: Message) -> Iterator[Difference]:
    if not npu or not other:
        return
    types = [", ".join(sorted({optimizer.type for optimizer in side})) for side in (npu, other)]
    if types[0] != types[1]:
        yield _difference(Topic.OPTIMIZER, "type", types[0], types[1], side)
        return
    key = _order
    for ours, benchmark in zip(sorted(npu, key=key), sorted(other, key=key), strict=False):
        names = dict.fromkeys([*ours.hyperparameters, *benchmark.hyperparameters])
        for name in names:
            values = ours.hyperparameters.get(name), benchmark.hyperparameters.get(name)
            if ours.type == benchmark.type and values[0] != values[1]:
                setting = Message("check.passport.of_optimizer", name=name, optimizer=ours.type)
                yield _difference(Topic.OPTIMIZER, name, *values, side, setting)
    if len(npu) != len(other):
        yield _difference(Topic.OPTIMIZER, "groups", len(npu), len(other), side)


def _order(optimizer: Optimizer) -> tuple[str, int]:
    return optimizer.type, optimizer.variables


def _precision(npu: Mapping[str, str], other: Mapping[str, str], side: Message) -> Iterator[Difference]:
    for name in _PRECISION:
        ours, benchmark = npu.get(name), other.get(name)
        if _content(ours) == _content(benchmark) or (benchmark is None and ours in _AS_THE_SCRIPT):
            continue
        yield _difference(Topic.PRECISION, name, ours, benchmark, side)


def _content(switch: str | None) -> str | None:
    """Return the value of a switch: of a file its content, whatever its name."""
    _, marked, digest = (switch or "").partition(" sha256:")
    return digest if marked else switch


def _versions(passport: Passport) -> dict[str, Plain]:
    versions: dict[str, Plain] = {name: passport.versions[name] for name in _VERSIONS if name in passport.versions}
    if "python" in versions:
        versions["python"] = ".".join(str(versions["python"]).split(".")[:2])
    return versions


def _environment(npu: Passport, other: Passport, side: Message) -> Iterator[Difference]:
    names = sorted({*npu.environment, *other.environment} - set(_NOT_COMPARED))
    for name in names:
        ours, benchmark = npu.environment.get(name), other.environment.get(name)
        if ours != benchmark:
            yield _difference(Topic.ENVIRONMENT, name, ours, benchmark, side)
