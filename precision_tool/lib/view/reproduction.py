"""A reproduction for the kernel team: an op's inputs, attributes and outputs as files, and a script that compares them.

The script needs numpy and nothing of this package, so that it runs on any machine.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.dumped_ops import BenchmarkSide
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.diagnose.error_shape import DOUBT, SLACK, UNIT, Misfit, misfit
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula, noise_of
from precision_tool.lib.diagnose.minimize import (
    RUNS,
    Case,
    Kernel,
    KernelFailedError,
    Minimized,
    NotWrongError,
    minimize,
)
from precision_tool.lib.diagnose.op_settings import CallArguments, OpAttributes, with_shapes
from precision_tool.lib.diagnose.op_values import NoValueError, Root, RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.recorded_formulas import recorded_formulas
from precision_tool.lib.diagnose.sampling import folded_type, narrowing
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.io.files import folder_exists, list_folder, size_of
from precision_tool.lib.io.writing import new_folder
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, UsageError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input, NotComputedError, Output, reason_of
from precision_tool.lib.version import __version__
from precision_tool.lib.view.minimal_case import changed, minimized_document, single_op
from precision_tool.lib.view.op_screen import attribute_text
from precision_tool.lib.view.packed_columns import sound
from precision_tool.lib.view.repro_script import run_script
from precision_tool.lib.view.verdict_messages import reason_words

#: To be raised when a key of op.json changes its meaning or goes.
SCHEMA = 1
#: Elements of all tensors of an op that are written at most, and products that are computed.
_MOST_ELEMENTS, _MOST_WORK = 1 << 27, 2e11
#: Types that numpy has; others are written as float32, which holds them exactly.
_STORED = {
    "float16",
    "float32",
    "float64",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
#: Significant characters of an attribute.
_VALUE = 4000

#: The script that makes a recorded call again.
RUN_SCRIPT = "run.py"
#: The op as atc compiles it alone.
_SINGLE_OP = "single_op.json"
#: The files of an output beside the NPU's own, by their keys in op.json.
_OUTPUT_FILES = ("benchmark", "float64", "rounding", "beyond", "undecided", "stages", "stages_rounding")

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ReproOutput:
    """One output: as the NPU has it, the benchmark (None: it has not), and in float64 from the NPU's inputs.

    `sigma` is the rms of what rounding makes of each element; None where nothing was recomputed. `beyond` is True where
    the true result is beyond the type's range, `undecided` where it is at its edge, or at that of a step: the verdict
    calls neither wrong. `stages` is the output with each stage's result stored in its type, and `stages_sigma` what
    rounding makes of that (inf where nothing is compared): there where a chain is not right by `true`.
    """

    slot: int
    npu: Input
    benchmark: Array | None = None
    true: Array | None = None
    sigma: Array | None = None
    beyond: Array | None = None
    undecided: Array | None = None
    stages: Array | None = None
    stages_sigma: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Repro:
    """The reproduction of one op.

    `reason` says why it was not recomputed, None if it was; an element may be `slack` times its rounding off.
    """

    op: Op
    judged: OpResult
    #: Of a recorded call that of its framework.
    framework: str = ""
    inputs: Mapping[int, Input] = field(default_factory=dict)
    missing: Mapping[int, Message] = field(default_factory=dict)
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    outputs: Sequence[ReproOutput] = ()
    slack: float = 0.0
    reason: Message | None = None
    #: Of a case that was made smaller, how.
    minimized: Minimized | None = None


# --- what belongs to it -----------------------------------------------------------------------------------------------


def reproduction(run: RunGraph, op: Op, benchmark: BenchmarkSide, unfused: GraphFile | None = None) -> Repro:
    """Return the values of an op of a run, and what they should be.

    Parameters
    ----------
    run : RunGraph
        The run's graph and its folder of dump files.
    op : Op
        An op of that graph.
    benchmark : BenchmarkSide
        Finds the benchmark's tensors, which stand for inputs that were not dumped.
    unfused : GraphFile, optional
        The graph of a run without fusion, which tells the formula of a fused op.

    Returns
    -------
    Repro
        Inputs and outputs as stored, and the outputs in float64 where the op has a formula.

    Raises
    ------
    DataNotFoundError
        None of it was dumped.
    UsageError
        It is too large.
    """
    try:
        return _reproduction(run, op, benchmark, unfused)
    except MemoryError as error:
        raise _too_large(op) from error


def _too_large(op: Op, elements: int | None = None) -> UsageError:
    return UsageError("view.repro_too_large", op=op.name, elements=elements)


def _reproduction(run: RunGraph, op: Op, benchmark: BenchmarkSide, unfused: GraphFile | None) -> Repro:
    if run.leaf is None:
        raise DataNotFoundError("view.repro_no_dump", op=op.name)
    values = RunValues(run.leaf, run.file, benchmark)
    recomputer = Recomputer(values, unfused, ops=[op])
    outputs = recomputer.outputs(op)
    own = [values.tensor_at(slot) for slot in values.input_slots(op)]
    tensors = [*outputs.values(), *(tensor for tensor in own if isinstance(tensor, Tensor))]
    size = sum(tensor.size for tensor in tensors)
    if size > _MOST_ELEMENTS:
        raise _too_large(op, size)
    if not outputs:
        raise DataNotFoundError("view.repro_no_output", op=op.name)
    judged = recomputer.examine(op)
    op_inputs = recomputer.inputs_of(op)
    npu_outputs = []
    for slot, tensor in sorted(outputs.items()):
        desc = op.output_desc(slot)
        try:
            npu = values.load(tensor, desc)
        except NoValueError as error:
            place = f"{op.name}: output {slot}"
            raise FormatError.of(tensor.path, "view.repro_no_value", what=place, reason=error.reason) from error
        golden = values.load_benchmark(Root(op, slot))
        other = None if golden is None else golden.input.array
        npu_outputs.append(ReproOutput(slot=slot, npu=npu, benchmark=other if _fits(other, npu) else None))
    repro = Repro(
        op=op, judged=judged, framework=run.file.framework, inputs=op_inputs.inputs, missing=op_inputs.missing,
        elsewhere=op_inputs.elsewhere,
        outputs=npu_outputs, reason=judged.reason,
    )  # fmt: skip
    return repro if judged.formula is None else _recomputed(repro, judged.formula)


def _fits(array: Array | None, npu: Input) -> bool:
    return array is not None and array.size == npu.array.size


def _recomputed(repro: Repro, formula: Formula) -> Repro:
    """Return the reproduction with its outputs recomputed in float64."""
    try:
        work = formula.work(repro.inputs)
        if work > _MOST_WORK:
            return replace(repro, reason=Message("reason.too_many_products", number=work))
        true = formula.run(repro.inputs)
        noise = noise_of(formula, repro.inputs, true, folded_type(formula, repro.inputs) or "float32")
        u_in = narrowing(formula, repro.inputs)
        reference = _Reference(formula=formula, inputs=repro.inputs, noise=noise, u_in=u_in)
        outputs = [
            reference.with_reference(output, true[output.slot]) if output.slot in true else output
            for output in repro.outputs
        ]
    except NotComputedError as error:
        return replace(repro, reason=error.reason)
    except MemoryError:
        return replace(repro, reason=Message("reason.out_of_memory"))
    return replace(repro, outputs=outputs, slack=SLACK[formula.kind], reason=None)


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """Reference of outputs: `noise` is the error of a type inside, `u_in` the rounding of inputs."""

    formula: Formula
    inputs: Mapping[int, Input]
    noise: Mapping[int, Array]
    u_in: float

    def with_reference(self, output: ReproOutput, out: Output) -> ReproOutput:
        """Return an output with the correct one, compared as the verdict does it."""
        if out.array.size != output.npu.array.size:
            return output
        shape = output.npu.array.shape
        true = np.asarray(out.array)
        if true.dtype.kind == "c":
            return replace(output, true=true.reshape(shape))
        fit = self._fit(output, out)
        undecided = _undecided(fit)
        compared = replace(
            output,
            true=true.reshape(shape),
            sigma=fit.sigma.reshape(shape) if output.npu.dtype in UNIT else None,
            beyond=fit.over.reshape(shape) if fit.over.any() else None,
            undecided=undecided.reshape(shape) if undecided.any() else None,
        )
        if not fit.bad.any() or len(self.formula.stages) == 1 or output.npu.dtype not in UNIT:
            return compared
        stored = self.formula.run(self.inputs, output.npu.dtype)[output.slot]
        other = self._fit(output, stored)
        left_out = other.over | _undecided(other) | ~np.isfinite(other.true)
        return replace(
            compared,
            stages=other.true.reshape(shape),
            stages_sigma=np.where(left_out, inf, other.sigma).reshape(shape),
        )

    def _fit(self, output: ReproOutput, out: Output) -> Misfit:
        noise = self.noise.get(output.slot)
        return misfit(output.npu.array, out, output.npu.dtype, self.formula.kind, u_in=self.u_in, noise=noise)


# --- made smaller -----------------------------------------------------------------------------------------------------


def minimal_repro(
    repro: Repro, kernel: KernelOf | None = None, limit: int = RUNS, progress: Callable[[int, int], None] | None = None
) -> Repro:
    """Return the reproduction of the smallest case in which an op is still wrong.

    Parameters
    ----------
    repro : Repro
        The reproduction of the whole op.
    kernel : callable, optional
        Makes of a function, which returns the op of a case, a kernel as of `minimize`. Without one parts of what was
        dumped are taken.
    limit : int
        Runs of the kernel at most.
    progress : callable, optional
        Is called with the runs made, and how many there may be; without a kernel with the axes that were looked at.

    Raises
    ------
    UsageError
        The op has no formula, is right, or the kernel is right or puts out nothing for the op's own inputs.
    """
    op, formula = repro.op, repro.judged.formula
    if formula is None or repro.reason is not None:
        raise UsageError("view.not_minimized", op=op.name, reason=reason_words(repro.reason))
    settings = _settings(repro, formula)

    def op_of(case: Case) -> Op:
        return _op_of(op, settings, case)

    got = {output.slot: output.npu for output in repro.outputs if not np.iscomplexobj(output.npu.array)}
    try:
        minimized = minimize(
            settings, repro.inputs, got, None if kernel is None else kernel(op_of), limit=limit, progress=progress
        )
    except NotWrongError as error:
        raise UsageError("view.not_wrong" if kernel is None else "view.kernel_right", op=op.name) from error
    except KernelFailedError as error:
        raise UsageError("view.kernel_failed", reason=error.reason) from error
    except FORMULA_ERRORS as error:
        raise UsageError("view.not_minimized", op=op.name, reason=reason_words(reason_of(error))) from error
    if not minimized.is_at_any_size:  # else the kernel's fault need not be the dump's
        minimized = replace(minimized, as_if=minimized.as_if or repro.judged.variant)
    case = minimized.case
    smaller = replace(
        repro, op=op_of(case), inputs=case.inputs, minimized=minimized,
        judged=replace(repro.judged, state=State.WRONG), missing={},
        elsewhere=repro.elsewhere if kernel is None else {},
        outputs=[ReproOutput(slot=slot, npu=tensor) for slot, tensor in sorted(case.got.items())],
    )  # fmt: skip
    return _recomputed(smaller, case.formula)


#: Makes a kernel, given what returns the op of a case.
KernelOf = Callable[[Callable[[Case], Op]], Kernel]


def _settings(repro: Repro, formula: Formula) -> OpAttributes | CallArguments:
    """Return the settings of an op: the arguments of a recorded call if its formula can be made of them anew."""
    if repro.op.recorded is not None:
        with suppress(*FORMULA_ERRORS):
            made = list(recorded_formulas(repro.op, repro.op.recorded, repro.inputs, {}))
            which = next((number for number, other in enumerate(made) if other.shape == formula.shape), 0)
            settings = CallArguments(op=repro.op, recorded=repro.op.recorded, which=which)
            settings.formula(repro.inputs, {}).run(repro.inputs)
            return settings
    return OpAttributes(formula, repro.inputs)


def _op_of(op: Op, settings: OpAttributes | CallArguments, case: Case) -> Op:
    """Return the op with the attributes, or the arguments and shapes, of a case."""
    if isinstance(settings, OpAttributes) or op.recorded is None:
        stages = case.formula.stages
        attrs = {str(path[1]): stages[int(path[0])].attrs[str(path[1])] for path in case.changes}
        own = {name: value for name, value in attrs.items() if name in op.attrs}
        return replace(op, attrs={**op.attrs, **own}) if own else op
    shapes = ({slot: tensor.array.shape for slot, tensor in tensors.items()} for tensors in (case.inputs, case.got))
    recorded = with_shapes(settings.with_changes(case.changes), *shapes)
    calls = {name: recorded for name, value in op.attrs.items() if value is op.recorded}
    return replace(op, recorded=recorded, attrs={**op.attrs, **calls})


def _undecided(fit: Misfit) -> Array:
    """Return the elements that deviate, but are not called wrong."""
    with np.errstate(all="ignore"):
        off = ~(np.abs(fit.got - fit.true) <= fit.slack * fit.sigma) & np.isfinite(fit.true)
    undecided: Array = off & ~fit.bad & ~fit.over
    return undecided


# --- written ----------------------------------------------------------------------------------------------------------


def write_repro(folder: str, repro: Repro) -> str:
    """Write a reproduction to a new folder, which appears when it is complete; return its path.

    OutputError for one that is there already, and where it cannot be written.
    """
    if posixpath.lexists(folder) and not (folder_exists(folder) and not list_folder(folder)):
        raise OutputError.of(folder, "view.repro_exists")
    try:
        with new_folder(folder) as place:
            _write(place, repro)
    except OSError as error:
        raise OutputError.of(folder, "view.repro_not_written", why=error.strerror or str(error)) from error
    return folder


def _write(folder: str, repro: Repro) -> None:
    def save(name: str, array: Array) -> str:
        np.save(posixpath.join(folder, name), array, allow_pickle=False)
        return name

    inputs = [
        {**described(tensor), "slot": slot, "file": save(f"input_{slot}.npy", as_stored(tensor)),
         "from": repro.elsewhere.get(slot, "own")}
        for slot, tensor in sorted(repro.inputs.items())
    ]  # fmt: skip
    outputs = []
    for tensor in repro.outputs:
        stem = f"output_{tensor.slot}"
        outputs.append({
            **described(tensor.npu), "slot": tensor.slot, "npu": save(f"{stem}.npu.npy", as_stored(tensor.npu)),
            "benchmark": None if tensor.benchmark is None else save(
                f"{stem}.benchmark.npy", np.asarray(tensor.benchmark).reshape(tensor.npu.array.shape)
            ),
            "float64": None if tensor.true is None else save(f"{stem}.float64.npy", tensor.true),
            **{
                name: None if array is None else save(f"{stem}.{name}.npy", array)
                for name, array in (
                    ("rounding", tensor.sigma), ("beyond", tensor.beyond), ("undecided", tensor.undecided),
                    ("stages", tensor.stages), ("stages_rounding", tensor.stages_sigma),
                )
            },
        })  # fmt: skip
    op = repro.op
    document = {
        "schema": SCHEMA, "tool": f"precision_tool {__version__}", "op": op.name, "type": op.type,
        "fusion_passes": list(op.pass_names), "original_ops": list(op.original_names or ()), "kernel": op.kernel_name,
        "attributes": {name: attribute_text(op, name, _VALUE) for name in sorted(op.attrs)},
        "recomputed_as": list(repro.judged.how), "not_recomputed": reason_words(repro.reason),
        "state": str(repro.judged.state), "slack": repro.slack, "doubt": DOUBT, "inputs": inputs,
        "inputs_missing": {str(k): reason_words(v) for k, v in repro.missing.items()}, "outputs": outputs,
    }  # fmt: skip
    script = run_script(op, repro.framework, repro.inputs.keys())
    alone = None
    if repro.minimized is not None:
        told = minimized_document(repro.minimized)
        document["minimized"] = {**told, "sentence": render(told["sentence"])}
        alone = None if op.is_recorded else single_op(repro.minimized.case)
    if op.is_recorded:
        document |= {"module": op.module, "source": op.source, "framework": repro.framework}
    texts = {
        **({RUN_SCRIPT: script} if script else {}),
        **({_SINGLE_OP: json.dumps(alone, indent=1) + "\n"} if alone else {}),
        "op.json": json.dumps(sound(document), indent=1, ensure_ascii=False) + "\n",
        "check.py": _asset("repro_check.py.txt"),
        "README.md": _readme(
            sound(document),
            has_script=bool(script),
            is_alone=bool(alone),
            stages=0 if repro.minimized is None or op.is_recorded else len(repro.minimized.case.formula.stages),
        ),
    }
    for name, text in texts.items():
        with open(posixpath.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def described(tensor: Input) -> dict[str, Any]:
    """Return type, layout and shape of a tensor as JSON has them."""
    return {"dtype": tensor.dtype, "layout": tensor.layout, "shape": list(tensor.array.shape)}


def as_stored(tensor: Input) -> Array:
    """Return the array in the type that it was stored in, where numpy has that."""
    array = np.asarray(tensor.array)
    if array.dtype.kind != "f":
        return array
    return array.astype(tensor.dtype if tensor.dtype in _STORED else np.float32 if tensor.dtype in UNIT else np.float64)


def _asset(name: str) -> str:
    return (files("precision_tool.lib.view.assets") / name).read_text(encoding="utf-8")


def _readme(document: Mapping[str, Any], *, has_script: bool, is_alone: bool, stages: int) -> str:
    """Return what the files are, in the language in use; of a smallest case of several `stages` why atc has none."""
    op, kind = (str(document[name]).replace("`", "'")[:400] for name in ("op", "type"))
    outputs, minimized = document["outputs"], document.get("minimized")
    files_of_outputs = [name for name in _OUTPUT_FILES if any(output[name] for output in outputs)]
    items = [
        *[Message("repro.inputs")] * bool(document["inputs"]),
        Message("repro.description", how=tuple(document["recomputed_as"]), reason=document["not_recomputed"]),
        Message("repro.kernel" if minimized and minimized["runs"] else "repro.npu"),
        *(Message(f"repro.file.{name}") for name in files_of_outputs),
        Message("repro.check", recomputed="float64" in files_of_outputs),
        *[Message("repro.run")] * has_script,
        *[Message("repro.single_op", file=_SINGLE_OP)] * is_alone,
        *[Message("repro.no_single_op", file=_SINGLE_OP, count=stages)] * (stages > 1),
        Message("repro.arrays", slack=document["slack"] or None),
    ]
    title, origin = Message("repro.title", type=kind), Message("repro.origin", op=op, tool=document["tool"])
    said = []
    if minimized is not None:
        said = [render(Message("repro.minimal", sentence=minimized["sentence"], cut=minimized["is_cut"] or None)), ""]
        if minimized["changed"]:
            said += [render(changed(minimized["changed"])) + ".", ""]
    lines = [f"# {render(title)}", "", render(origin), "", *said, *(f"- {render(item)}" for item in items)]
    return "\n".join(lines) + "\n"


def repro_document(folder: str, repro: Repro) -> dict[str, Any]:
    """Return what `repro --json` prints of a reproduction that was written to a folder."""
    return {
        "folder": folder,
        "op": repro.op.name,
        "type": repro.op.type,
        "state": str(repro.judged.state),
        "not_recomputed": reason_words(repro.reason) or None,
        "files": {name: size_of(posixpath.join(folder, name)) for name in sorted(list_folder(folder))},
        "minimized": None if repro.minimized is None else minimized_document(repro.minimized),
    }
