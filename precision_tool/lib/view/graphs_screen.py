"""What `graphs` shows: the graph files with what each holds, and where a search found ops; or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.graph_survey import FoundIn, GraphRow, GraphSurvey
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.view.tables import NameTable
from precision_tool.lib.view.text import (
    LabelledLines,
    byte_size,
    counted,
    json_text,
    plain,
    safe,
    shown_reason,
    whole_path,
)

#: Ops of one file that a search shows where nothing else is asked for.
SHOWN_OPS = 20


def survey_lines(survey: GraphSurvey) -> Iterator[RenderableType]:
    """Every graph file, the one in use first, then the counts."""
    for row in sorted(survey.rows, key=lambda row: not row.in_use):
        yield _row_lines(row)
    used, unread = sum(row.in_use for row in survey.rows), survey.unreadable
    counts = Text(f"{counted(len(survey.rows), 'graph file')}, {used} in use", style="bold")
    if unread:
        counts.append(f", {unread} cannot be read", style="yellow")
    last: list[RenderableType] = [counts]
    if survey.other_stages:
        listed = ", ".join(f"{stage} {count}" for stage, count in survey.other_stages)
        last.append(plain(f"files of other stages, which are not what ran: {listed}; --find looks into them", "dim"))
    if survey.problem:
        last += [plain(shown_reason(survey.problem), "yellow"), plain(survey.hint, "dim")]
    yield Group(*last)


def _why(error: str, path: str) -> Text:
    """Why a file that was named just before cannot be read."""
    return plain(shown_reason(error.removeprefix(f"{path}: ")), "yellow")


def _row_lines(row: GraphRow) -> RenderableType:
    run = "" if row.run is None else f"debug_{row.run}: "
    if row.error:
        title = Text(f"{run}cannot be read", style="yellow")
        return Group(title, whole_path(row.path), LabelledLines([("  why", _why(row.error, row.path))]))
    title = Text(run, style="bold")
    title.append("in use" if row.in_use else "not in use", style="bold green" if row.in_use else "dim")
    holds = f"{counted(row.op_count, 'op')}, {byte_size(row.size)}"
    holds += f", data source {', '.join(row.data_sources)}" if row.data_sources else ", no data source"
    lines = [
        ("  graph", plain(", ".join(row.graph_names))),
        ("  holds", plain(holds)),
    ]
    if row.dumped:
        share = plain(f"{row.matched} of {counted(row.dumped, 'dumped op')} ({row.matched / row.dumped:.0%})")
        lines.append(("  explains", share))
    if row.reason:
        lines.append(("  why", plain(shown_reason(row.reason), "dim")))
    return Group(title, whole_path(row.path), LabelledLines(lines))


def found_lines(found: Sequence[FoundIn], limit: int) -> Iterator[RenderableType]:
    """The files that hold an op that was looked for, with at most `limit` ops of each (0: all), and the counts."""
    for one in found:
        if one.ops or one.error:
            yield _found_in(one, limit)
    ops, files = sum(len(one.ops) for one in found), sum(bool(one.ops) for one in found)
    counts = Text(f"{counted(ops, 'op')} in {files} of {counted(len(found), 'graph file')}", style="bold")
    unread = sum(bool(one.error) for one in found)
    if unread:
        counts.append(f", {unread} cannot be read", style="yellow")
    yield counts


def _found_in(found: FoundIn, limit: int) -> RenderableType:
    run = "" if found.run is None else f"debug_{found.run}: "
    stage = f" ({found.stage})" if found.stage else ""
    if found.error:
        title = Text(f"{run}cannot be read", style="yellow")
        return Group(title, whole_path(found.path), LabelledLines([("  why", _why(found.error, found.path))]))
    title = plain(f"{run}{len(found.ops)} of {counted(found.op_count, 'op')}{stage}", "bold")
    table = NameTable(box=None, padding=(0, 0, 0, 2), show_header=False)
    table.add_column(max_width=26)
    table.add_column()
    for name, op_type in found.ops[: limit or None]:
        table.add_row(plain(op_type), plain(name))
    parts: list[RenderableType] = [title, whole_path(found.path), table]
    more = len(found.ops) - limit
    if limit and more > 0:
        parts.append(Text(f"  and {more} more; -l N shows more, -l 0 all", style="dim"))
    return Group(*parts)


def use_line(path: str | None) -> Text:
    """What `graphs --use` did."""
    if path is None:
        return Text("The graph is chosen automatically again.")
    return Text(f"In use from now on: {safe(shown_path(path))}")


def survey_json(survey: GraphSurvey) -> str:
    """The graph files as one JSON document."""
    return json_text(
        {
            "graphs": [asdict(row) for row in survey.rows],
            "other_stages": dict(survey.other_stages),
            "unreadable": survey.unreadable,
            "problem": survey.problem,
        }
    )


def found_json(found: Sequence[FoundIn], word: str) -> str:
    """What a search found as one JSON document."""
    files = [
        {**asdict(one), "ops": [{"name": name, "type": op_type} for name, op_type in one.ops]}
        for one in found
        if one.ops or one.error
    ]
    return json_text({"find": word, "looked_at": len(found), "files": files})
