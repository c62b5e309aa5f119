"""The generator behind `scripts/devices`: a set of simulated dumps of imprecise devices, with the truth beside."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/trees"), str(ROOT / "tests/campaigns")]
# A tree's matrices are small: threads of their own cost more than they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from devices.sets import DEGRADATIONS, DEVICES, FAMILIES, FAULTS, plans, write_set  # noqa: E402  # by the paths above


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/devices", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write index.json, truth/ and the trees; must not exist")
    parser.add_argument("--count", type=int, default=24, metavar="N", help="trees (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another one gives other trees (default 0)")
    parser.add_argument("--device", nargs="+", default=["ideal"], choices=DEVICES, help="in turn (default ideal)")
    parser.add_argument("--fault", nargs="+", default=list(FAULTS), choices=FAULTS, metavar="KIND",
                        help="in turn, of: " + ", ".join(FAULTS) + " (default all)")  # fmt: skip
    parser.add_argument("--family", nargs="+", default=[], choices=FAMILIES, metavar="NET",
                        help="in turn, of: " + ", ".join(FAMILIES) + " (default all)")  # fmt: skip
    parser.add_argument("--clean", type=float, nargs="?", const=1.0, default=1 / 3, metavar="SHARE",
                        help="share of trees without a fault; without a number all (default a third)")  # fmt: skip
    parser.add_argument("--degrade", nargs="+", default=[], choices=DEGRADATIONS, metavar="HOW",
                        help="in turn: outputs (no inputs in dump files), missing (30 %% of the files), alone (no "
                        "benchmark)")  # fmt: skip
    parser.add_argument("--second", nargs="+", default=[], choices=("repeat", "unfused"), metavar="RUN",
                        help="in turn: a second run as debug_1, the same again (repeat) or without fusion "
                        "(unfused)")  # fmt: skip
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    args = parser.parse_args()
    if args.folder.exists():
        parser.error(f"{args.folder} is there already")
    return args


def main() -> None:
    """Write the set that the command line asks for."""
    args, start = _parsed(), time.monotonic()
    faults = [] if args.clean >= 1 else args.fault
    listed = plans(count=args.count, seed=args.seed, devices=args.device, faults=faults, clean=args.clean,
                   families=args.family, degraded=args.degrade, second=args.second)  # fmt: skip
    write_set(args.folder, listed, args.processes)
    print(f"{len(listed)} trees in {args.folder}, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
