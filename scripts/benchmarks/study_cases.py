"""The studies: networks, ranks, steps, devices, and what is wrong in each; `write_case` makes one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from study_machine import DEVICES, Fault, Job, Struck, Writer
from study_networks import NETWORKS, Feeding

from precision_tool.lib.demo.dump_writer import Array

TRUTH = "truth.json"
#: What a study may call each cause; the first is the word of the truth.
ACCEPTED: dict[str, tuple[str, ...]] = {
    "kernel": ("kernel", "device"),
    "communication": ("communication", "device", "kernel"),
    "weights": ("weights", "variable"),
    "optimizer_state": ("optimizer_state", "weights", "variable"),
    "learning_rate": ("learning_rate", "rate", "weights", "variable"),
    "data": ("data", "input"),
    "same_batch": ("same_batch", "same_data", "data", "input"),
    "shifted": ("shifted", "shifted_steps", "steps"),
}


# --- what faults do ---------------------------------------------------------------------------------------------------

Spoil = Callable[[list[Array], Struck], None]


def lose_tail(share: float = 0.25) -> Spoil:
    """The last part of the first output stays zero: a tile that is not written."""

    def spoil(outputs: list[Array], _: Struck) -> None:
        flat = outputs[0].reshape(-1)
        flat[-max(1, int(flat.size * share)) :] = 0

    return spoil


def lose_columns(count: int) -> Spoil:
    """The last columns of the first output are those before them: a wrong offset of the last tile."""

    def spoil(outputs: list[Array], _: Struck) -> None:
        outputs[0][..., -count:] = outputs[0][..., -2 * count : -count].copy()

    return spoil


def some_nan(outputs: list[Array], struck: Struck) -> None:
    """Three elements are NaN."""
    flat = outputs[0].reshape(-1)
    flat[np.random.default_rng([struck.rank, struck.step]).choice(flat.size, 3, replace=False)] = np.nan


def flip_bits(outputs: list[Array], struck: Struck) -> None:
    """In a few elements a bit of the exponent is another."""
    flat = outputs[0].reshape(-1)
    places = np.random.default_rng([struck.rank, struck.step, 1]).choice(flat.size, 4, replace=False)
    if flat.dtype == np.float32:
        flat.view(np.uint32)[places] ^= np.uint32(1 << 25)
    else:
        flat.view(np.uint16)[places] ^= np.uint16(1 << 12)


def keep_old(outputs: list[Array], struck: Struck) -> None:
    """The last rows of an update are not written: they are as before."""
    rows = max(1, len(outputs[0]) // 4)
    outputs[0][-rows:] = struck.inputs[0][-rows:]


def scale(factor: float) -> Spoil:
    """All elements are off by a factor."""

    def spoil(outputs: list[Array], _: Struck) -> None:
        outputs[0][...] = outputs[0] * outputs[0].dtype.type(factor)

    return spoil


def _last_part(array: Array, ranks: int) -> slice:
    return slice(-max(1, array.size // ranks), None)


def not_summed(outputs: list[Array], struck: Struck) -> None:
    """The last part of the ring did not arrive: the rank keeps what it put in."""
    part = _last_part(outputs[0], len(struck.group))
    outputs[0].reshape(-1)[part] = struck.inputs[0].reshape(-1)[part]


def without(rank: int) -> Spoil:
    """What one rank puts into the last part of a sum is lost, for all ranks alike."""

    def spoil(outputs: list[Array], struck: Struck) -> None:
        part = _last_part(outputs[0], len(struck.group))
        others = [struck.of_all[r][0].reshape(-1)[part] for r in struck.group if r != rank]
        total = others[0].copy()
        for other in others[1:]:
            total = total + other
        outputs[0].reshape(-1)[part] = total

    return spoil


def not_reduced(outputs: list[Array], struck: Struck) -> None:
    """The rank goes on with its own part of the sum."""
    outputs[0][...] = struck.inputs[0]


def swapped_parts(outputs: list[Array], struck: Struck) -> None:
    """Two parts of what was gathered are exchanged."""
    parts = np.array_split(outputs[0].copy(), len(struck.group))
    parts[0], parts[1] = parts[1], parts[0]
    outputs[0][...] = np.concatenate(parts)


def of_neighbour(outputs: list[Array], struck: Struck) -> None:
    """The rank has the next rank's part of the sum."""
    total = sum(struck.of_all[r][0].astype(np.float64) for r in struck.group)
    place = (struck.group.index(struck.rank) + 1) % len(struck.group)
    outputs[0][...] = np.split(np.asarray(total), len(struck.group))[place]


def stale(outputs: list[Array], struck: Struck) -> None:
    """All is as it was in the step before."""
    assert struck.before is not None
    outputs[0][...] = struck.before[0]


def one_bit(outputs: list[Array], struck: Struck) -> None:
    """One element, the largest, loses its sign."""
    flat = outputs[0].reshape(-1)
    place = int(np.abs(flat).argmax())
    flat[place] = -flat[place]


def part_without(rank: int) -> Spoil:
    """What one rank puts in is missing from another's part of a sum."""

    def spoil(outputs: list[Array], struck: Struck) -> None:
        total = sum(struck.of_all[r][0].astype(np.float64) for r in struck.group if r != rank)
        outputs[0][...] = np.split(np.asarray(total), len(struck.group))[struck.group.index(struck.rank)]

    return spoil


def stale_part(number: int) -> Spoil:
    """One part of what was gathered is that of the step before."""

    def spoil(outputs: list[Array], struck: Struck) -> None:
        assert struck.before is not None
        old = np.split(struck.before[0], len(struck.group))[number]
        np.split(outputs[0], len(struck.group))[number][...] = old

    return spoil


# --- studies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study. `step`, `at` (ranks), `ops` and `cause` are right answers; a clean one has no `cause`."""

    name: str
    network: str
    ranks: int
    steps: int
    device: str
    bench: Sequence[int] = ()
    cause: str = ""
    step: int = 0
    at: Sequence[int] = ()
    #: The first is what is wrong; others are acceptable too.
    ops: Sequence[str] = ()
    spoil: Spoil | None = None
    #: Steps with the fault, by default the one.
    lasts: Sequence[int] | None = None
    starts: Mapping[tuple[str, int], Callable[[Array], Array]] = field(default_factory=dict)
    own_attrs: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    feeding: Mapping[str, Any] = field(default_factory=dict)
    writer: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    #: (rank, step or None for all, text in the name of the op or "" for all): files that are not there.
    missing: Sequence[tuple[int, int | None, str]] = ()
    #: Of the issue, which item decides it.
    item: str = ""
    #: Other right answers.
    alternatives: Sequence[Mapping[str, Any]] = ()
    note: str = ""


def _other(array: Array) -> Array:
    """Values of the same spread from another seed."""
    return np.asarray(np.random.default_rng(77).standard_normal(array.shape) * array.std())


def _raw_pixels(_: int, array: Array) -> Array:
    """Images as bytes come, not normalised."""
    return np.asarray(np.clip(array * 64 + 128, 0, 255))


def _raw_later(step: int, array: Array) -> Array:
    return _raw_pixels(step, array) if step >= 1 else array


def _updates(network: str, variable: str) -> str:
    word, kind = {"mlp_adam": ("Adam", "ApplyAdam"), "recurrent": ("GradientDescent", "ApplyGradientDescent")}.get(
        network, ("Momentum", "ApplyMomentum")
    )
    return f"{word}/update_{variable}/{kind}"


def _sum(variable: str) -> str:
    return f"NPUDistributedOptimizer/allreduce_{variable}/HcomAllReduce"


_RATE_OPS = ("learning_rate", "learning_rate_decay/Mul")
_BACK = (4299, 4240, 4271, 4203, 4288, 4215, 4266, 4231, 4301, 4250, 4277, 4208, 4291, 4220, 4260, 4239)

CASES: tuple[Case, ...] = (
    # --- clean ---
    Case(name="c01", network="mlp_adam", ranks=4, steps=3, device="ideal", bench=(0,), item="1"),
    Case(name="c02", network="transformer", ranks=4, steps=2, device="imprecise", bench=(0,), item="1"),
    Case(name="c03", network="convnet", ranks=8, steps=3, device="imprecise", item="1"),
    Case(name="c04", network="recurrent", ranks=4, steps=3, device="outliers", item="1"),
    Case(name="c05", network="tensor_parallel", ranks=8, steps=2, device="ideal", bench=range(8), item="4"),
    Case(
        name="c06",
        network="tensor_parallel",
        ranks=8,
        steps=3,
        device="imprecise",
        bench=(5,),
        item="4",
        options={"same_names": True},
    ),
    Case(
        name="c07",
        network="pipeline",
        ranks=6,
        steps=2,
        device="imprecise",
        bench=(2,),
        options={"stages": 3},
        item="1",
    ),
    Case(name="c08", network="experts", ranks=8, steps=2, device="outliers", item="1"),
    Case(name="c09", network="sharded_update", ranks=4, steps=2, device="ideal", writer={"pids": _BACK}, item="2"),
    Case(name="c10", network="transformer", ranks=16, steps=2, device="outliers", bench=(9,), item="1"),
    Case(
        name="c11",
        network="mlp_adam",
        ranks=6,
        steps=3,
        device="imprecise",
        item="4",
        missing=((2, 1, "HcomAllReduce"), (4, 2, "")),
        note="rank 2 lacks its all-reduces in step 1, rank 4 the whole step 2",
    ),
    Case(
        name="c12",
        network="recurrent",
        ranks=5,
        steps=2,
        device="imprecise",
        missing=((1, None, ""),),
        item="4",
        note="nothing of rank 1 was copied from its machine",
    ),
    Case(name="c13", network="convnet", ranks=4, steps=2, device="imprecise", writer={"statistics": True}, item="1"),
    Case(
        name="c14",
        network="transformer",
        ranks=6,
        steps=2,
        device="outliers",
        options={"half": False},
        item="2",
        own_attrs={("norm1/LayerNorm", 2): {"epsilon": 1e-3}},
        writer={"pids": _BACK},
        alternatives=({"at": (2,), "ops": ("norm1/LayerNorm",), "causes": ("arguments", "attribute", "graph")},),
        note="rank 2's own graph has another epsilon, and its dump is what that graph computes",
    ),
    # --- faults of an op ---
    Case(
        name="f01",
        network="mlp_adam",
        ranks=4,
        steps=3,
        device="ideal",
        bench=(0,),
        cause="kernel",
        step=1,
        at=(2,),
        ops=(_updates("mlp_adam", "fc2/kernel"),),
        spoil=keep_old,
        item="1",
    ),
    Case(
        name="f02",
        network="transformer",
        ranks=8,
        steps=2,
        device="imprecise",
        cause="kernel",
        step=1,
        at=(5,),
        ops=("ffn1/Gelu",),
        spoil=lose_tail(0.125),
        item="1",
    ),
    Case(
        name="f03",
        network="transformer",
        ranks=4,
        steps=2,
        device="imprecise",
        bench=(0,),
        cause="kernel",
        at=range(4),
        ops=("attention/probs/Softmax",),
        spoil=lose_columns(2),
        lasts=(0, 1),
        item="1",
    ),
    Case(
        name="f04",
        network="convnet",
        ranks=4,
        steps=3,
        device="outliers",
        cause="kernel",
        step=2,
        at=(1,),
        ops=("conv2/bn/FusedBatchNormV3_BNTrainingUpdate",),
        spoil=some_nan,
        item="1",
    ),
    Case(
        name="f05",
        network="convnet",
        ranks=8,
        steps=2,
        device="imprecise",
        bench=(3,),
        cause="kernel",
        step=1,
        at=range(8),
        ops=("gradients/conv2/Conv2D_grad/Conv2DBackpropFilter",),
        spoil=lose_tail(0.1),
        item="1",
    ),
    Case(
        name="f06",
        network="recurrent",
        ranks=4,
        steps=3,
        device="ideal",
        cause="kernel",
        at=(3,),
        ops=("gradients/rnn/time1/Tanh_grad/TanhGrad",),
        spoil=flip_bits,
        item="1",
    ),
    # --- collectives ---
    Case(
        name="f07",
        network="mlp_adam",
        ranks=8,
        steps=2,
        device="outliers",
        cause="communication",
        step=1,
        at=(6,),
        ops=(_sum("fc1/kernel"),),
        spoil=not_summed,
        item="4",
    ),
    Case(
        name="f08",
        network="mlp_adam",
        ranks=4,
        steps=2,
        device="imprecise",
        bench=(0,),
        cause="communication",
        at=range(4),
        ops=(_sum("fc2/kernel"),),
        spoil=without(1),
        item="4",
    ),
    Case(
        name="f09",
        network="recurrent",
        ranks=6,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(4,),
        ops=("embedding/HcomAllGather",),
        spoil=swapped_parts,
        item="4",
    ),
    Case(
        name="f10",
        network="recurrent",
        ranks=4,
        steps=2,
        device="ideal",
        cause="communication",
        at=(2,),
        ops=("gradients/embedding/HcomReduceScatter",),
        spoil=of_neighbour,
        item="4",
    ),
    # --- weights, data, learning rate ---
    Case(
        name="f11",
        network="transformer",
        ranks=4,
        steps=3,
        device="ideal",
        cause="weights",
        at=(3,),
        ops=("attention/key/kernel",),
        starts={("attention/key/kernel", 3): _other},
        item="3",
    ),
    Case(
        name="f12",
        network="convnet",
        ranks=6,
        steps=2,
        device="imprecise",
        bench=(0,),
        cause="weights",
        at=(0,),
        ops=("conv2/kernel",),
        starts={("conv2/kernel", 0): _other},
        item="3",
    ),
    Case(
        name="f13",
        network="mlp_adam",
        ranks=4,
        steps=2,
        device="outliers",
        bench=range(4),
        cause="data",
        step=1,
        at=(2,),
        ops=("IteratorGetNext",),
        feeding={"data": {2: _raw_later}},
        item="3",
    ),
    Case(
        name="f14",
        network="convnet",
        ranks=4,
        steps=2,
        device="imprecise",
        cause="data",
        at=(1,),
        ops=("IteratorGetNext",),
        feeding={"data": {1: _raw_pixels}},
        item="3",
    ),
    Case(
        name="f15",
        network="recurrent",
        ranks=4,
        steps=2,
        device="ideal",
        cause="same_batch",
        at=range(4),
        ops=("IteratorGetNext",),
        feeding={"same_batch": True},
        item="3",
    ),
    Case(
        name="f16",
        network="mlp_adam",
        ranks=4,
        steps=3,
        device="imprecise",
        cause="learning_rate",
        at=(1,),
        ops=_RATE_OPS,
        feeding={"rates": {1: 0.1}},
        item="3",
    ),
    Case(
        name="f17",
        network="tensor_parallel",
        ranks=8,
        steps=2,
        device="outliers",
        cause="learning_rate",
        at=(6,),
        ops=_RATE_OPS,
        feeding={"rates": {6: 0.01}},
        item="3",
    ),
    # --- files missing, shifted steps ---
    Case(
        name="f18",
        network="transformer",
        ranks=6,
        steps=2,
        device="ideal",
        cause="kernel",
        step=1,
        at=(4,),
        ops=(_updates("transformer", "ffn2/kernel"),),
        spoil=keep_old,
        item="4",
        missing=((2, 1, "update_ffn2"), (5, 0, "")),
        note="rank 2 lacks that update in step 1, rank 5 the whole step 0",
    ),
    Case(
        name="f19",
        network="mlp_adam",
        ranks=4,
        steps=4,
        device="ideal",
        cause="shifted",
        at=(2,),
        step=1,
        writer={"first_steps": {2: 1}},
        item="5",
    ),
    Case(
        name="f20",
        network="convnet",
        ranks=5,
        steps=3,
        device="imprecise",
        cause="shifted",
        at=(0,),
        step=1,
        writer={"first_steps": {0: 1}},
        item="5",
    ),
    # --- groups, pipeline, experts, graphs by device ---
    Case(
        name="f21",
        network="tensor_parallel",
        ranks=8,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(3,),
        ops=("row/HcomAllReduce",),
        spoil=not_reduced,
        options={"same_names": True},
        item="4",
    ),
    Case(
        name="f22",
        network="tensor_parallel",
        ranks=4,
        steps=2,
        device="ideal",
        bench=(0,),
        cause="kernel",
        at=(1,),
        ops=("column/Gelu",),
        spoil=lose_tail(0.2),
        options={"half": True},
        item="1",
    ),
    Case(
        name="f23",
        network="pipeline",
        ranks=4,
        steps=2,
        device="outliers",
        cause="kernel",
        step=1,
        at=(3,),
        ops=("stage1/a/MatMul",),
        spoil=lose_columns(3),
        item="1",
    ),
    Case(
        name="f24",
        network="pipeline",
        ranks=6,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(3,),
        ops=(_sum("stage1/b/kernel"),),
        spoil=not_summed,
        options={"stages": 3},
        item="4",
    ),
    Case(
        name="f25",
        network="experts",
        ranks=8,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(5,),
        ops=("combine/HcomAllToAll",),
        spoil=swapped_parts,
        item="4",
    ),
    Case(
        name="f26",
        network="experts",
        ranks=4,
        steps=3,
        device="outliers",
        bench=(2,),
        cause="kernel",
        step=1,
        at=(2,),
        ops=("expert/up/MatMul",),
        spoil=lose_tail(0.1),
        item="6",
    ),
    Case(
        name="f27",
        network="sharded_update",
        ranks=4,
        steps=2,
        device="ideal",
        cause="communication",
        step=1,
        at=(1,),
        ops=("zero/fc1/kernel/HcomAllGather",),
        spoil=stale_part(3),
        writer={"pids": _BACK},
        item="2",
    ),
    Case(
        name="f28",
        network="mlp_adam",
        ranks=4,
        steps=2,
        device="imprecise",
        cause="kernel",
        step=1,
        at=(3,),
        ops=(_updates("mlp_adam", "fc1/kernel"),),
        spoil=keep_old,
        writer={"statistics": True},
        item="6",
    ),
    # --- harder: coarser devices, smaller faults, other places ---
    Case(name="d01", network="transformer", ranks=4, steps=2, device="coarse", bench=range(4), item="1"),
    Case(name="d02", network="mlp_adam", ranks=2, steps=3, device="coarse", bench=(1,), item="1"),
    Case(name="d03", network="convnet", ranks=4, steps=2, device="coarse", item="1"),
    Case(name="d04", network="recurrent", ranks=8, steps=2, device="coarse", bench=(0,), item="1"),
    Case(
        name="d05",
        network="sharded_update",
        ranks=8,
        steps=2,
        device="outliers",
        bench=(3,),
        writer={"pids": _BACK[::-1], "first_device": 0},
        item="2",
    ),
    Case(
        name="d06",
        network="pipeline",
        ranks=4,
        steps=3,
        device="coarse",
        bench=(0, 2),
        writer={"first_device": 4},
        item="1",
    ),
    Case(
        name="d07",
        network="experts",
        ranks=6,
        steps=2,
        device="imprecise",
        item="4",
        missing=((1, 0, "HcomAllToAll"), (3, 1, "allreduce_trunk")),
    ),
    Case(
        name="d08",
        network="tensor_parallel",
        ranks=8,
        steps=2,
        device="coarse",
        options={"half": True},
        item="4",
        missing=((6, None, ""),),
    ),
    Case(
        name="d09",
        network="transformer",
        ranks=4,
        steps=2,
        device="outliers",
        writer={"statistics": True},
        bench=(0,),
        item="1",
    ),
    Case(
        name="d10",
        network="experts",
        ranks=4,
        steps=2,
        device="coarse",
        bench=(1,),
        writer={"statistics": True},
        item="1",
    ),
    Case(
        name="g01",
        network="transformer",
        ranks=4,
        steps=2,
        device="coarse",
        cause="kernel",
        step=1,
        at=(2,),
        ops=("gradients/attention/value/MatMul_grad/MatMul_1",),
        spoil=lose_tail(0.06),
        item="1",
    ),
    Case(
        name="g02",
        network="convnet",
        ranks=4,
        steps=2,
        device="coarse",
        bench=(1,),
        cause="kernel",
        step=0,
        at=range(4),
        ops=("conv1/bn/FusedBatchNormV3_BNTrainingReduce",),
        spoil=lose_tail(0.2),
        item="1",
    ),
    Case(
        name="g03",
        network="mlp_adam",
        ranks=4,
        steps=3,
        device="imprecise",
        cause="kernel",
        step=1,
        at=(1,),
        ops=("gradients/fc2/MatMul_grad/MatMul_1",),
        spoil=one_bit,
        item="1",
    ),
    Case(
        name="g04",
        network="recurrent",
        ranks=8,
        steps=2,
        device="imprecise",
        cause="kernel",
        step=1,
        at=range(4),
        ops=("rnn/time1/Tanh",),
        spoil=scale(1.03),
        item="6",
        lasts=(1,),
        note="four of eight ranks: one server's firmware",
    ),
    Case(
        name="g05",
        network="tensor_parallel",
        ranks=8,
        steps=2,
        device="outliers",
        cause="communication",
        step=1,
        at=(2, 6),
        ops=(_sum("column/kernel"),),
        spoil=not_summed,
        item="4",
        note="two ranks of one data-parallel group of four: no majority",
    ),
    Case(
        name="g06",
        network="recurrent",
        ranks=4,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(3,),
        ops=("gradients/embedding/HcomReduceScatter",),
        spoil=part_without(0),
        item="4",
    ),
    Case(
        name="g07",
        network="pipeline",
        ranks=4,
        steps=3,
        device="imprecise",
        cause="communication",
        step=2,
        at=(2,),
        ops=("pipeline/forward1/HcomReceive",),
        spoil=stale,
        item="4",
        note="it received what was sent in the step before",
    ),
    Case(
        name="g08",
        network="experts",
        ranks=4,
        steps=2,
        device="ideal",
        bench=(0,),
        cause="communication",
        step=1,
        at=(3,),
        ops=("gradients/dispatch/HcomAllToAll",),
        spoil=stale,
        item="4",
    ),
    Case(
        name="g09",
        network="transformer",
        ranks=4,
        steps=2,
        device="coarse",
        bench=range(4),
        cause="communication",
        at=(1,),
        ops=(_sum("head/kernel"),),
        spoil=not_reduced,
        item="4",
    ),
    Case(
        name="g10",
        network="convnet",
        ranks=4,
        steps=3,
        device="imprecise",
        cause="optimizer_state",
        at=(2,),
        ops=("conv1/kernel/Momentum",),
        starts={("conv1/kernel/Momentum", 2): lambda a: a + 0.05},
        item="3",
    ),
    Case(
        name="g11",
        network="recurrent",
        ranks=4,
        steps=3,
        device="outliers",
        cause="learning_rate",
        at=(2,),
        step=1,
        ops=_RATE_OPS,
        feeding={"rates": {2: 0.005}, "rates_from": 1},
        item="3",
    ),
    Case(
        name="g12",
        network="sharded_update",
        ranks=4,
        steps=2,
        device="ideal",
        cause="learning_rate",
        at=(1,),
        ops=_RATE_OPS,
        feeding={"rates": {1: 0.5}},
        item="3",
        note="no optimizer's op: Mul and Sub on each rank's part",
    ),
    Case(
        name="g13",
        network="experts",
        ranks=4,
        steps=2,
        device="imprecise",
        cause="weights",
        at=(2,),
        ops=("trunk/kernel",),
        starts={("trunk/kernel", 2): _other},
        item="3",
        note="experts differ by right, the trunk does not",
    ),
    Case(
        name="g14",
        network="tensor_parallel",
        ranks=8,
        steps=2,
        device="ideal",
        cause="weights",
        at=(5,),
        ops=("row/kernel",),
        starts={("row/kernel", 5): _other},
        item="3",
        note="shards of like halves are alike",
    ),
    Case(
        name="g15",
        network="transformer",
        ranks=8,
        steps=2,
        device="imprecise",
        cause="weights",
        at=(0,),
        ops=("norm1/gamma",),
        starts={("norm1/gamma", 0): np.ones_like},
        bench=(0,),
        item="3",
    ),
    Case(
        name="g16",
        network="mlp_adam",
        ranks=4,
        steps=2,
        device="outliers",
        cause="same_batch",
        at=range(4),
        ops=("IteratorGetNext",),
        feeding={"same_batch": True},
        bench=(0,),
        item="3",
    ),
    Case(
        name="g17",
        network="mlp_adam",
        ranks=6,
        steps=3,
        device="imprecise",
        cause="shifted",
        at=(1, 4),
        step=1,
        writer={"first_steps": {1: 1, 4: 1}},
        item="5",
    ),
    Case(
        name="g18",
        network="recurrent",
        ranks=4,
        steps=2,
        device="imprecise",
        cause="communication",
        step=1,
        at=(2,),
        ops=(_sum("head/kernel"),),
        spoil=not_reduced,
        writer={"statistics": True},
        item="6",
    ),
    Case(
        name="g19",
        network="transformer",
        ranks=4,
        steps=2,
        device="ideal",
        cause="weights",
        at=(1,),
        ops=("ffn1/kernel",),
        starts={("ffn1/kernel", 1): _other},
        writer={"statistics": True},
        item="3",
    ),
    Case(
        name="g20",
        network="sharded_update",
        ranks=4,
        steps=3,
        device="imprecise",
        cause="communication",
        step=1,
        at=range(4),
        ops=("zero/logits/kernel/HcomReduceScatter",),
        spoil=part_without(2),
        lasts=(1,),
        item="4",
        writer={"pids": _BACK},
    ),
)


def write_case(case: Case, root: Path, variant: int = 0) -> dict[str, Any]:
    """Write a study below `root` (a new folder) and return its truth; each variant has other random numbers."""
    seed = 100 + sum(map(ord, case.name)) + 1000 * variant
    writer = Writer(root, case.ranks, frozenset(case.bench), **case.writer)
    faults = []
    if case.spoil is not None:
        steps = (
            tuple(case.lasts)
            if case.lasts is not None
            else tuple(range(case.step, case.steps))
            if len(case.at) == case.ranks
            else (case.step,)
        )
        faults.append(Fault(case.ops[0], case.spoil, tuple(case.at), steps))
    job = Job(
        case.ranks, DEVICES[case.device], writer, seed=seed, faults=faults, starts=case.starts, own_attrs=case.own_attrs
    )
    feeding = Feeding(seed, **case.feeding)
    for _ in range(case.steps):
        NETWORKS[case.network](job, feeding, **case.options)
        job.end_step()
    if faults and not all((case.step, rank, case.ops[0]) in job.struck for rank in case.at):
        raise ValueError(f"{case.name}: {case.ops[0]} did not run")
    writer.write_graphs()
    for rank, step, word in case.missing:
        _remove(writer, case, rank, step, word)
    truth = {
        "name": case.name,
        "clean": not case.cause,
        "network": case.network,
        "ranks": case.ranks,
        "steps": case.steps,
        "device": case.device,
        "benchmark": list(case.bench),
        "data": writer.data,
        "step": case.step if case.cause and case.ops else None,
        "at": list(case.at),
        "ops": list(case.ops),
        "cause": case.cause,
        "causes": list(ACCEPTED.get(case.cause, ())),
        "alternatives": [dict(a) for a in case.alternatives],
        "item": case.item,
        "note": case.note,
    }
    (root / TRUTH).write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    return truth


def _remove(writer: Writer, case: Case, rank: int, step: int | None, word: str) -> None:
    """Remove dump files; a rank of which nothing is left has neither folder nor graph."""
    for number in range(case.steps) if step is None else (step,):
        folder = writer.dump_dir(rank, number)
        if not word:
            shutil.rmtree(folder)
        else:
            for path in folder.glob(f"*{word}*"):
                path.unlink()
    if step is None:
        shutil.rmtree(writer.dump_dir(rank, 0).parent.parent.parent)
        shutil.rmtree(writer.graph_dir(rank))
