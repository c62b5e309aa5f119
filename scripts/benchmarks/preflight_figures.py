"""How right `preflight` is: predicted overflows, sensitivities, sizes of sets, errors before and after, time, memory.

usage: preflight_figures.py [DUMP...]     (PRECISION_TOOL_MSPROBE: a Python with torch and msprobe, for the networks)

The networks are those of `preflight_networks.py`; folders of one rank and step by msprobe that are named come on top.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.data.sides import find_run
from precision_tool.lib.diagnose.emulation import Computed, Rounding, StepEmulator
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.preflight import preflight
from precision_tool.lib.diagnose.preflight_model import Risk, TypeForecast
from precision_tool.lib.diagnose.preflight_search import EXHAUSTIVE
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.model.graph import Op

NAMES = (
    "mlp", "cnn_batch_norm", "transformer", "text_conv", "large_logits", "large_variance", "deep_small", "attention",
    "large_targets", "gan",
)  # fmt: skip
LARGE = "resnet50"
DTYPE = "float16"
NARROW = Rounding(inputs=DTYPE, output=DTYPE)


def emulators(folder: str) -> list[StepEmulator]:
    """The steps of a folder, in order."""
    leaves = sorted(find_run(folder).leaves, key=lambda leaf: int(leaf.step or 0))
    return [StepEmulator(Recomputer(RunValues(leaf, read_msprobe_graph(leaf.graph), NoBenchmark()))) for leaf in leaves]


def in_half(computed: Computed) -> list[Any]:
    """What kernels of single ops compute on their way, in float16 itself: another way than `intermediates`."""
    word = computed.op.type.rsplit(".", 1)[-1]
    tensors = [given.array for _, given in sorted(computed.inputs.items()) if given.array.dtype.kind == "f"]
    if not tensors:
        return []
    x = tensors[0].astype(np.float16)
    if word == "layer_norm":
        centred = x - x.mean(-1, keepdims=True, dtype=np.float32).astype(np.float16)
        return [centred * centred]
    if word == "mse_loss":
        square = (x - tensors[1].astype(np.float16)) ** 2
        return [square, np.add.reduce(square.reshape(-1), dtype=np.float16)]
    if word == "softplus":
        return [np.exp(x)]
    if word == "gelu":
        return [x * x * x]
    if word in ("softmax", "cross_entropy", "log_softmax"):
        return [np.add.reduce(np.exp(x - x.max(-1, keepdims=True)), axis=-1, dtype=np.float16)]
    if word == "mean":
        axis = tuple(range(x.ndim)) if computed.unrounded[0].ndim == 0 else x.ndim - 1
        return [np.add.reduce(x, axis=axis, dtype=np.float16)]
    return []


def overflows(emulator: StepEmulator) -> tuple[set[str], set[str]]:
    """Ops that overflow when every op is in float16, and those that can be judged: with finite inputs."""
    bad: set[str] = set()
    judged: set[str] = set()

    def look(computed: Computed) -> None:
        if not all(
            np.isfinite(given.array).all() for given in computed.inputs.values() if given.array.dtype.kind == "f"
        ):
            return
        judged.add(computed.op.name)
        with np.errstate(all="ignore"):
            arrays = [*computed.outputs.values(), *in_half(computed)]
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            bad.add(computed.op.name)

    emulator.run(lambda op: NARROW, on_op=look)
    return bad, judged


def rounded_alone(chosen: Op, op: Op) -> Rounding | None:
    """How an op is computed when one alone is in float16."""
    return NARROW if op is chosen else None


def true_changes(emulator: StepEmulator, names: list[str]) -> list[float]:
    """How each op, alone in float16, changes the loss."""
    loss = emulator.loss
    assert loss is not None
    plain = float(emulator.run(wanted=[loss]).values[loss.key].reshape(-1)[0])
    by_name = {op.name: op for op in emulator.ops}
    found = []
    for name in names:
        chosen = by_name[name]
        run = emulator.run(partial(rounded_alone, chosen), wanted=[loss])
        found.append(abs(float(run.values[loss.key].reshape(-1)[0]) - plain))
    return found


def above_noise(loss: float, found: list[float], true: list[float]) -> tuple[list[float], list[float]]:
    """The changes that are more than float32's own rounding of the loss, which ranks by chance."""
    pairs = [pair for pair in zip(found, true, strict=True) if max(pair[0], pair[1] / loss) > 8 * 2.0**-24]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's."""
    if len(first) < 3:
        return float("nan")
    ranks = [np.argsort(np.argsort(np.asarray(values))) for values in (first, second)]
    return float(np.corrcoef(ranks[0].astype(float), ranks[1].astype(float))[0, 1])


def sizes_of(forecast: TypeForecast, bound_loss: float, bound_gradients: float) -> tuple[int, int | None]:
    """Size of the set without the search through all smaller ones, and of the smallest."""
    within = [
        len(step.float32) for step in forecast.steps
        if not step.errors.loss > bound_loss and not step.errors.gradients > bound_gradients
        and not np.isnan(step.errors.gradients)
    ]  # fmt: skip
    if forecast.smallest is not None and within and within[-1] == forecast.smallest and len(within) > 1:
        within = within[:-1] if min(within[:-1]) > forecast.smallest else within
    return min(within, default=len(forecast.kept)), forecast.smallest


def main() -> None:
    """Print the table."""
    python = os.environ.get("PRECISION_TOOL_MSPROBE")
    with tempfile.TemporaryDirectory() as folder:
        steps: list[tuple[str, StepEmulator]] = []
        names = (*NAMES, LARGE)
        if python:
            script = str(Path(__file__).with_name("preflight_networks.py"))
            subprocess.run(
                [python, script, folder, *names], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            steps += list(zip(names, emulators(folder), strict=True))
        steps += [(path, emulator) for path in sys.argv[1:] for emulator in emulators(path)]
        hits = predicted_all = true_all = 0
        heads = ("ops", "predicted/true/both", "rank corr.", "loss error", "with kept", "kept", "greedy/smallest", "s")
        print(f"{'network':16}", *(f"{head:>{max(8, len(head))}}" for head in heads))
        for name, emulator in steps:
            started = time.monotonic()
            result = preflight(emulator, ("float16", "bfloat16") if name == LARGE else (DTYPE,))
            seconds = time.monotonic() - started
            forecast = result.types[0]
            if name == LARGE:
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                print(f"{name}: {result.ops} ops, {seconds:.0f} s for both types, {peak} MB at most, "
                      f"{[len(kind.steps) for kind in result.types]} emulations")  # fmt: skip
                continue
            bad, judged = overflows(emulator)
            listed = {found.name for found in forecast.ranges}
            beyond = {Risk.OVERFLOW, Risk.OVERFLOW_INSIDE}
            predicted = {found.name for found in forecast.ranges if beyond & set(found.risks)} & judged
            bad &= listed
            hits, predicted_all, true_all = (
                hits + len(predicted & bad),
                predicted_all + len(predicted),
                true_all + len(bad),
            )
            known = [
                found for found in forecast.sensitivities
                if found.by == "adjoint" and np.isfinite(found.loss) and found.loss > 0
            ]  # fmt: skip
            changes = true_changes(emulator, [found.name for found in known])
            correlation = rank_correlation(*above_noise(abs(result.loss), [found.loss for found in known], changes))
            sizes = ""
            units = len({found.name.rsplit(".", 1)[0] for found in forecast.ranges})
            before = forecast.all_narrow
            if units <= EXHAUSTIVE and np.isfinite(before.loss) and before.loss:
                bounds = before.loss / 8, before.gradients / 2
                tight = preflight(emulator, (DTYPE,), bound_loss=bounds[0], bound_gradients=bounds[1]).types[0]
                sizes = "{}/{}".format(*sizes_of(tight, *bounds))
            counts = f"{len(predicted)}/{len(bad)}/{len(predicted & bad)}"
            print(
                f"{name[-16:]:16} {result.ops:8} {counts:>19} {correlation:10.3f} {before.loss:10.2e}",
                f"{forecast.with_kept.loss:9.2e} {len(forecast.kept):8} {sizes:>15} {seconds:8.1f}",
            )
        print(f"overflows: precision {hits}/{predicted_all}, recall {hits}/{true_all}")


main()
