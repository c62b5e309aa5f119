"""The campaign behind `scripts/fuzz`: mutated inputs over every reader, and a table of what came of them.

An input is told by its reader, the seed and its number; `--only` makes that one again and shows what it does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/trees"), str(ROOT / "tests/campaigns")]

from fuzzing.inputs import Inputs  # noqa: E402  # found by the paths above
from fuzzing.readers import READERS  # noqa: E402
from fuzzing.worker import Tally, try_inputs  # noqa: E402

_HEAD = (
    f"{'reader':<14} {'inputs':>9} {'accepted':>9} {'refused':>9} {'findings':>8} {'worst ms':>9} {'peak MB':>8}   /s"
)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help="of: " + ", ".join(READERS) + " (default all)")
    parser.add_argument(
        "--inputs", type=int, default=10_000, metavar="N", help="inputs for each reader (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another one gives other inputs (default 0)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number to begin with (default 0)")
    parser.add_argument("--seconds", type=float, metavar="T", help="of each reader at most")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the inputs of findings there")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="just this input, of the one reader that is named")
    args = parser.parse_args()
    unknown = [name for name in args.readers if name not in READERS]
    if unknown:
        parser.error(f"{unknown[0]}: no such reader; there are {', '.join(READERS)}")
    return args


def _show(name: str, tally: Tally) -> None:
    speed = tally.inputs / tally.seconds if tally.seconds else 0
    print(
        f"{name:<14} {tally.inputs:>9} {tally.accepted:>9} {tally.refused:>9} {tally.found:>8} "
        f"{tally.worst_time * 1000:>9.1f} {tally.peak_memory / 1e6:>8.0f} {speed:>4.0f}",
        flush=True,
    )


def _show_findings(name: str, seed: int, inputs: Inputs, tally: Tally, keep: Path | None) -> None:
    """The findings by kind, each with its first input; that is kept as a file if wanted."""
    kinds = Counter(finding.kind for finding in tally.findings)
    for kind, count in kinds.most_common():
        first = min(
            (finding for finding in tally.findings if finding.kind == kind),
            key=lambda one: len(inputs.make(one.number)),
        )
        told = f"{count}{'+' if count >= 20 else ''} × {kind}"
        print(f"  {name}: {told}\n    again: scripts/fuzz {name} --seed {seed} --only {first.number}")
        for line in first.detail.splitlines()[-4:]:
            print(f"    | {line[:200]}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{name}-{seed}-{first.number}").write_bytes(inputs.make(first.number))


def main() -> int:
    """Runs the campaign; 1 where there are findings."""
    args = _parsed()
    names = args.readers or list(READERS)
    numbers = range(args.first, args.first + args.inputs) if args.only is None else range(args.only, args.only + 1)
    found = total = 0
    start = time.monotonic()
    later = []
    print(f"seed {args.seed}, inputs {numbers.start} to {numbers.stop - 1}\n{_HEAD}")
    for name in names:
        inputs = Inputs(name, READERS[name], args.seed)
        if args.only is not None:
            print(f"{inputs.make(args.only)[:2000]!r}")
        tally = try_inputs(READERS[name], inputs.make, numbers, args.seconds)
        _show(name, tally)
        found += tally.found
        total += tally.inputs
        if tally.findings:
            later.append((name, inputs, tally))
    print(f"{total} inputs in {time.monotonic() - start:.0f} s, {found} findings")
    for name, inputs, tally in later:
        _show_findings(name, args.seed, inputs, tally, args.keep)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
