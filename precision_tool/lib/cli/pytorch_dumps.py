"""PyTorch `.h5` dumps: what `ls` and `ni` show of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from precision_tool.lib.cli.command import (
    DONE,
    Output,
    spaced,
    tell_notes,
)
from precision_tool.lib.errors import UsageError
from precision_tool.lib.inspect.named_tensors import (
    BENCHMARK,
    named_value,
    view_of,
)
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.pytorch import H5Value
from precision_tool.lib.pairing.pytorch_ops import H5Hit, H5Listing, H5Side, list_h5
from precision_tool.lib.present import pytorch as report
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.tensors import number_text
from precision_tool.lib.present.text import json_text
from precision_tool.lib.session import Session

# --- ls ---------------------------------------------------------------------------------------------------------------


def listings(session: Session, name: str | None, op_type: str | None, *, of_ops: bool = False) -> tuple[H5Listing, ...]:
    """The ops and data sets of the data folder's dumps that fit (see `list_h5`); () where it has none."""
    data = session.data.pytorch()
    return () if data is None else list_h5(data.sides, name, op_type, of_ops=of_ops)


def list_ops(session: Session, args: argparse.Namespace, name: str | None, limit: int, output: Output) -> int:
    """`ls`: the ops of the dumps, where there is no graph."""
    given = {"-f": args.fusion, "-k": args.kernel, "-g": args.graph}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"ls: {option} is for graphs, which PyTorch dumps have not", "use -n NAME and -t TYPE")
    cosines = session.cosines()
    found = listings(session, name, args.type, of_ops=True)
    threshold = session.settings.threshold
    if args.below is not None:
        threshold = args.below
        found = tuple(_below(listing, cosines, args.below) for listing in found)
    tell_notes(session, output)
    if args.json:
        document = {"dumps": report.listings_json(found, args.limit or 0, _of(found, cosines))}
        output.out.file.write(json_text(document) + "\n")
        return DONE
    parts = [[*report.op_listing(listing, limit, _cosines_of(listing, cosines), threshold)] for listing in found]
    output.show(*spaced(parts))
    return DONE


def _cosines_of(listing: H5Listing, cosines: Mapping[str, float]) -> Mapping[str, float]:
    """Results name the ops of the NPU."""
    return {} if listing.side.side == BENCHMARK else cosines


def _of(found: tuple[H5Listing, ...], cosines: Mapping[str, float]) -> Mapping[str, float]:
    return cosines if any(listing.side.side != BENCHMARK for listing in found) else {}


def _below(listing: H5Listing, cosines: Mapping[str, float], threshold: float) -> H5Listing:
    known = _cosines_of(listing, cosines)
    rows = tuple(row for row in listing.rows if row.op.name in known and not known[row.op.name] >= threshold)
    return H5Listing(side=listing.side, rows=rows)


# --- ni ---------------------------------------------------------------------------------------------------------------


def show_op(session: Session, args: argparse.Namespace, name: str, output: Output) -> int:
    """`ni` of an op of a PyTorch dump."""
    for option, value in (("-g", args.graph), ("-a ATTR", args.attribute or None), ("-s", args.depth)):
        if value is not None:
            raise UsageError(f"ni: {option} is for graphs, and {name} is an op of a PyTorch dump", "leave it out")
    hits = session.data.find_h5(name)
    threshold = session.settings.threshold
    reports = [_report(session, hit, output) for hit in hits]
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.op_json(reports, threshold) + "\n")
    else:
        output.show(*report.op_lines(reports, threshold))
    return DONE


def _report(session: Session, hit: H5Hit, output: Output) -> report.H5Report:
    from precision_tool.lib.inspect.op_tensors import compare_op  # what compares takes long to load

    pairs = hit.side.pairs_of(hit.op)
    with ProgressReport(output.err, "reading") as progress:
        rows = compare_op(Op(name=hit.op.name, type=hit.op.type), pairs, session.settings.workers, progress)
    parameters = tuple((value, _parameter(hit.side, hit, value)) for value in hit.op.values if not value.is_tensor)
    return report.H5Report(hit=hit, rows=tuple(rows), parameters=parameters)


def _parameter(side: H5Side, hit: H5Hit, value: H5Value) -> str:
    """The first values of a parameter."""
    view = view_of(named_value(side.dump.path, hit.op, value), bins=0, first=report.SHOWN_VALUES)
    if view.figures is None or value.tensor is None:
        return view.reason or value.reason
    texts = [number_text(number) for number in view.figures.first]
    if not value.tensor.shape:
        return texts[0]
    return f"[{', '.join(texts)}{', …' if len(texts) < value.tensor.size else ''}]"
