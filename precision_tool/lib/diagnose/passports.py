"""What differs between the passports of two runs: the commonest causes of a difference are no kernels at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.passport_file import (
    Optimizer,
    Passport,
    Plain,
    TensorHash,
    passport_above,
    read_passport,
)
from precision_tool.lib.io.files import is_file, real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError

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
