"""PyTorch `.h5` dumps: what `ls` and `ni` show of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from precision_tool.lib.cli.command import Output, show_result, spaced
from precision_tool.lib.compare.named_tensors import BENCHMARK, compare_op, named_value, view_of
from precision_tool.lib.data.pytorch_pairing import H5Hit, H5Listing, H5Side, list_h5
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.pytorch import H5Value
from precision_tool.lib.session import Session
from precision_tool.lib.view import pytorch_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.tensors_screen import number_text
from precision_tool.lib.view.text import json_text

# --- ls ---------------------------------------------------------------------------------------------------------------


def listings(session: Session, name: str | None, op_type: str | None, *, of_ops: bool = False) -> tuple[H5Listing, ...]:
    """Return the matching ops and data sets of the data folder's dumps (see `list_h5`); () if it has none."""
    data = session.data.pytorch()
    return () if data is None else list_h5(data.sides, name, op_type, of_ops=of_ops)


def list_ops(session: Session, args: argparse.Namespace, name: str | None, limit: int, output: Output) -> int:
    """List the ops of dumps without a graph."""
    graph_options = {"-f": args.fusion, "-k": args.kernel, "-g": args.graph}
    for option, value in graph_options.items():
        if value is not None:
            raise UsageError("cli.ls_needs_graph", option=option)
    cosines = session.cosines()
    op_listings = listings(session, name, args.type, of_ops=True)
    threshold = session.settings.threshold
    if args.below is not None:
        threshold = args.below
        op_listings = tuple(_below(listing, cosines, args.below) for listing in op_listings)
    of_npu = cosines if any(listing.side.side != BENCHMARK for listing in op_listings) else {}
    parts = (report.op_listing(listing, limit, _cosines_of(listing, cosines), threshold) for listing in op_listings)
    return show_result(
        session, args, output,
        lambda: json_text({"dumps": report.listings_json(op_listings, args.limit or 0, of_npu)}),
        lambda: spaced(parts),
    )  # fmt: skip


def _cosines_of(listing: H5Listing, cosines: Mapping[str, float]) -> Mapping[str, float]:
    """Return the cosines for the NPU side, whose ops results name."""
    return {} if listing.side.side == BENCHMARK else cosines


def _below(listing: H5Listing, cosines: Mapping[str, float], threshold: float) -> H5Listing:
    cosines_here = _cosines_of(listing, cosines)
    rows = tuple(
        row for row in listing.rows if row.op.name in cosines_here and not cosines_here[row.op.name] >= threshold
    )
    return H5Listing(side=listing.side, rows=rows)


# --- ni ---------------------------------------------------------------------------------------------------------------


def show_op(session: Session, args: argparse.Namespace, name: str, output: Output) -> int:
    """Show an op of a PyTorch dump for `ni`."""
    for option, value in (("-g", args.graph), ("-a ATTR", args.attribute or None), ("-s", args.depth)):
        if value is not None:
            raise UsageError("cli.ni_needs_graph", option=option, name=name)
    hits = session.data.find_h5(name)
    threshold = session.settings.threshold
    reports = [_report(session, hit, output) for hit in hits]
    return show_result(
        session, args, output, lambda: report.op_json(reports, threshold), lambda: report.op_lines(reports, threshold)
    )


def _report(session: Session, hit: H5Hit, output: Output) -> report.H5Report:
    pairs = hit.side.pairs_of(hit.op)
    with ProgressReport(output.err, "reading") as progress:
        rows = compare_op(Op(name=hit.op.name, type=hit.op.type), pairs, session.settings.workers, progress)
    parameters = tuple((value, _parameter(hit.side, hit, value)) for value in hit.op.values if not value.is_tensor)
    return report.H5Report(hit=hit, rows=tuple(rows), parameters=parameters)


def _parameter(side: H5Side, hit: H5Hit, value: H5Value) -> str:
    """Return the first values of a parameter."""
    view = view_of(named_value(side.dump.path, hit.op, value), bins=0, first=report.SHOWN_VALUES)
    if view.figures is None or value.tensor is None:
        return render(view.reason or value.reason)
    texts = [number_text(number) for number in view.figures.first]
    if not value.tensor.shape:
        return texts[0]
    return f"[{', '.join(texts)}{', …' if len(texts) < value.tensor.size else ''}]"
