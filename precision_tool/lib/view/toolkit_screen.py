"""Screens of the vendor's toolkit and of offline models."""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.text import Text

from precision_tool.lib.compare.toolkit import VARIABLES, Toolkit
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io.native.library import description as kernel_description
from precision_tool.lib.io.om_file import OmHeader
from precision_tool.lib.messages import Message, text
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.view.text import byte_size, label, safe, shown

_WIDTH = 13


def _line(name: str, value: Message | str, style: str = "") -> Text:
    return Text.assemble((set_cell_size(label(name), _WIDTH), "bold"), shown(value, style))


def lines(toolkit: Toolkit, engine: str, python: str) -> list[Text]:
    folders = Message(
        "screen.view.toolkit.searched", folders=safe(", ".join(toolkit.looked_in)), searched=toolkit.searched
    )  # fmt: skip
    variables = ", ".join(("PRECISION_TOOL_CMD_ROOT_PATH", *VARIABLES))
    missing = Message("screen.view.toolkit.not_found")
    parts = [
        _line("toolkit", safe(toolkit.root), "green") if toolkit.root else _line("toolkit", missing, "yellow"),
        _line("version", safe(toolkit.version or "") or Message("screen.view.toolkit.unknown")),
    ]
    for name in ("atc", "msaccucmp"):
        path = safe(getattr(toolkit, name) or "")
        without = Message(f"screen.view.toolkit.missing.{name}")
        parts.append(_line(name, path) if path else _line(name, without, "yellow"))
    return [
        *parts,
        _line("environment", safe(toolkit.set_env or "") or Message("screen.view.toolkit.no_set_env")),
        _line("python", Message("screen.view.toolkit.python", python=safe(python))),
        _line("looked_in", Message("screen.view.toolkit.looked_in", folders=folders, variables=variables)),
        _line("engine", Message("screen.view.toolkit.engine", engine=engine)),
        _line("arithmetic", kernel_description()),
    ]


def as_dict(toolkit: Toolkit, engine: str, python: str) -> dict[str, object]:
    return {
        "root": toolkit.root,
        "version": toolkit.version,
        "atc": toolkit.atc,
        "msaccucmp": toolkit.msaccucmp,
        "set_env": toolkit.set_env,
        "python": python,
        "looked_in": list(toolkit.looked_in),
        "searched": toolkit.searched,
        "engine": engine,
        "arithmetic": kernel_description(),
    }


def om_lines(path: str, header: OmHeader, file: GraphFile) -> list[Text]:
    """Return the parts and graphs of an offline model."""
    name = header.name or text("screen.view.toolkit.no_name")
    lines = [_line("model", safe(f"{name}  {shown_path(path)}"))]
    if header.platform:
        lines.append(_line("platform", safe(header.platform)))
    for parts in header.models:
        lines.append(_line("parts", ", ".join(f"{part.name} {byte_size(part.stop - part.start)}" for part in parts)))
    for graph in file.graphs:
        types = len({op.type for op in graph.ops})
        counts = Message("screen.view.toolkit.graph", graph=safe(graph.name), ops=len(graph.ops), types=types)
        lines.append(_line("graph", counts))
    return lines
