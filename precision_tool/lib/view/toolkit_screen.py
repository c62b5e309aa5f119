"""What was found of the vendor's toolkit, and what an offline model holds."""

from __future__ import annotations

from rich.text import Text

from precision_tool.lib.compare.toolkit import VARIABLES, Toolkit
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io.native.library import description as kernel_description
from precision_tool.lib.io.om_file import OmHeader
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.wording import counted
from precision_tool.lib.view.text import byte_size, plain

_WIDTH = 13


def _line(label: str, text: str, style: str = "") -> Text:
    return Text.assemble(plain(f"{label:{_WIDTH}}", "bold"), plain(text, style))


def lines(toolkit: Toolkit, engine: str, python: str) -> list[Text]:
    """One line a part."""
    looked = ", ".join(toolkit.looked_in) + (" (searched)" if toolkit.searched else "")
    variables = ", ".join(("PRECISION_TOOL_CMD_ROOT_PATH", *VARIABLES))
    missing = {"atc": "graphs are converted by graph2json", "msaccucmp": "the engine cann has nothing to run"}
    found = [
        _line("toolkit", toolkit.root, "green") if toolkit.root else _line("toolkit", "not found", "yellow"),
        _line("version", toolkit.version or "unknown"),
    ]
    for name, without in missing.items():
        path = getattr(toolkit, name)
        found.append(_line(name, path) if path else _line(name, f"missing: {without}", "yellow"))
    return [
        *found,
        _line("environment", toolkit.set_env or "ours: no set_env.sh was found"),
        _line("python", f"{python} (runs msaccucmp; setting PYTHON)"),
        _line(
            "looked in",
            f"{looked} (setting CMD_ROOT_PATH; in the environment {variables})",
        ),
        _line("engine", f"{engine} (setting ENGINE, option --engine)"),
        _line("arithmetic", kernel_description()),
    ]


def as_dict(toolkit: Toolkit, engine: str, python: str) -> dict[str, object]:
    """The same for --json."""
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
    """What an offline model holds: its parts and its graphs."""
    found = [_line("model", f"{header.name or '(no name)'}  {shown_path(path)}")]
    if header.platform:
        found.append(_line("platform", header.platform))
    for parts in header.models:
        listed = ", ".join(f"{part.name} {byte_size(part.stop - part.start)}" for part in parts)
        found.append(_line("parts", listed))
    for graph in file.graphs:
        types = len({op.type for op in graph.ops})
        found.append(_line("graph", f"{graph.name}: {counted(len(graph.ops), 'op')} of {counted(types, 'type')}"))
    return found
