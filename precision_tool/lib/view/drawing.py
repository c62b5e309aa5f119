"""The neighbourhood of an op as a picture: Graphviz source, and what the `dot` program makes of it.

Names come from files, so nothing of them may become markup: labels are HTML-like with every text escaped, nodes
are numbered, tooltips keep their backslashes from being read as escapes.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import SEEK_END
from math import isnan
from typing import IO

import graphviz

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.neighbourhood import CONTROL, Link, Neighbourhood, Node, described_inputs
from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.messages import Message, text
from precision_tool.lib.model.finding import ReasonError
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.text import safe

#: A layout that takes longer is given up.
TIME_LIMIT = 60.0
#: Bytes that common file systems allow a file name, without room for the ending.
_NAME_BYTES = 240
#: Characters in a line of a node, and lines of a name: longer ones stand whole in the tooltip.
_LINE, _LINES = 34, 6
#: Characters of the complaints of `dot` that are told.
_SAID = 400
#: Bytes of a string that `dot` reads: it gives up at 16384.
_STRING_BYTES = 15_000
#: Characters of one text in a label; names are cut into lines before.
_LONGEST = 120
_ZERO_WIDTH = "&#8203;"

_GREEN, _GREY = "#cdeac6", "#ececec"
#: Below the threshold: the cosines from which on a colour is used.
_BELOW = ((0.9, "#ffeaa3"), (0.5, "#ffc78a"), (-1.0, "#f4978e"))
_ASKED = "#1f4fbf"
_FONT = "Helvetica,Arial,sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The files of a picture. `svg` is None where `dot` could not make it; `reason` and `hint` then say why."""

    gv: str
    svg: str | None
    reason: Message | None = None
    hint: Message | None = None


# --- the source -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of ops by name: the lowest cosine of their outputs, and the verdict of recomputing them."""

    cosines: Mapping[str, float]
    threshold: float
    judged: Mapping[str, OpVerdict] = field(default_factory=dict)


def dot_source(hood: Neighbourhood, figures: Figures, where: str) -> str:
    """The picture in the DOT language; `where` names the run and the graph file."""
    picture = graphviz.Digraph(name="neighbourhood")
    picture.attr(
        "graph",
        label=_heading(hood, figures.cosines, figures.threshold, where),
        labelloc="t",
        fontname=_FONT,
        fontsize="11",
        rankdir="TB",
        nodesep="0.3",
        ranksep="0.45",
        tooltip=_tooltip(hood.op.name),
    )
    picture.attr(
        "node",
        shape="box",
        style="rounded,filled",
        fillcolor=_GREY,
        color="#808080",
        fontname=_FONT,
        fontsize="10",
        margin="0.12,0.07",
    )
    picture.attr("edge", fontname=_FONT, fontsize="8", color="#505050", fontcolor="#404040", arrowsize="0.7")
    numbers = {node.key: f"n{number}" for number, node in enumerate(hood.nodes)}
    boxes = _boxes(hood, picture)
    for node in hood.nodes:
        boxes[node.graph].node(numbers[node.key], **_node_look(node, hood, figures))
    _nest(hood, boxes, picture)
    for link in hood.links:
        picture.edge(numbers[link.producer.key], numbers[link.consumer.key], **_edge_look(link))
    return str(picture.source)


def _boxes(hood: Neighbourhood, picture: graphviz.Digraph) -> dict[str, graphviz.Digraph]:
    """Return the box that the nodes of each graph are drawn in: one for a subgraph, the picture itself for others."""
    boxes: dict[str, graphviz.Digraph] = {}
    for node in hood.nodes:
        if node.graph in boxes:
            continue
        if node.graph not in hood.calls:
            boxes[node.graph] = picture
            continue
        outer, caller = hood.calls[node.graph]
        box = graphviz.Digraph(name=f"cluster_{len(boxes)}")
        is_asked = (outer, caller.name) in hood.focus
        box.attr(
            label=_html(_bold(caller.type), *_wrapped(caller.name), _small(node.graph)),
            tooltip=_tooltip(f"{caller.name} ({caller.type})", f"graph {node.graph}"),
            style="rounded",
            fontname=_FONT,
            fontsize="10",
            labeljust="l",
            bgcolor="#f7f9fc",
            color=_ASKED if is_asked else "#9db3cf",
            penwidth="3" if is_asked else "1",
        )
        boxes[node.graph] = box
    return boxes


def _nest(hood: Neighbourhood, boxes: Mapping[str, graphviz.Digraph], picture: graphviz.Digraph) -> None:
    """Puts every box into the one of the graph around it, the innermost first."""
    around: dict[str, str] = {}
    for name in boxes:
        outer, visited = name, {name}
        while outer in hood.calls and (outer := hood.calls[outer][0]) not in visited:
            visited.add(outer)
            if outer in boxes:
                around[name] = outer
                break

    def depth(name: str) -> int:
        steps = 0
        while name in around and steps <= len(boxes):
            name, steps = around[name], steps + 1
        return steps

    depths = {name: depth(name) for name in boxes}
    for name in sorted(boxes, key=depths.__getitem__, reverse=True):
        if boxes[name] is not picture:
            # Graphs that call each other in a ring lie in no other.
            is_ring = depths[name] > len(boxes)
            (picture if is_ring or name not in around else boxes[around[name]]).subgraph(boxes[name])


def _heading(hood: Neighbourhood, cosines: Mapping[str, float], threshold: float, where: str) -> str:
    lines = [
        _bold(text("screen.view.drawing.title", op_type=hood.op.type, depth=hood.depth)),
        *_wrapped(hood.op.name, 90),
        *map(_small, _pieces(where, 100)),
    ]
    if hood.left_out:
        lines.append(_bold(text("screen.view.drawing.left_out", count=hood.left_out)))
    cells = [f'<td bgcolor="{colour}">{_text(words)}</td>' for colour, words in _legend(threshold)]
    if not any(node.op is not None and node.name in cosines for node in hood.nodes):
        cells = [f'<td bgcolor="{_GREY}">{_text(text("screen.view.drawing.no_result"))}</td>']
    cells.append(f'<td border="3" color="{_ASKED}">{_text(text("screen.view.drawing.op"))}</td>')
    head = "".join(f'<tr><td border="0" colspan="{len(cells)}">{line}</td></tr>' for line in lines)
    return f'<<table border="0" cellborder="1" cellspacing="3">{head}<tr>{"".join(cells)}</tr></table>>'


def _legend(threshold: float) -> list[tuple[str, str]]:
    rows = [(_GREEN, text("screen.view.drawing.passes", threshold=threshold))]
    top = threshold
    for bound, colour in _BELOW:
        if bound < top:
            rows.append((colour, text("screen.view.drawing.range", low=bound if bound > -1 else None, high=top)))
            top = bound
    return [*rows, (_GREY, text("screen.view.drawing.not_compared"))]


def _fill(cosine: float | None, threshold: float) -> str:
    if cosine is None:
        return _GREY
    if cosine >= threshold:
        return _GREEN
    return next((colour for bound, colour in _BELOW if cosine >= bound), _BELOW[-1][1])


def _node_look(node: Node, hood: Neighbourhood, figures: Figures) -> dict[str, str]:
    op = node.op
    if op is None:
        missing = _html(*_wrapped(node.name), _small(text("screen.view.drawing.not_in_graph")))
        return {"label": missing, "tooltip": _tooltip(node.name), "style": "rounded,dashed", "fillcolor": "white"}
    cosine, threshold = figures.cosines.get(op.name), figures.threshold
    lines = [_bold(op.type), *_wrapped(op.name)]
    if op.pass_names:
        lines += map(_small, _pieces(", ".join(op.pass_names), _LINE + 6))
    if cosine is not None:
        lines.append(_bold(text("screen.view.drawing.cosine", value="nan" if isnan(cosine) else f"{cosine:.6f}")))
    judged = figures.judged.get(op.name)
    if judged is not None and judged.own_error is not None:
        own = text("screen.view.drawing.own_error", value=judged.own_error, is_wrong=judged.is_wrong)
        lines.append(_bold(own) if judged.is_wrong else _small(own))
    unread, unfed = hood.open_ends.get(node.key, (0, 0))
    if unread or unfed:
        lines.append(_small(text("screen.view.drawing.more_edges", inputs=unread or None, outputs=unfed or None)))
    look = {"label": _html(*lines), "tooltip": _node_tooltip(op, cosine), "fillcolor": _fill(cosine, threshold)}
    if node.key in hood.focus:
        look |= {"color": _ASKED, "penwidth": "3"}
    return look


def _node_tooltip(op: Op, cosine: float | None) -> str:
    lines = [op.name, text("screen.view.drawing.tip.type", value=op.type)]
    if op.pass_names:
        lines.append(text("screen.view.drawing.tip.pass", value=op.pass_names))
    if op.original_names and op.original_names != (op.name,):
        lines.append(text("screen.view.drawing.tip.original_ops", value=op.original_names))
    if op.kernel_name:
        lines.append(text("screen.view.drawing.tip.kernel", value=op.kernel_name))
    if cosine is None:
        lines.append(text("screen.view.drawing.not_compared"))
    else:
        lines.append(text("screen.view.drawing.tip.cosine", value=cosine))
    return _tooltip(*lines)


def _edge_look(link: Link) -> dict[str, str]:
    ends = f"{link.producer.name} → {link.consumer.name}"
    if link.index == CONTROL:
        tooltip = _tooltip(ends, text("screen.view.drawing.order_only"))
        return {"style": "dashed", "color": "#909090", "tooltip": tooltip}
    desc = _desc(link)
    lines = [] if desc is None else [" ".join(filter(None, (desc.dtype, desc.layout))), shape_text(desc.shape)]
    several = link.producer.op is not None and len(link.producer.op.output_descs) > 1
    if several or link.index:
        lines[:1] = [f"{link.index}: {lines[0] if lines else ''}"]
    ends = text(
        "screen.view.drawing.edge",
        producer=link.producer.name,
        output=link.index,
        slot=link.slot,
        consumer=link.consumer.name,
    )
    tooltip = _tooltip(ends, *lines)
    look = {"tooltip": tooltip, "labeltooltip": tooltip}
    if any(lines):
        look["label"] = _html(*(f"&#160;{_text(line)}" for line in lines if line))
    return look | ({"color": "#3b6fb0"} if link.crosses else {})


def _desc(link: Link) -> TensorDesc | None:
    """The tensor of a link: the producer describes it, else the consumer, else what a border op is fed."""
    producer, consumer = link.producer.op, link.consumer.op
    if producer is not None and link.index < len(producer.output_descs):
        return producer.output_descs[link.index]
    desc = None if consumer is None else described_inputs(consumer).get(link.slot)
    if desc is None and producer is not None and link.crosses:
        return described_inputs(producer).get(link.index)
    return desc


# --- text in DOT ------------------------------------------------------------------------------------------------------


def _literal(text: str) -> str:
    """Text whose backslashes are none of DOT's escapes, although `dot` reads those of some objects twice."""
    return re.sub(r"\\(?=[NGETHLnlr\\]|$)", r"\\" + _ZERO_WIDTH, safe(text)).replace("\\", r"\\")


def _text(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return _literal(html.escape(short))


def _bold(text: str) -> str:
    return f"<b>{_text(text)}</b>" if text else ""


def _small(text: str) -> str:
    return f'<font point-size="8" color="#555555">{_text(text)}</font>' if text else ""


def _html(*lines: str) -> str:
    """An HTML-like label. Lines are escaped already."""
    return f"<{'<br/>'.join(filter(None, lines)) or ' '}>"


def _wrapped(name: str, width: int = _LINE) -> list[str]:
    return list(map(_text, _pieces(name, width)))


def _pieces(text: str, width: int) -> list[str]:
    """The text in lines, broken where names have joints. Of a very long one the beginning."""
    lines = [""]
    text = safe(text)
    for piece in re.findall(r"[^/_., ]*[/_., ]+|[^/_., ]+", text[: width * (_LINES + 1)]):
        if len(lines[-1]) + len(piece) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    if len(lines) > _LINES or sum(map(len, lines)) < len(text):
        lines = [*lines[:_LINES], "…"]
    return lines


def _tooltip(*lines: str) -> str:
    """A tooltip; entities are read in it too."""
    share = _STRING_BYTES // len(lines)
    marked: str = graphviz.nohtml("\\n".join(_fitting(line, share) for line in lines))
    return marked


def _fitting(line: str, most: int) -> str:
    """As much of a line as `most` bytes can hold."""
    text = _literal(line.replace("&", "&amp;"))
    length = len(line)
    while len(text.encode()) > most:
        length = min(length, most) * 3 // 4
        text = _literal(line[:length].replace("&", "&amp;")) + "…"
    return text


# --- the files --------------------------------------------------------------------------------------------------------


def picture_name(*parts: str) -> str:
    """A file name, without ending, from the names of op, run and graph; different ones stay different."""
    whole = ".".join(flatten(part) for part in parts if part)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", whole).lstrip(".-") or "_"
    if name != whole or len(name) > _NAME_BYTES:
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:10]
        name = f"{name[: _NAME_BYTES - len(digest) - 1]}.{digest}"
    return name


def write_drawing(source: str, folder: str, name: str, time_limit: float = TIME_LIMIT) -> Drawing:
    """Write the source of a picture and, with the `dot` program of Graphviz, the picture.

    Parameters
    ----------
    source : str
        The picture in the DOT language, as `dot_source` returns it.
    folder, name : str
        The files become `name`.gv and `name`.svg in this folder, which is made if it is missing.
    time_limit : float
        Seconds after which `dot` is stopped.

    Returns
    -------
    Drawing
        The paths; without a picture the reason and what to do.

    Raises
    ------
    OutputError
        The files cannot be written.
    """
    gv, svg = posixpath.join(folder, f"{name}.gv"), posixpath.join(folder, f"{name}.svg")
    with atomic_text(gv) as file:
        file.write(source)
    dot = shutil.which("dot")
    by_hand = shlex.join(["dot", "-Tsvg", gv, "-o", svg])
    if dot is None:
        hint = Message("note.view.dot.install", command=by_hand)
        return Drawing(gv=gv, svg=None, reason=Message("note.view.dot.missing"), hint=hint)
    try:
        _run_dot(dot, gv, svg, time_limit)
    except _DotError as error:
        return Drawing(gv=gv, svg=None, reason=error.reason, hint=Message("note.view.dot.by_hand", command=by_hand))
    return Drawing(gv=gv, svg=svg)


class _DotError(ReasonError):
    """The reason why `dot` made no picture."""


def _run_dot(dot: str, gv: str, svg: str, time_limit: float) -> None:
    with tempfile.TemporaryFile() as complaints, atomic_text(svg) as out:
        command = [dot, "-Tsvg", posixpath.abspath(gv)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=complaints, timeout=time_limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise _DotError(Message("note.view.dot.time", dot=dot, seconds=time_limit)) from None
        except OSError as error:
            raise _DotError(Message("note.view.dot.not_run", dot=dot, reason=error.strerror or str(error))) from None
        if done.returncode or not out.seek(0, SEEK_END):
            complaint = _last_lines(complaints) or Message("note.io.printed_nothing")
            raise _DotError(Message("note.view.dot.failed", dot=dot, code=done.returncode, reason=complaint))


def _last_lines(file: IO[bytes]) -> str:
    """The end of what a program wrote, on one line."""
    size = file.seek(0, SEEK_END)
    file.seek(max(0, size - 4096))
    lines = file.read().decode("utf-8", "replace").split("\n")
    return "; ".join(line.strip() for line in lines if line.strip())[-_SAID:]
