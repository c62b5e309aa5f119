"""What differs between the passports of two runs: the commonest causes of a difference are no kernels at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.passport import Optimizer, Passport, Plain, TensorHash, passport_above, read_passport
from precision_tool.lib.model.wording import counted, first_of
from precision_tool.lib.storage.stores import is_file, real_path
from precision_tool.lib.workspace import Workspace

#: Names of tensors that a line shows.
_SHOWN = 3
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs. `npu` and `benchmark` are its values, None where a side has none.

    `topic` is "variables", "batch", "seeds", "optimizer", "precision", "versions" or "environment"; `names` are what
    differs, all of them; `text` says it in one line.
    """

    topic: str
    names: tuple[str, ...]
    npu: Plain
    benchmark: Plain
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The object of JSON."""
        return {
            "topic": self.topic, "names": list(self.names), "npu": self.npu, "benchmark": self.benchmark,
            "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PassportPair:
    """The passports of the run under test and of the one it is compared with, and what differs between them."""

    npu: Passport
    other: Passport
    differences: tuple[Difference, ...]

    def hash_differs(self, name: str) -> bool | None:
        """Whether a variable, or what was fed as `name`, has other values; None where a side has no hash of it."""
        for part in ("variables", "batch"):
            ours, theirs = getattr(self.npu, part), getattr(self.other, part)
            both = [each for each in ours if each in theirs and each.partition(":")[0] == name]
            if both:
                return any(ours[each].sha256 != theirs[each].sha256 for each in both)
        return None

    def to_dict(self) -> dict[str, Any]:
        """The object of JSON."""
        return {
            "npu": self.npu.path, "benchmark": self.other.path,
            "differences": [one.to_dict() for one in self.differences],
        }  # fmt: skip


def find_passports(space: Workspace, npu: str | None = None, golden: str | None = None) -> PassportPair | None:
    """The passports of the runs that two folders belong to, by default of the data folder; None if one is not there.

    One that is damaged is a note of the workspace.
    """
    ours = passport_above(npu) if npu is not None else str(space.npu_passport())
    if golden is not None:
        theirs = passport_above(golden)
    else:
        usual = (space.benchmark_passport, space.npu_passport(1))
        theirs = next((str(path) for path in usual if is_file(path)), None)
    if ours is None or theirs is None or not is_file(ours) or real_path(ours) == real_path(theirs):
        return None
    try:
        return compare_passports(read_passport(ours), read_passport(theirs))
    except PrecisionToolError as error:
        note = f"what the runs were cannot be told: {error.message}"
        space.notes += [note] if note not in space.notes else []
        return None


def compare_passports(npu: Passport, other: Passport) -> PassportPair:
    """What differs, the likeliest cause of wrong results first."""
    label = "benchmark" if other.side == "benchmark" else "other run"
    found = [
        *_tensors("variables", "variable", npu.variables, other.variables, label),
        *_tensors("batch", "fed tensor", npu.batch, other.batch, label),
        *_values("seeds", npu.seeds, other.seeds, label, _SEED_WORDS),
        *_optimizers(npu.optimizers, other.optimizers, label),
        *_precision(npu.switches, other.switches, label),
        *_values("versions", _versions(npu), _versions(other), label, {}),
        *_environment(npu, other, label),
    ]
    return PassportPair(npu=npu, other=other, differences=tuple(found))


_SEED_WORDS = {"helper": "seed", "graph": "seed of the graph", "ops_without_seed": "random ops without a seed"}


def _tensors(
    topic: str, what: str, npu: Mapping[str, TensorHash], other: Mapping[str, TensorHash], label: str
) -> Iterator[Difference]:
    if not npu or not other:
        return
    both = [name for name in npu if name in other]
    changed = [name for name in both if npu[name].sha256 != other[name].sha256]
    if changed:
        kinds = [name for name in changed if _kind(npu[name]) != _kind(other[name])]
        text = f"{len(changed):,} of {counted(len(both), what)} {'has' if len(changed) == 1 else 'have'} other values: "
        text += first_of(changed, _SHOWN)
        if kinds:
            text += f" ({kinds[0]} is {_kind(npu[kinds[0]])} and {_kind(other[kinds[0]])})"
        one = changed[0]
        yield Difference(topic=topic, names=tuple(changed), npu=npu[one].sha256, benchmark=other[one].sha256, text=text)
    for side, names in (
        ("NPU", [name for name in npu if name not in other]),
        (label, [name for name in other if name not in npu]),
    ):
        if names:
            text = f"{counted(len(names), what)} only on the {side} side: {first_of(names, _SHOWN)}"
            yield Difference(
                topic=topic, names=tuple(names), npu=len(names) if side == "NPU" else 0,
                benchmark=0 if side == "NPU" else len(names), text=text,
            )  # fmt: skip


def _kind(one: TensorHash) -> str:
    return f"{one.type} {list(one.shape)}"


def _values(
    topic: str, npu: Mapping[str, Plain], other: Mapping[str, Plain], label: str, words: Mapping[str, str]
) -> Iterator[Difference]:
    """Values that both sides have, and that differ."""
    for name in npu:
        if name in other and npu[name] != other[name]:
            yield _difference(topic, name, words.get(name, name), npu[name], other[name], label)


def _difference(topic: str, name: str, word: str, ours: Plain, theirs: Plain, label: str) -> Difference:
    text = f"{word}: NPU {_value(ours)}, {label} {_value(theirs)}"
    return Difference(topic=topic, names=(name,), npu=ours, benchmark=theirs, text=text)


def _value(value: Plain) -> str:
    return "not set" if value is None else str(value)


def _optimizers(npu: tuple[Optimizer, ...], other: tuple[Optimizer, ...], label: str) -> Iterator[Difference]:
    if not npu or not other:
        return
    types = [", ".join(sorted({one.type for one in side})) for side in (npu, other)]
    if types[0] != types[1]:
        yield _difference("optimizer", "type", "optimizer", types[0], types[1], label)
        return
    key = _order
    for ours, theirs in zip(sorted(npu, key=key), sorted(other, key=key), strict=False):
        names = dict.fromkeys([*ours.hyperparameters, *theirs.hyperparameters])
        for name in names:
            values = ours.hyperparameters.get(name), theirs.hyperparameters.get(name)
            if ours.type == theirs.type and values[0] != values[1]:
                yield _difference("optimizer", name, f"{name} of {ours.type}", *values, label)
    if len(npu) != len(other):
        yield _difference("optimizer", "groups", "groups of hyperparameters", len(npu), len(other), label)


def _order(one: Optimizer) -> tuple[str, int]:
    return one.type, one.variables


def _precision(npu: Mapping[str, str], other: Mapping[str, str], label: str) -> Iterator[Difference]:
    for name in _PRECISION:
        ours, theirs = npu.get(name), other.get(name)
        if _content(ours) == _content(theirs) or (theirs is None and ours in _AS_THE_SCRIPT):
            continue
        yield _difference("precision", name, name, ours, theirs, label)


def _content(switch: str | None) -> str | None:
    """What a switch says: of a file its content, whatever its name."""
    _, marked, digest = (switch or "").partition(" sha256:")
    return digest if marked else switch


def _versions(one: Passport) -> dict[str, Plain]:
    found: dict[str, Plain] = {name: one.versions[name] for name in _VERSIONS if name in one.versions}
    if "python" in found:
        found["python"] = ".".join(str(found["python"]).split(".")[:2])
    return found


def _environment(npu: Passport, other: Passport, label: str) -> Iterator[Difference]:
    names = sorted({*npu.environment, *other.environment} - set(_NOT_COMPARED))
    for name in names:
        ours, theirs = npu.environment.get(name), other.environment.get(name)
        if ours != theirs:
            yield _difference("environment", name, name, ours, theirs, label)
