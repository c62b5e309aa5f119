"""The generator behind `scripts/pytorch`: pairs of msprobe's dumps of networks that train, with the truth beside."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/campaigns")]
# Before PyTorch is imported: threads of their own would not survive a fork.
os.environ["OMP_NUM_THREADS"] = "1"

from pytorch.sets import KERNELS, OTHER_SIDES, plans  # noqa: E402  # by the path above


def _parsed() -> argparse.Namespace:
    kinds = (*KERNELS, *OTHER_SIDES)
    parser = argparse.ArgumentParser(prog="scripts/pytorch", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write index.json, truth/ and pairs; goes on where it ended")
    parser.add_argument("--count", type=int, default=30, metavar="N", help="pairs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1000, metavar="S", help="another one gives other pairs")
    parser.add_argument("--fault", nargs="+", default=[], choices=kinds, metavar="KIND",
                        help="in turn, of: " + ", ".join(kinds) + " (default all)")  # fmt: skip
    parser.add_argument("--clean", type=float, nargs="?", const=1.0, default=1 / 3, metavar="SHARE",
                        help="share of pairs without a fault; without a number all (default a third)")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print totals only")
    return parser.parse_args()


def main() -> None:
    """Write the set that the command line asks for."""
    from pytorch.training import make  # it imports PyTorch: --help does not need it

    args, start = _parsed(), time.monotonic()
    truths = args.folder / "truth"
    truths.mkdir(parents=True, exist_ok=True)
    listed = plans(count=args.count, seed=args.seed, faults=args.fault, clean=args.clean)
    index, failed = [], 0
    for plan in listed:
        path = truths / f"{plan.tree}.json"
        if not path.exists():
            try:
                path.write_text(json.dumps(make(plan, args.folder), indent=1) + "\n")
            except RuntimeError as error:
                failed += 1
                if not args.quiet:
                    print(error, file=sys.stderr)
                continue
        truth = json.loads(path.read_text())
        index.append({key: truth[key] for key in ("tree", "cause", "culprit", "net", "precision", "note")})
        if not args.quiet:
            print(json.dumps(index[-1]), flush=True)
    (args.folder / "index.json").write_text(json.dumps({"count": len(index), "trees": index}, indent=1) + "\n")
    print(f"{len(index)} pairs in {args.folder}, {failed} without a place, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
