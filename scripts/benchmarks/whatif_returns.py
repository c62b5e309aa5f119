#!/usr/bin/env python3
"""Does a step return to a clean one's when its culprit is mended, and not when an innocent op is?

Of each faulty network of a set (`index.json`, `truth/`) the culprit of the truth is mended by `Replay.without`, and
three ops that compute right, drawn with a fixed seed. A clean step is emulated from the benchmark's own data, variables
and random numbers, without a cast that is the fault; what cannot be emulated is the benchmark's too, so that nothing of
the faulty run is in it. "Returns": a network that is off, loss or last tensors, is as near to the benchmark as the
clean step. Where the clean step is itself far from the benchmark that shows nothing (`no reference`); a network that is
not off has nothing to return from (`not off`).

    .venv/bin/python scripts/benchmarks/whatif_returns.py SET [TREE ...]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.divergence import is_random
from precision_tool.lib.diagnose.emulation import Array, Key, Rounding
from precision_tool.lib.diagnose.op_values import Root
from precision_tool.lib.diagnose.whatif import Effect, Replay, WhatIf, distance, replay_of
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.session import Session

#: Times the distance of a clean step from the benchmark, and that distance at least: a few units of float16.
TIMES, LEAST = 4.0, 2.0**-9
#: A clean step that is farther from the benchmark tells nothing.
FAR = 0.2
INNOCENT, SEED = 3, 27


def clean_distances(replay: Replay, blamed: list[Op]) -> dict[str, float]:
    """Return how far rounding takes the loss and the last tensors of a clean step from the benchmark's."""
    emulator, values = replay.emulator, replay.values
    computed = {id(op) for op in emulator.ops if not is_random(op)}
    given: dict[Key, Array] = {}
    for op in values.ops:
        if id(op) not in computed:
            given |= of_benchmark(replay, op)
    for op in blamed:  # a cast that is itself the fault passes on what it is given
        if op.type == "Cast" and op.output_descs[0].dtype.startswith("int"):
            (source,) = values.producers(op)
            given[id(op), 0] = clean_step(replay, computed, given, [source])[source.key]
    made = clean_step(replay, computed, given, replay.wanted())
    distances = {}
    for root in replay.wanted():
        golden = values.load_benchmark(root)
        if golden is not None and root.key in made:
            distances[root.name] = distance(made[root.key], golden.input.array)
    return distances


def of_benchmark(replay: Replay, op: Op) -> dict[Key, Array]:
    """Return what an op put out in the benchmark."""
    loaded = {root.key: replay.values.load_benchmark(root) for root in replay.outputs([op])}
    return {key: each.input.array.astype(np.float32) for key, each in loaded.items() if each is not None}


def clean_step(replay: Replay, computed: set[int], given: dict[Key, Array], wanted: list[Root]) -> Mapping[Key, Array]:
    """Return tensors of the emulated step; ops that stop it, by which recorded data would come in, the benchmark's."""
    clean = Rounding(keeps_error=False, is_wide=True)
    stopped: list[Op] = []

    def rounding_of(op: Op) -> Rounding | None:
        return clean if id(op) in computed else None

    while True:
        made = replay.emulator.run(rounding_of, replaced=given, wanted=wanted, on_stop=lambda op, _: stopped.append(op))
        missing = [op for op in stopped if id(op) in computed]
        if not missing:
            return made.values
        for op in missing:
            computed.discard(id(op))
            given |= of_benchmark(replay, op)
            if (id(op), 0) not in given:
                raise SystemExit(f"{op.name}: neither emulated nor in the benchmark")


def distances_of(result: WhatIf, *, mended: bool) -> dict[str, float]:
    """Return how far the loss and the last tensors are from the benchmark's."""
    targets = [*([result.loss] if result.loss is not None else []), *result.outputs]
    return {each.name: (each.left if mended else each.deviation) or 0.0 for each in targets}


def is_far(off: dict[str, float], clean: dict[str, float]) -> bool:
    """Return whether a tensor is farther off than in a clean step."""
    return any(value > max(TIMES * clean.get(name, 0.0), LEAST) for name, value in off.items())


def sizes(off: dict[str, float], result: WhatIf) -> tuple[float, float]:
    """Return the distance of the loss, and of the last tensors together."""
    names = {each.name for each in result.outputs}
    loss = off.get(result.loss.name, 0.0) if result.loss is not None else 0.0
    return loss, sqrt(sum(off.get(name, 0.0) ** 2 for name in names))


def measure(folder: Path, tree: str, truth: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one network."""
    with tempfile.TemporaryDirectory() as work:
        session = Session(load_settings({"data": str(folder / tree / "precision_data"), "work": work}))
        run = next(run for run in session.data.run_graphs() if run.leaf is not None)
        start = time.perf_counter()
        replay = replay_of(session.data, run)
        by_name = {op.name: op for op in replay.values.ops}
        blamed = [name for name in truth.get("affected") or [] if name in by_name] or [truth["culprit"]]
        spoiled = {*truth["accept"], *blamed, *(truth.get("overflowed") or ())}
        clean = clean_distances(replay, [by_name[name] for name in blamed])
        result = replay.without([by_name[name] for name in blamed])
        before, after = distances_of(result, mended=False), distances_of(result, mended=True)
        if any(value > FAR for value in clean.values()):
            outcome = "no reference"
        elif not is_far(before, clean):
            outcome = "not off"
        else:
            outcome = "stays" if is_far(after, clean) else "returns"
        innocent = [(op.name, _effect(replay, op)) for op in _drawn(replay, spoiled)]
        figures = [sizes(off, result) for off in (before, after, clean)]
        return {
            "tree": tree, "cause": truth["cause"], "effect": str(result.effect), "outcome": outcome,
            "loss": [loss for loss, _ in figures], "outputs": [outputs for _, outputs in figures],
            "stopped": [stop.op for stop in result.stopped], "innocent": innocent,
            "seconds": time.perf_counter() - start,
        }  # fmt: skip


def _drawn(replay: Replay, spoiled: set[str]) -> list[Op]:
    right = [op for op in replay.emulator.ops if op.name not in spoiled and not is_random(op)]
    return random.Random(SEED).sample(right, INNOCENT)


def _effect(replay: Replay, op: Op) -> str:
    try:
        return str(replay.without([op]).effect)
    except PrecisionToolError as error:
        return f"not told: {error}"


def main() -> int:
    """Measure a set and print a row for each network, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("trees", nargs="*")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for entry in json.loads((args.set / "index.json").read_text())["trees"]:
        truth = json.loads((args.set / "truth" / f"{entry['tree']}.json").read_text())
        if truth["culprit"] is None or (args.trees and entry["tree"] not in args.trees):
            continue
        row = measure(args.set, entry["tree"], truth)
        rows.append(row)
        loss, outputs = ("{:.2g} → {:.2g} ({:.2g})".format(*row[name]) for name in ("loss", "outputs"))
        odd = [f"{name}: {effect}" for name, effect in row["innocent"] if effect != Effect.NOTHING]
        print(
            f"{row['tree']} {row['cause']:9} {row['effect']:9} {row['outcome']:12} loss {loss:28} outputs {outputs:28} "
            f"{row['seconds']:.2f} s {' '.join(f'[stops at {name}]' for name in row['stopped'])} {' '.join(odd)}",
            flush=True,
        )  # fmt: skip
    print("before → after (a clean step)")
    print(Counter(row["outcome"] for row in rows), Counter(row["effect"] for row in rows))
    print("innocent ops:", Counter(effect for row in rows for _, effect in row["innocent"]))
    print(f"{sum(row['seconds'] for row in rows):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
