"""What the options of `vc`, `vcs` and `ac` ask for."""

from __future__ import annotations

import argparse
from dataclasses import replace

from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.engine.custom_metrics import load_metrics
from precision_tool.lib.errors import UsageError
from precision_tool.lib.model.table import ColumnChoice
from precision_tool.lib.pairing.selection import OpNames, Selection, parse_ids, parse_range
from precision_tool.lib.results.columns import columns_of, parse_metrics
from precision_tool.lib.results.noise import NoiseFloor, find_noise, read_noise
from precision_tool.lib.session import Session

#: Rows of the tables of the worst elements, unless --top says otherwise, and at most (the vendor's figures).
TOP, MOST_TOP = 20, 10000


def noise_floor_of(session: Session, args: argparse.Namespace) -> NoiseFloor | None:
    """The noise floor that was asked for."""
    if args.noise is None:
        return None
    return read_noise(find_noise(args.noise, session.workspace.result_dirs()))


def measure_options(args: argparse.Namespace) -> CompareOptions:
    """What `vc` and `ac` both can be asked for."""
    taken = [column.name for column in columns_of(ColumnChoice(sequence=True, overflow=True, golden_address=True))]
    custom = load_metrics(args.custom, taken) if args.custom else None
    return CompareOptions(overflow=args.overflow, custom=custom)


def compare_options(args: argparse.Namespace) -> CompareOptions:
    """The options of `vc`; UsageError for those that make no sense together."""
    _refuse("only goes with -op", args.op is None, {"-i": args.inputs, "-o": args.outputs, "--top": args.top})
    _refuse("does not go with -op, which looks at whole tensors", args.op is not None, {"--max": args.max})
    of_numbers = {"--algorithm": args.metrics, "--max": args.max, "--overflow_detection": args.overflow}
    _refuse(
        "does not go with --map, which compares nothing",
        args.map,
        {"-op": args.op, **of_numbers, "--custom": args.custom},
    )
    if args.top is not None and args.top > MOST_TOP:
        raise UsageError(f"vc: --top {args.top}: at most {MOST_TOP}", "`cp -s` saves every element of two tensors")
    selection: Selection | None = None
    if args.op is not None:
        selection = OpNames(names=tuple(args.op), inputs=tuple(args.inputs or ()), outputs=tuple(args.outputs or ()))
    elif args.range is not None:
        selection = parse_range(args.range)
    elif args.select is not None:
        selection = parse_ids(args.select)
    return replace(
        measure_options(args),
        selection=selection,
        metrics=parse_metrics(",".join(args.metrics)) if args.metrics else None,
        limit=args.max,
        worst=(args.top or TOP) if args.op is not None else 0,
        pairs_only=args.map,
        compat=args.compat,
        other_graph=args.other_graph,
    )


def _refuse(why: str, holds: bool, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if holds and given:
        raise UsageError(f"vc: {given[0]} {why}", "`vc -h` shows the options")
