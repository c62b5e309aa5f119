"""Screens of `graphs`: the graph files with their contents, the matches of a search; and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.graph_survey import FoundIn, GraphRow, GraphSurvey
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.messages import Message
from precision_tool.lib.view.tables import NameTable
from precision_tool.lib.view.text import (
    LabelledLines,
    json_text,
    label,
    plain,
    safe,
    shown,
    shown_reason,
    whole_path,
    without_place,
)

#: Ops of one file that a search shows where nothing else is asked for.
SHOWN_OPS = 20


def survey_lines(survey: GraphSurvey) -> Iterator[RenderableType]:
    """Every graph file, the one in use first, then the counts."""
    for row in sorted(survey.rows, key=lambda row: not row.in_use):
        yield _row_lines(row)
    used = sum(row.in_use for row in survey.rows)
    counts = shown(Message("screen.view.graphs.counts", files=len(survey.rows), used=used), "bold")
    last: list[RenderableType] = [counts.append_text(_unreadable_count(survey.unreadable))]
    if survey.other_stages:
        stages = [Message("screen.view.graphs.stage", stage=stage, count=count) for stage, count in survey.other_stages]
        last.append(shown(Message("screen.view.graphs.other_stages", stages=stages), "dim"))
    if survey.problem:
        last += [plain(shown_reason(survey.problem.full_message), "yellow"), plain(survey.problem.hint, "dim")]
    yield Group(*last)


def _unreadable_count(count: int) -> Text:
    return shown(Message("screen.view.graphs.unreadable_count", count=count), "yellow") if count else Text()


def _unreadable(run: int | None, path: str, error: Message) -> RenderableType:
    title = shown(Message("screen.view.graphs.unreadable", run=run), "yellow")
    return Group(title, whole_path(path), LabelledLines([(f"  {label('why')}", _why(error, path))]))


def _why(error: Message, path: str) -> Text:
    """Return why a file cannot be read, without its path, which stands just before."""
    return plain(shown_reason(without_place(error, path)), "yellow")


def _row_lines(row: GraphRow) -> RenderableType:
    if row.error:
        return _unreadable(row.run, row.path, row.error)
    state = Message("screen.view.graphs.in_use") if row.in_use else Message("screen.view.graphs.not_in_use")
    style = "bold green" if row.in_use else "not bold dim"
    title = shown(Message("screen.view.graphs.state", run=row.run, state=state), "bold", fields={"state": style})
    sources = safe(", ".join(row.data_sources))
    holds = Message("screen.view.graphs.holds", ops=row.op_count, bytes=row.size, sources=sources)
    lines = [
        (f"  {label('graph')}", plain(", ".join(row.graph_names))),
        (f"  {label('holds')}", shown(holds)),
    ]
    if row.dumped:
        share = row.matched / row.dumped
        explains = Message("screen.view.graphs.explains", matched=row.matched, dumped=row.dumped, share=share)
        lines.append((f"  {label('explains')}", shown(explains)))
    if row.reason:
        lines.append((f"  {label('why')}", plain(shown_reason(row.reason), "dim")))
    return Group(title, whole_path(row.path), LabelledLines(lines))


def match_lines(matches: Sequence[FoundIn], limit: int) -> Iterator[RenderableType]:
    """The files that hold an op that was searched for, with at most `limit` ops of each (0: all), and the counts."""
    for match in matches:
        if match.ops or match.error:
            yield _match(match, limit)
    ops, files = sum(len(match.ops) for match in matches), sum(bool(match.ops) for match in matches)
    counts = shown(Message("screen.view.graphs.matches", ops=ops, files=files, searched=len(matches)), "bold")
    yield counts.append_text(_unreadable_count(sum(bool(match.error) for match in matches)))


def _match(match: FoundIn, limit: int) -> RenderableType:
    if match.error:
        return _unreadable(match.run, match.path, match.error)
    counts = Message(
        "screen.view.graphs.match", run=match.run, matching=len(match.ops), ops=match.op_count, stage=match.stage
    )  # fmt: skip
    table = NameTable(box=None, padding=(0, 0, 0, 2), show_header=False)
    table.add_column(max_width=26)
    table.add_column()
    for name, op_type in match.ops[: limit or None]:
        table.add_row(plain(op_type), plain(name))
    parts: list[RenderableType] = [shown(counts, "bold"), whole_path(match.path), table]
    more = len(match.ops) - limit
    if limit and more > 0:
        rest = Message("screen.view.limit.more_all", more=more)
        parts.append(shown(Message("screen.view.graphs.indented", text=rest), "dim"))
    return Group(*parts)


def use_line(path: str | None) -> Text:
    if path is None:
        return shown(Message("screen.view.graphs.automatic"))
    return shown(Message("screen.view.graphs.use", path=safe(shown_path(path))))


def survey_json(survey: GraphSurvey) -> str:
    return json_text(
        {
            "graphs": [{**asdict(row), "error": row.error or "", "reason": row.reason or ""} for row in survey.rows],
            "other_stages": dict(survey.other_stages),
            "unreadable": survey.unreadable,
            "problem": survey.problem.message if survey.problem else "",
        }
    )


def matches_json(matches: Sequence[FoundIn], word: str) -> str:
    files = [
        {
            **asdict(match),
            "ops": [{"name": name, "type": op_type} for name, op_type in match.ops],
            "error": match.error or "",
        }
        for match in matches
        if match.ops or match.error
    ]
    return json_text({"find": word, "looked_at": len(matches), "files": files})
