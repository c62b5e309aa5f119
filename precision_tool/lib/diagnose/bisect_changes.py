"""What can be changed about how a network is computed: passes, types of ops, single ops, modules, modes of the run.

A change has a name that says all of it: `fusion:PASS`, `type:OPTYPE`, `op:OP`, `high_precision:OP`, `module:PATH` or
`OPTION=VALUE`. What the last verdict suspects is searched first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_tool.lib.data.graph_catalog import RunGraph, module_path
from precision_tool.lib.diagnose.plan import dtypes_in_float32
from precision_tool.lib.diagnose.verdict_model import Action, Cause, Step, Suspect, Verdict
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.training.given_switches import AS_IN_SCRIPT, HIGH_PRECISION, PYTORCH_SWITCHES, SWITCHES

FUSION, TYPE, OP, PRECISE, MODULE = "fusion", "type", "op", "high_precision", "module"
_KINDS = (FUSION, TYPE, OP, PRECISE, MODULE)
_PYTORCH, _MINDSPORE = "pytorch", "mindspore"
#: What each option is changed to, the one that changes least first. The last computes everything in the script's types.
_ALL_PRECISE = f"op_precision_mode={HIGH_PRECISION}"
_HF32, _DETERMINISTIC, _LOSS_SCALE = "allow_hf32=off", "deterministic=on", "loss_scale=1"
_FORMAT, _JIT = "allow_internal_format=off", "jit_compile=on"
_NARROW = frozenset({"float16", "bfloat16", "float32"})
_HALF = frozenset({"float16", "bfloat16"})
#: How probable it is that what the verdict suspects is needed: what its steps name, what its suspects are part of.
_NAMED, _RELATED = 2.0, 0.5
#: What a step of the verdict changes for the whole run.
_OF_STEP = {
    Action.NO_HF32: (_HF32,), Action.NO_HF32_ANYWHERE: (_HF32,), Action.DETERMINISTIC: (_DETERMINISTIC,),
    Action.LOWER_LOSS_SCALE: (_LOSS_SCALE,), Action.DIVIDE_LOSS_SCALE: (_LOSS_SCALE,),
    Action.SAME_LOSS_SCALE: (_LOSS_SCALE,), Action.OTHER_KERNEL: (_JIT, _FORMAT), Action.PLAIN_FORMATS: (_FORMAT,),
}  # fmt: skip
#: What a step changes of its suspect.
_OF_SUSPECT = {
    Action.HIGH_PRECISION: (PRECISE,), Action.FLOAT32_KERNEL: (OP,), Action.KEEP_TYPE: (OP, TYPE),
    Action.KEEP_FUSED_TYPE: (OP, TYPE), Action.COMPUTE_IN_FLOAT32: (MODULE,),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What is searched: the changes in the order in which they are preferred, and how probable each is.

    `types` are the op types of the data, `dtypes` what `customize_dtypes` says of each op that may be changed.
    """

    names: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    suspected: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    is_pytorch: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def passes(self) -> dict[str, str]:
        """The passes that changes switch off."""
        return {name: name.partition(":")[2] for name in self.names if name.startswith(FUSION + ":")}

    def switches(self, changes: Iterable[str]) -> dict[str, Any]:
        """Return the document that tells the training side of these changes, but for passes."""
        document: dict[str, Any] = {}
        for change in changes:
            kind, colon, of = change.partition(":")
            option, _, value = change.partition("=")
            if colon and kind in _KINDS:
                if kind == TYPE:
                    document.setdefault("float32_types", []).append(of)
                elif kind == MODULE:
                    document.setdefault("float32_modules", []).append(of)
                elif kind == OP:
                    document.setdefault("customize_dtypes", {})[of] = self.dtypes[of]
                elif kind == PRECISE:
                    document.setdefault("op_precision_mode", {})[of] = HIGH_PRECISION
            elif option == "op_precision_mode":
                types = {f"OpType::{op_type}": value for op_type in self.types}
                document["op_precision_mode"] = {**types, **document.get(option, {})}
            else:
                document[option] = float(value) if option == "loss_scale" else value
        return document


def searched(
    runs: Sequence[RunGraph], passes: Sequence[str], verdicts: Sequence[Verdict], named: Sequence[str] = ()
) -> Searched:
    """Return what can be changed about a network, or of that what is named.

    Parameters
    ----------
    runs : sequence of RunGraph
        The graphs of the runs that were dumped; without any there is no type, op or module.
    passes : sequence of str
        Fusion passes that the data names.
    verdicts : sequence of Verdict
        The last verdicts.
    named : sequence of str
        The names of changes to search instead of all.

    Returns
    -------
    Searched
        The changes; UsageError for a name that is none.
    """
    ops = list({op.name: op for run in runs for op in run.file.ops}.values())
    frameworks = {run.file.framework for run in runs}
    weighed, by_step = _weighed(verdicts)
    if named:
        names = [_checked(name) for name in dict.fromkeys(named)]
    else:
        kinds = () if _PYTORCH in frameworks else (OP, PRECISE)
        names = [name for name in weighed if name.partition(":")[0] in kinds]
        names += _of_network(ops, passes, frameworks)
    known = {op.name: op for op in ops}
    dtypes = {name: dtypes_in_float32(known[name]) for name in _of_kind(OP, names) if name in known}
    for name in _of_kind(OP, names):
        if not dtypes.get(name):
            if named:
                raise UsageError("cli.bisect_no_op", name=name)
            names.remove(f"{OP}:{name}")
    suspects = [name for name in weighed if name in names]
    rest = max(len(names) - len(suspects), 1)
    weights = {name: rest * weighed[name] / sum(weighed[other] for other in suspects) for name in suspects}
    share = _NAMED if any(name in by_step for name in suspects) else _RELATED
    return Searched(
        names=tuple(dict.fromkeys([*suspects, *names])),
        weights={name: weight * share for name, weight in weights.items()},
        suspected=tuple(suspects),
        types=tuple(sorted(_types(ops))),
        dtypes=dtypes,
        is_pytorch=_PYTORCH in frameworks,
    )


def _of_kind(kind: str, names: Iterable[str]) -> list[str]:
    return [of for before, colon, of in (name.partition(":") for name in names) if colon and before == kind]


def _types(ops: Sequence[Op]) -> set[str]:
    """Return the types of ops that put out floating-point numbers."""
    return {op.type for op in ops if not op.is_recorded and _puts_out(op, _NARROW) and op.type.isidentifier()}


def _puts_out(op: Op, dtypes: frozenset[str]) -> bool:
    return any(desc.dtype in dtypes for desc in op.output_descs)


def _of_network(ops: Sequence[Op], passes: Sequence[str], frameworks: Iterable[str]) -> list[str]:
    """Return all changes of a network, those that change least first; of both frameworks without data."""
    recorded = [op for op in ops if op.is_recorded]
    if _MINDSPORE in frameworks:
        raise UsageError("cli.bisect_mindspore")
    names = [f"{FUSION}:{name}" for name in passes if is_switchable(name)]
    halves = [op for op in ops if _puts_out(op, _HALF)]
    names += [f"{TYPE}:{name}" for name in sorted(_types(halves))] if not recorded else []
    names += [f"{MODULE}:{name}" for name in dict.fromkeys(map(module_path, halves)) if name]
    if not recorded:
        names += [_ALL_PRECISE] if _types(ops) else []
    names += [_HF32, _DETERMINISTIC, _LOSS_SCALE]
    if recorded or not ops:
        names += [_FORMAT, _JIT, "autocast=off"]
    if not recorded:
        names.append(f"precision_mode={AS_IN_SCRIPT}")
    return names


def _checked(name: str) -> str:
    kind, colon, of = name.partition(":")
    option, equals, value = name.partition("=")
    if (colon and kind in _KINDS and of) or (equals and _is_value(option, value)):
        return name
    kinds = [f"{kind}:NAME" for kind in _KINDS]
    raise UsageError("cli.bisect_no_change", name=name, kinds=[*kinds, *(f"{option}=VALUE" for option in SWITCHES)])


def _is_value(option: str, value: str) -> bool:
    if option == "loss_scale":
        try:
            return 0 < float(value) < float("inf")
        except ValueError:
            return False
    return value in SWITCHES.get(option, ())


def _weighed(verdicts: Sequence[Verdict]) -> tuple[dict[str, float], frozenset[str]]:
    """Return how probable changes are by the verdicts, the most probable first, and those that a step names."""
    weights: dict[str, float] = {}
    by_step: set[str] = set()

    def add(name: str, weight: float) -> None:
        weights[name] = max(weights.get(name, 0.0), weight)

    for verdict in verdicts:
        first = verdict.suspects[0] if verdict.suspects else None
        for step in verdict.next:
            if isinstance(step, Step):
                for name in _changes_of(step, first):
                    add(name, _NAMED)
                    by_step.add(name)
        for rank, suspect in enumerate(verdict.suspects, start=1):
            for name in _part_of(suspect):
                add(name, _RELATED * suspect.confidence / rank)
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    return dict(sorted(positive.items(), key=lambda item: -item[1])), frozenset(by_step)


def _changes_of(step: Step, first: Suspect | None) -> list[str]:
    """Return what a step of the verdict would change."""
    if step.do is Action.SWITCH_PASS_OFF:
        return [f"{FUSION}:{step.command[-1]}"]
    of = {} if first is None else {
        OP: first.culprit, PRECISE: first.culprit, TYPE: first.op_type, MODULE: first.module.partition(" (")[0],
    }  # fmt: skip
    own = [f"{kind}:{of[kind]}" for kind in _OF_SUSPECT.get(step.do, ()) if of.get(kind)]
    return [*own, *_OF_STEP.get(step.do, ())]


def _part_of(suspect: Suspect) -> list[str]:
    """Return what a suspect is part of, and what its cause makes probable."""
    parts = [(FUSION, suspect.pass_name), (MODULE, suspect.module.partition(" (")[0])]
    if suspect.cause in (Cause.KERNEL, Cause.FUSION, Cause.CAST, Cause.OVERFLOW):
        parts += [(OP, suspect.culprit), (TYPE, suspect.op_type)]
    names = [f"{kind}:{of}" for kind, of in parts if of]
    if suspect.cause is Cause.RANDOM:
        names.append(_DETERMINISTIC)
    if suspect.cause is Cause.LOSS_SCALE:
        names.append(_LOSS_SCALE)
    return names


def lines_to_keep(document: Mapping[str, Any], path: str, *, is_pytorch: bool) -> list[str]:
    """Return the lines that keep changes in a shell, or in the training script.

    Parameters
    ----------
    document : mapping
        Of `Searched.switches`.
    path : str
        The file in which the document is, "" where it was not written.
    is_pytorch : bool
        Whether the script is known to be one of PyTorch; it is as well where only PyTorch has a change.

    Returns
    -------
    list of str
        Lines of a shell for a written file, else of Python; none for passes.
    """
    if path:
        return [f"export PRECISION_TOOL_SWITCHES={shlex.quote(path)}"]
    values = {name: value == "on" if value in ("on", "off") else value for name, value in document.items()}
    scale, types = values.pop("loss_scale", None), values.pop("float32_types", None)
    lines = [f"loss_scale = {str(float(scale)).removesuffix('.0')}"] if scale is not None else []
    is_pytorch = is_pytorch or any(name in PYTORCH_SWITCHES for name in values)
    for name in list(values) if is_pytorch else ():
        if name in _PYTORCH_LINES:
            value = values.pop(name)
            lines += [line.format(value) for line in _PYTORCH_LINES[name]]
    lines += [f"npu_tf_config.mixed_precision_list(black={types!r})  # action='mixlist'"] if types else []
    arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return lines + ([f"config = npu_tf_config.session_dump_config(config, {arguments})"] if arguments else [])


#: The lines of a script that keep a switch of PyTorch.
_PYTORCH_LINES = {
    "autocast": ('with torch.autocast("npu", enabled={}):', "    loss = criterion(model(inputs), labels)"),
    "float32_modules": (
        "import precision_tool.torch_config as npu_torch_config",
        "model = npu_torch_config.keep_in_float32(model, {!r})",
    ),
    "allow_hf32": ("torch.npu.matmul.allow_hf32 = torch.npu.conv.allow_hf32 = {}",),
    "deterministic": ("torch.use_deterministic_algorithms({})",),
    "allow_internal_format": ("torch.npu.config.allow_internal_format = {}",),
    "jit_compile": ("torch.npu.set_compile_mode(jit_compile={})",),
}  # fmt: skip
