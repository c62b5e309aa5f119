"""Sets of trees: which network, device and fault each has, simulated, written, and the truth beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from devices.compiler import Compiler, Kernel, Options
from devices.families import FAMILIES
from devices.faults import FAULTS, Scene, Truth, Wrong, wrong
from devices.numerics import MODELS, Array, Device, Host, seeded
from devices.script import OPTIMIZERS, Ref, Script, golden_values
from devices.simulation import Faults, simulate
from devices.writer import Left, write_tree

DEVICES = ("ideal", *MODELS)
DEGRADATIONS = ("outputs", "missing", "alone")
#: Faults that leave no trace where this is missing: without a benchmark other values are no error of an op, and without
#: inputs no copy of a tensor shows that it was overwritten between two ops.
_INVISIBLE = {"alone": ("input", "weights", "random"), "outputs": ("stomp",)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One tree: everything that it is made from."""

    tree: str
    seed: int
    family: str
    device: str
    device_seed: int
    fault: str | None = None
    degraded: str | None = None
    second: str | None = None


def plans(
    *, count: int, seed: int, devices: Sequence[str], faults: Sequence[str], clean: float, families: Sequence[str] = (),
    degraded: Sequence[str] = (), second: Sequence[str] = (),
) -> list[Plan]:  # fmt: skip
    """Return the plans of a set: families, devices, faults and degradations each as often as the others, mixed."""
    rng = seeded("plans", seed)

    def mixed(choices: Sequence[Any]) -> list[Any]:
        repeated = [choices[number % len(choices)] for number in range(count)]
        return [repeated[place] for place in rng.permutation(count)]

    number_clean = round(count * clean) if faults else count
    kinds = [None if number < number_clean else faults[number % len(faults)] for number in range(count)]

    def visible(fault: str | None, how: str | None) -> str | None:
        hidden = _INVISIBLE.get(how or "", ())
        return str(rng.choice([kind for kind in faults if kind not in hidden])) if fault in hidden else fault

    columns = zip(
        mixed(list(families or FAMILIES)),
        mixed(devices),
        mixed(kinds),
        mixed(list(degraded) or [None]),
        mixed(list(second) or [None]),
        strict=True,
    )
    return [
        Plan(tree=f"t{number:04d}", seed=seed * 100_003 + number, family=family, device=device, device_seed=seed,
             fault=visible(fault, how), degraded=how, second=again)
        for number, (family, device, fault, how, again) in enumerate(columns)
    ]  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A tree as it was made."""

    truth: dict[str, Any]
    files: int


def make(plan: Plan, folder: Path) -> Made:
    """Simulate a plan and write its tree; a network without a place for the fault is replaced by another."""
    families = list(FAMILIES)
    for attempt in range(60):
        # The planned family three times, then the others.
        family = plan.family if attempt < 3 else families[(families.index(plan.family) + attempt) % len(families)]
        made = _attempt(replace(plan, family=family), attempt, folder)
        if made is not None:
            return made
    raise RuntimeError(f"no place for {plan.fault} in any network")


def _attempt(plan: Plan, attempt: int, folder: Path) -> Made | None:
    rng = seeded(plan.seed, attempt)
    mixed = bool(rng.random() < 0.5) or plan.fault in ("overflow", "masked_nan")
    saturates = bool(rng.random() < 0.5) and plan.fault != "masked_nan"
    model = MODELS.get(plan.device)
    device = Device(model, plan.device_seed, saturates, run=plan.seed)
    host = [None, Host(), Host(chains=True)][int(rng.integers(3 if model else 2))]
    script = Script(int(rng.integers(1 << 30)))
    loss = FAMILIES[plan.family](script)
    # A factor that is divided out again cannot be told from a loss scale without a benchmark.
    scale = 128.0 if mixed and plan.degraded != "alone" else 1.0
    script.train(loss, str(rng.choice(OPTIMIZERS)), scale)
    options = Options(
        mixed=mixed, fuses=bool(rng.random() < 0.75), formats=bool(rng.random() < 0.6), folds=bool(rng.random() < 0.5)
    )
    kernels: Mapping[str, Kernel] = Compiler(script, options).compile()
    run = simulate(kernels, device, sources={})
    golden = golden_values(script.nodes, host)
    if not all(np.isfinite(array).all() for array in run.outputs.values() if array.dtype.kind == "f"):
        return None
    fault = Wrong(truth=Truth())
    if plan.fault is not None:
        scene = Scene(script, kernels, device, run, golden, mixed, rng)
        found = wrong(scene, plan.fault)
        if found is None:
            return None
        fault = found
        kernels = found.kernels or kernels
        run = simulate(kernels, device, found.faults, sources=found.npu)
        golden = golden_values(_with(script, found.golden), host)
    left = _left(plan, kernels, fault.truth, rng)
    files = write_tree(folder / plan.tree, kernels, run, golden, left)
    remains = None
    if plan.second is not None:
        again = kernels if plan.second == "repeat" else Compiler(script, replace(options, fuses=False)).compile()
        found_again, remains = _again(fault, again, rng)
        if plan.second == "unfused" and not remains and fault.truth.sub in _IN_OUTPUTS and rng.random() < 0.4:
            fault, found_again = _not_by_fusion(fault, kernels)
            remains = True
        sources = dict(fault.npu)
        if fault.truth.cause == "random":
            sources = {ref: rng.random(value.shape).astype(np.float32) for ref, value in sources.items()}
        other = simulate(again, replace(device, run=plan.seed + 1), found_again, sources=sources)
        write_tree(folder / plan.tree, again, other, {}, replace(left, benchmark=False), "debug_1")
    return Made(_truth(plan, fault.truth, mixed, saturates, options, host) | {"fault_in_debug_1": remains}, files)


#: Faults of a fused op that its last part may have on its own.
_IN_OUTPUTS = ("tail_tile", "shift", "channel", "constant", "approx")


def _not_by_fusion(fault: Wrong, kernels: Mapping[str, Kernel]) -> tuple[Wrong, Faults]:
    """The fault of a fused op as one of its last part, which has it without fusion too; and the faults of that run."""
    last_of = {name: (kernels[name].originals or (name,))[-1] for name in fault.truth.accept}
    tampers = {last_of[name]: tamper for name, tamper in fault.faults.tampers.items()}
    truth = replace(
        fault.truth, cause="kernel" if fault.truth.cause == "fusion" else fault.truth.cause, made_by=None,
        accept=(*fault.truth.accept, *last_of.values()), note=f"{fault.truth.note}; without fusion it is there too",
    )  # fmt: skip
    return replace(fault, truth=truth), Faults(tampers)


def _again(fault: Wrong, kernels: Mapping[str, Kernel], rng: np.random.Generator) -> tuple[Faults, bool]:
    """What is wrong in a second run: the same, as far as its ops are there; and whether that is so."""
    tampers = {name: tamper for name, tamper in fault.faults.tampers.items() if name in kernels}
    stomps = {place: change for place, change in fault.faults.stomps.items() if place[0] in kernels}
    is_whole = len(tampers) == len(fault.faults.tampers) and len(stomps) == len(fault.faults.stomps)
    missing = fault.kernels is not None and not all(name in kernels for name in fault.truth.accept)
    return Faults(tampers, stomps), is_whole and not missing and fault.truth.cause != "none"


def _with(script: Script, values: Mapping[Ref, Array]) -> Mapping[str, Any]:
    nodes = dict(script.nodes)
    for (name, index), value in values.items():
        node = nodes[name]
        changed = tuple(value if i == index else old for i, old in enumerate(node.values))
        nodes[name] = replace(node, values=changed)
    return nodes


def _left(plan: Plan, kernels: Mapping[str, Kernel], truth: Truth, rng: np.random.Generator) -> Left:
    """What a degraded tree keeps. The files of the ops to blame stay: without them nobody could tell."""
    if plan.degraded == "outputs":
        return Left(inputs=False)
    if plan.degraded == "alone":
        return Left(benchmark=False)
    if plan.degraded == "missing":
        names = [name for name in kernels if name not in truth.accept]
        return Left(without={name for name in names if rng.random() < 0.3})
    return Left()


def _truth(
    plan: Plan, truth: Truth, mixed: bool, saturates: bool, options: Options, host: Host | None
) -> dict[str, Any]:
    return {
        "tree": plan.tree, "cause": truth.cause, "causes": list(truth.causes or (truth.cause,)), "sub": truth.sub,
        "culprit": truth.culprit, "accept": list(truth.accept), "pass": truth.made_by, "type": truth.op_type,
        "net": plan.family, "device": plan.device, "device_seed": plan.device_seed, "fault": plan.fault,
        "precision": "mix" if mixed else "fp32", "mode": "saturate" if saturates else "infnan", "second": plan.second,
        "degraded": plan.degraded, "fused": options.fuses, "layouts": options.formats,
        "host": "exact" if host is None else "chains" if host.chains else "float32", "note": truth.note,
    }  # fmt: skip


def write_set(folder: Path, listed: Sequence[Plan], processes: int = 1) -> None:
    """Write the trees of a set, their truth and the index."""
    (folder / "truth").mkdir(parents=True, exist_ok=True)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            results = list(pool.map(make, listed, [folder] * len(listed)))
    else:
        results = [make(plan, folder) for plan in listed]
    trees = []
    for made in results:
        (folder / "truth" / f"{made.truth['tree']}.json").write_text(json.dumps(made.truth, indent=1) + "\n")
        keys = ("tree", "cause", "culprit", "pass", "net", "device", "precision", "mode", "second", "note")
        trees.append({key: made.truth[key] for key in keys} | {"files": made.files})
    (folder / "index.json").write_text(json.dumps({"count": len(trees), "trees": trees}, indent=1) + "\n")


__all__ = ["DEGRADATIONS", "DEVICES", "FAMILIES", "FAULTS", "Made", "Plan", "make", "plans", "write_set"]
