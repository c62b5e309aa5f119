"""The tools that an assistant gets of this tool: what each takes, what it does, and how its answer stays short.

A tool runs a command in this process and answers with the document of its `--json`, so there is one description of a
result. Rows and ops are answered in pages, other long lists are cut, and `left_out` says by how much. This module knows
nothing of the protocol.
"""

from __future__ import annotations

import io
import json
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from precision_tool.lib.cli.arguments import program
from precision_tool.lib.cli.command import Output, load_command
from precision_tool.lib.cli.words import find_word
from precision_tool.lib.compare.named_tensors import split_slot
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import lies_in
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import exists, is_file, real_path
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ReportConsole

Document = dict[str, Any]
#: Called with what is done, how much of it and of how much, and the unit.
OnProgress = Callable[[str, int, int, str], None]

#: Characters of an answer at most: assistants read all of it.
MAX_ANSWER = 40_000
#: How long lists may be, tried in this order until an answer is short enough; and texts.
_LENGTHS, _MAX_TEXT = (60, 30, 12, 5, 2), 2000
_PAGE, _MAX_PAGE = 15, 100
#: Comparisons that are kept with all their rows, so that their pages and next steps cost nothing.
_KEPT = 2
#: Columns of what a command prints besides its JSON: long enough for any note.
_NO_WRAP = 10_000


@dataclass(frozen=True, kw_only=True)
class Permission:
    """What a server may do.

    Attributes
    ----------
    folders : tuple of str
        The data folders, as absolute paths.
    readable : tuple of str
        Further folders that may be read.
    may_write : bool
        Whether reports and packages may be written, and results kept where they usually are; else in `scratch`.
    scratch : str
        A folder of the server's own, which is there as long as it runs.
    """

    folders: tuple[str, ...]
    readable: tuple[str, ...] = ()
    may_write: bool = False
    scratch: str = ""


@dataclass
class Desk:
    """What the tools work with: a session of each data folder, and the newest comparisons."""

    settings: Settings
    permission: Permission
    on_progress: OnProgress | None = None
    #: What begins a command line of this tool in the user's shell.
    command: str = field(default_factory=program)
    _sessions: dict[tuple[str, tuple[str, ...]], Session] = field(default_factory=dict)
    _compared: dict[tuple[str, ...], Document] = field(default_factory=dict)

    def session(self, data: str | None, *, of_all: bool = False) -> Session:
        """Return the session of a data folder, which may be left out where there is only one.

        With `of_all` that of all of them together, where none is named.
        """
        folders = self.permission.folders
        if data is None and len(folders) > 1 and not of_all:
            raise UsageError("mcp.which_data", folders=folders)
        path = folders[0] if data is None else urls.path_of(data)
        if path not in folders:
            path = next((each for each in folders if real_path(each) == real_path(posixpath.abspath(path))), "")
        if not path:
            raise UsageError("mcp.other_data", path=data, folders=folders)
        more = folders[1:] if data is None else ()
        if (path, more) not in self._sessions:
            work = self.settings.work
            if not self.permission.may_write:
                work = Path(self.permission.scratch, "all" if more else str(folders.index(path)))
            settings = replace(
                self.settings, data=Path(path), more_data=tuple(map(Path, more)), work=work, engine="native"
            )
            self._sessions[path, more] = Session(settings)
        return self._sessions[path, more]

    def place(self, session: Session, path: str) -> str:
        """Return the absolute path of a file or folder that an argument names. FormatError where it may not be read.

        Other paths are seen from the data folder, or from its `npu`.
        """
        root = str(session.workspace.root)
        named = urls.path_of(path)
        if not posixpath.isabs(named):
            below = [posixpath.normpath(posixpath.join(base, named)) for base in (root, posixpath.join(root, "npu"))]
            named = next((each for each in below if self._is_allowed(each) and exists(each)), below[0])
        if not self._is_allowed(named):
            raise FormatError.of(path, "io.outside", folders=[*self.permission.folders, *self.permission.readable])
        return named

    def _is_allowed(self, path: str) -> bool:
        permission = self.permission
        places = (*permission.folders, *permission.readable, permission.scratch)
        if urls.is_remote(path):
            return any(lies_in(posixpath.normpath(path), each) for each in places if urls.is_remote(each))
        return any(lies_in(real_path(path), real_path(each)) for each in places if not urls.is_remote(each))

    def name(self, session: Session, name: str) -> str:
        """Return the name of an op or tensor as a command takes it: what can only be a path is checked as one."""
        if urls.is_remote(urls.path_of(name)) and not self._is_allowed(urls.path_of(name)):
            return self.place(session, name)  # refused, before anything asks that host
        path, slot = split_slot(urls.path_of(name))
        bases = (str(session.workspace.root), str(session.workspace.root / "npu"))
        if urls.is_remote(path) or ".." in path.split("/") or path.startswith("~"):
            is_path = True
        elif posixpath.isabs(path):  # an op of PyTorch's may be /Addmm/4
            is_path = exists("/" + path.split("/")[1])
        else:
            is_path = any(is_file(posixpath.join(base, path)) for base in bases)
        return ":".join(filter(None, (self.place(session, path), slot))) if is_path else name

    def run(self, session: Session, word: str, *arguments: str, is_json: bool = True) -> Document:
        """Run a command and return the document of its --json, with what it notes as `notes_of_command`.

        Without `is_json` the lines it prints are `lines`.
        """
        printed, told = io.StringIO(), io.StringIO()
        out, err = (ReportConsole(file=stream, width=_NO_WRAP, theme="plain") for stream in (printed, told))
        err.on_progress = self.on_progress
        options = ("--json",) if is_json else ()
        load_command(word)(session, (*options, *arguments), Output(out, err))
        if not is_json:
            document: Document = {"lines": printed.getvalue().splitlines()}
        else:
            made = json.loads(printed.getvalue())
            document = made if isinstance(made, dict) else {"items": made}
        notes = told.getvalue().splitlines()
        return {**document, "notes_of_command": notes} if notes else document

    def comparison(self, arguments: Mapping[str, Any]) -> Document:
        """Return the document of `ac -c` for these arguments, as it was made before unless `again` asks for it."""
        session = self.session(arguments.get("data"))
        options = []
        for name, option in (("npu", "--left"), ("benchmark", "--right"), ("graph", "--graph")):
            if arguments.get(name) is not None:
                options.append(f"{option}={self.place(session, arguments[name])}")
        if arguments.get("threshold") is not None:
            options.append(f"--threshold={arguments['threshold']}")
        key = (str(session.workspace.root), *options)
        if arguments.get("again"):
            self._compared.pop(key, None)
            session.refresh()
        if key not in self._compared:
            document = self.run(session, "ac", "-c", *options)
            self._compared = dict([*self._compared.items()][1 - _KEPT :]) | {key: document}
        return self._compared[key]


# --- short answers ----------------------------------------------------------------------------------------------------


def shortened(document: Document) -> Document:
    """Return a document whose long lists and texts are cut until it is short; `left_out` has how much, by place."""
    for most in _LENGTHS:
        left_out: dict[str, int] = {}
        cut: Document = _cut(document, most, "", left_out)
        if left_out:
            cut["left_out"] = left_out
        if len(_json(cut)) <= MAX_ANSWER:
            return cut
    return cut


def _cut(value: Any, most: int, place: str, left_out: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each, most, f"{place}.{name}".lstrip("."), left_out) for name, each in value.items()}
    if isinstance(value, list):
        if len(value) > most:
            left_out[place] = len(value) - most
        return [_cut(each, most, f"{place}[{number}]", left_out) for number, each in enumerate(value[:most])]
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return value[: _MAX_TEXT - 1] + "…"
    return value


def _json(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False)


def _page(items: Sequence[Any], arguments: Mapping[str, Any]) -> Document:
    """Return a page of items with the number of all and where the next one begins; a page that is too long is cut."""
    offset = arguments.get("offset", 0)
    items_here = list(items[offset : offset + arguments.get("limit", _PAGE)])
    while len(items_here) > 1 and len(json.dumps(items_here, ensure_ascii=False)) > MAX_ANSWER:
        items_here = items_here[: len(items_here) // 2]
    end = offset + len(items_here)
    return {
        "total": len(items),
        "offset": offset,
        "next_offset": end if items_here and end < len(items) else None,
        "items": items_here,
    }


# --- the tools --------------------------------------------------------------------------------------------------------


def _list_data(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    folders = []
    for path in desk.permission.folders:
        session = desk.session(path)
        overview = session.overview()
        document = asdict(replace(overview, recorded=(None, None)))
        document["recorded"] = {
            side: None if each is None else {**asdict(replace(each, problem=None)), "problem": render(each.problem)}
            for side, each in zip(("npu", "benchmark"), overview.recorded, strict=True)
        }
        document["pytorch_files"] = dict(zip(("npu", "benchmark"), overview.pytorch_files, strict=True))
        folders.append({"data": urls.shown(path), "is_empty": overview.is_empty, **document})
    return shortened({"folders": folders, "may_write": desk.permission.may_write})


def _diagnose(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    document = desk.comparison(arguments)
    results = [{**_without(result, "rows"), "rows": len(result["rows"])} for result in document["results"]]
    answer = {**document, "results": results}
    if "other_run" in document:
        other = document["other_run"]
        answer["other_run"] = {
            **other, "results": [{**_without(each, "rows"), "rows": len(each["rows"])} for each in other["results"]]
        }  # fmt: skip
    return shortened(answer)


def _diagnose_all(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    return shortened(desk.run(desk.session(arguments.get("data"), of_all=True), "ac", "--all"))


def _without(document: Document, *names: str) -> Document:
    return {name: value for name, value in document.items() if name not in names}


def _verdicts(document: Document) -> Iterator[Document]:
    """Yield each verdict of a comparison: of its results, or of a dump alone."""
    for part in (*document["results"], document):
        if part.get("verdict") is not None:
            yield part["verdict"]


def _cosine(row: Document) -> float:
    cosine = None if row["metrics"] is None else row["metrics"]["cosine"]
    return inf if cosine is None else float(cosine)


_ORDERS: dict[str, Callable[[Document], float]] = {
    "own_error": lambda row: -row["own_error"] if row["own_error"] is not None else inf,
    "cosine": _cosine,
    "execution": lambda row: 0.0,
}


def _list_rows(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    document = desk.comparison(arguments)
    part = (arguments.get("op") or "").lower()
    status = arguments.get("status", "compared")
    rows = [
        {"result": number, **row}
        for number, result in enumerate(document["results"])
        for row in result["rows"]
        if (status in ("all", row["status"])) and part in row["op"].lower()
    ]
    rows.sort(key=_ORDERS[arguments.get("order", "own_error")])
    return _page(rows, arguments)


def _place_options(arguments: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={arguments.get(name, 'all')}" for name in ("step", "rank")]


def _find_ops(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    options = _place_options(arguments)
    for name, option in (
        ("name", "--name"),
        ("type", "--type"),
        ("fusion_pass", "--fusion"),
        ("kernel", "--kernel_name"),
    ):
        if arguments.get(name) is not None:
            options.append(f"{option}={arguments[name]}")
    if arguments.get("wrong"):
        options.append("--wrong")
    document = desk.run(session, "ls", *options)
    # PyTorch's .h5 dumps have no graph: their ops are listed by file.
    lists = [*document.get("graphs", ()), *document.get("dumps", ())]
    found = [{"graph": each.get("graph", each.get("file")), **op} for each in lists for op in each["ops"]]
    return {**_page(found, arguments), "notes_of_command": document.get("notes_of_command", [])}


def _look_at_op(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    options = _place_options(arguments)
    return shortened(desk.run(session, "ni", *options, "--", desk.name(session, arguments["op"])))


def _slot_options(arguments: Mapping[str, Any]) -> list[str]:
    options = _place_options(arguments)
    for name, option in (("input", "-i"), ("output", "-o")):
        if arguments.get(name) is not None:
            options.append(f"{option}{arguments[name]}")
    return [*options, f"--print={arguments.get('values', 8)}"]


def _show_tensor(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    return shortened(desk.run(session, "pt", *_slot_options(arguments), "--", desk.name(session, arguments["tensor"])))


def _compare_tensors(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    names = [desk.name(session, arguments[side]) for side in ("npu", "benchmark") if arguments.get(side) is not None]
    return shortened(desk.run(session, "cp", *_slot_options(arguments), "--", *names))


_CHECKS: dict[str, tuple[str, ...]] = {
    "overflow": ("overflow",),
    "random": ("random",),
    "fusion_passes": ("fusion", "list"),
    "fusion_blame": ("fusion", "blame"),
    "graph_differences": ("graph", "diff"),
    "graphs": ("graphs",),
}


def _check(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    return shortened(desk.run(session, *_CHECKS[arguments["what"]]))


#: The words of next steps that a tool does, with its name and that of its argument.
_TOOL_OF_WORD = {
    "ni": ("look_at_op", "op"),
    "pt": ("show_tensor", "tensor"),
    "cp": ("compare_tensors", "npu"),
    "repro": ("write_repro", "op"),
}


def _next_steps(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    steps = [
        {"culprit": verdict["culprit"], "cause": verdict["cause"], **step, **_doing(desk, session, step)}
        for verdict in _verdicts(desk.comparison(arguments))
        for step in verdict["next"]
    ]
    return shortened({"steps": steps})


def _doing(desk: Desk, session: Session, step: Document) -> Document:
    """Return the tool and its arguments that do a step, and its command line for the user; None for what is none."""
    tool, arguments, command = None, None, None
    words = [] if step["file"] else shlex.split(step["line"])  # else code that goes into a file
    if words and find_word(words[0]) is not None:
        places = [("--data", session.workspace.root)]
        if desk.permission.may_write and session.workspace.work is not None:
            places.append(("--work", session.workspace.work))
        options = (f"{option} {shlex.quote(urls.shown(str(place)))}" for option, place in places)
        command = " ".join([desk.command, *options, step["line"]])
        name, argument = _TOOL_OF_WORD.get(words[0], ("", ""))
        check = next((check for check, line in _CHECKS.items() if list(line) == words), "")
        if len(words) == 2 and name in {tool.name for tool in tools_of(desk.permission)}:
            tool, arguments = name, {argument: words[1]}
        elif check:
            tool, arguments = "check", {"what": check}
        if arguments is not None and len(desk.permission.folders) > 1:
            arguments["data"] = urls.shown(str(session.workspace.root))
    return {"tool": tool, "arguments": arguments, "command": command}


def _write_report(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    files = [result["file"] for result in desk.comparison(arguments)["results"] if result["file"]]
    session = desk.session(arguments.get("data"))
    return desk.run(session, "report", *(["--", files[0]] if len(files) == 1 else []), is_json=False)


def _write_repro(desk: Desk, arguments: Mapping[str, Any]) -> Document:
    session = desk.session(arguments.get("data"))
    name = desk.name(session, arguments["op"])
    return desk.run(session, "repro", *_place_options(arguments), "--", name, is_json=False)


# --- what is said of the tools: JSON Schema (2020-12) of what each takes and answers ---------------------------------


Schema = dict[str, Any]


def _object(properties: Schema, required: Sequence[str] = (), **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **({"required": [*required]} if required else {}), **more}


def _list_of(items: Schema, description: str = "") -> Schema:
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def _or_null(kind: str, description: str) -> Schema:
    return {"type": [kind, "null"], "description": description}


def _text(description: str) -> Schema:
    return {"type": "string", "minLength": 1, "description": description}


def _count(description: str, default: int | None = None, least: int = 0, most: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least, "description": description}
    schema |= {} if most is None else {"maximum": most}
    return schema if default is None else schema | {"default": default}


_DATA = {"data": _text("A data folder, as list_data names it. May be left out if there is only one.")}
_PLACE = {
    "step": _count("The training step, where several were dumped."),
    "rank": _count("The rank, where several were dumped."),
}
_PAGES = {
    "offset": _count("Skip so many: next_offset of the page before.", 0),
    "limit": _count("How many to return.", _PAGE, 1, _MAX_PAGE),
}
_SLOT = {
    "input": _count("Only this input of the op."),
    "output": _count("Only this output of the op."),
    "values": _count("How many of the first values, and of the worst elements, to return.", 8, 0, 100),
}
_COMPARISON = {
    **_DATA,
    "npu": _text("Another NPU dump folder than that of npu/debug_0: a path, or debug_1."),
    "benchmark": _text("What it is compared with, if not tf/dump: a folder of .npy files, or another NPU run."),
    "graph": _text("A graph file, or a folder of them, if the one that is found is not the right one."),
    "threshold": {
        "type": "number", "minimum": -1, "maximum": 1,
        "description": "The cosine similarity below which a tensor counts as wrong. Default 0.98.",
    },
    "again": {
        "type": "boolean", "default": False,
        "description": "Compare anew, because the dumps have changed. Otherwise the same question costs nothing.",
    },
}  # fmt: skip
_NOTES = _list_of({"type": "string"}, "What the command noted: what was left out, or looks odd, and why.")
_LEFT_OUT = _object({}, description="Lists that were cut, and how many entries each has besides.")
_CUT = {"notes_of_command": _NOTES, "left_out": _LEFT_OUT}
_OWN_ERROR = _or_null(
    "number", "Relative error of the op itself, recomputed from its own inputs; errors that it inherits are not in it."
)
_COSINE = _or_null("number", "Cosine similarity with the benchmark; a low one may be inherited.")
_STEP = _object(
    {
        "why": {"type": "string", "description": "What to do."},
        "line": {"type": "string", "description": "The command of precision-tool, or the code, that does it."},
        "file": {"type": "string", "description": "Where the code goes; empty for commands."},
    },
    ["why", "line", "file"],
)
_VERDICT = _object(
    {
        "culprit": _or_null("string", "The faulty op, or the variable that differs; null if there is none."),
        "cause": _or_null("string", "fusion, kernel, layout, cast, overflow, stomp, random, input, weights, …"),
        "pass": _or_null("string", "The fusion pass that made the op."),
        "confidence": _or_null("number", "From 0 to 1."),
        "ranking": _list_of({"type": "string"}, "The suspects, the most likely first."),
        "evidence": _object({}, description="The figures that show it."),
        "next": _list_of(_STEP, "What to do next."),
        "suspects": _list_of(_object({}), "Every suspect with its cause, confidence and figures."),
        "ops": _object({}, description="How many ops were recomputed, and why others could not be."),
        "gaps": _list_of({"type": "string"}, "What was not checked."),
    },
    ["culprit", "cause", "confidence", "ranking", "next", "suspects", "gaps"],
)
_RESULT = _object(
    {
        "npu": _or_null("string", "The NPU dump."),
        "benchmark": _or_null("string", "What it was compared with."),
        "graph": _or_null("string", "The graph file in use."),
        "threshold": {"type": "number"},
        "overview": _object({}, description="How many tensors and ops were compared, and how many are below."),
        "rows": {"type": "integer", "description": "How many rows list_rows has of it."},
        "findings": _list_of(_object({}), "What the comparison itself shows."),
        "verdict": _VERDICT,
    },
    ["npu", "benchmark", "overview", "rows", "findings"],
)


def _pages_of(item: Schema) -> Schema:
    return _object(
        {
            "total": {"type": "integer"},
            "offset": {"type": "integer"},
            "next_offset": _or_null("integer", "Where the next page begins; null after the last."),
            "items": _list_of(item),
            "notes_of_command": _NOTES,
        },
        ["total", "offset", "next_offset", "items"],
    )


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool: what an assistant reads of it, and what it does.

    Attributes
    ----------
    name, title, description : str
        What it is called and what it is for.
    takes, gives : dict
        JSON Schemas of its arguments and of its answer.
    run : callable
        Takes the desk and arguments that fit the schema, and returns the answer.
    writes : bool
        Whether it writes files that stay, which a server has to be allowed.
    """

    name: str
    title: str
    description: str
    takes: Schema
    gives: Schema
    run: Callable[[Desk, Mapping[str, Any]], Document]
    writes: bool = False


def _takes(properties: Schema, *required: str) -> Schema:
    return _object(properties, required, additionalProperties=False)


TOOLS = (
    Tool(
        name="list_data",
        title="List the data",
        description=(
            "List the data folders with what each holds: NPU runs (npu/debug_N) with their dumps, devices, models and "
            "steps, graphs, benchmark tensors, overflow status files, dumps of PyTorch or msprobe. Start here."
        ),
        takes=_takes({}),
        gives=_object(
            {"folders": _list_of(_object({}, ["data", "runs"])), "may_write": {"type": "boolean"}}, ["folders"]
        ),
        run=_list_data,
    ),
    Tool(
        name="diagnose",
        title="Find the faulty operator",
        description=(
            "Compare the NPU run with its benchmark, recompute every op from its own inputs, and judge: `verdict` "
            "names the culprit, the cause, the confidence, the figures and the next steps. culprit null means that "
            "no op computes wrong: see suspects, gaps and findings for why. Takes seconds to many minutes, reports "
            "progress, and can be cancelled. `checks` are what else was looked at: fusion passes, casts, overflow."
        ),
        takes=_takes(_COMPARISON),
        gives=_object(
            {
                "schema": {"type": "integer"},
                "results": _list_of(_RESULT),
                "verdict": _VERDICT,
                "checks": _list_of(_object({})),
                **_CUT,
            },
            ["schema", "results"],
        ),
        run=_diagnose,
    ),
    Tool(
        name="diagnose_all",
        title="Find the earliest step and rank",
        description=(
            "Of many steps or ranks: `culprit` is the earliest step, rank and op that computes wrong, and on which "
            "ranks; `leaves` has each step and rank. For a run of several steps or ranks, as list_data shows them, "
            "or of several data folders (then leave out data). Steps that were judged before are not judged again."
        ),
        takes=_takes({"data": _text("A data folder, as list_data names it; without it all of them together.")}),
        gives=_object(
            {
                "culprit": _or_null("object", "Step, rank, op, cause, confidence, and how far the error reaches."),
                "further": _list_of(_object({}), "Other culprits."),
                "leaves": _list_of(_object({}), "Each step, rank and model, with what was compared and judged."),
                **_CUT,
            },
            ["culprit", "leaves"],
        ),
        run=_diagnose_all,
    ),
    Tool(
        name="list_rows",
        title="List compared tensors, worst first",
        description=(
            "List the rows of the comparison, one per tensor, in pages. The order own_error puts ops first that "
            "compute wrong themselves; cosine those that differ most, which mostly inherit their error; execution is "
            "the order in which they ran."
        ),
        takes=_takes(
            {
                **_COMPARISON,
                "op": _text("Only ops whose name has this in it."),
                "order": {"enum": [*_ORDERS], "default": "own_error"},
                "status": {
                    "type": "string",
                    "default": "compared",
                    "description": "Only rows of this status: compared, or why not, such as no_npu_dump; or all.",
                },
                **_PAGES,
            }
        ),
        gives=_pages_of(
            _object(
                {
                    "op": {"type": "string"},
                    "slot": {"type": "string"},
                    "type": _or_null("string", "Of the op."),
                    "status": {"type": "string"},
                    "own_error": _OWN_ERROR,
                    "metrics": _or_null("object", "Cosine and errors against the benchmark."),
                },
                ["op", "slot", "status", "own_error", "metrics"],
            )
        ),
        run=_list_rows,
    ),
    Tool(
        name="find_ops",
        title="Find ops in the graph",
        description=(
            "List ops of the graph in use, in the order in which they run, by name, type, fusion pass or kernel. After "
            "diagnose they have their cosine, own error and state (right, wrong, doubtful, not_recomputed). A pattern "
            "is a part of the name or, with * ? [ ], a glob."
        ),
        takes=_takes(
            {
                **_DATA,
                "name": _text("Name of the op; [17] is the op with this number."),
                "type": _text("Type of the op, such as Conv2D."),
                "fusion_pass": _text("The fusion pass that made it."),
                "kernel": _text("Its kernel, or the library of it."),
                "wrong": {
                    "type": "boolean",
                    "description": "Only ops with wrong results of their own.",
                    "default": False,
                },
                **_PLACE,
                **_PAGES,
            }
        ),
        gives=_pages_of(_object({"name": {"type": "string"}, "own_error": _OWN_ERROR, "cosine": _COSINE})),
        run=_find_ops,
    ),
    Tool(
        name="look_at_op",
        title="Look at one op",
        description=(
            "Show one op: its entry in the graph, where its inputs come from and who reads its outputs, its dumped "
            "tensors with statistics beside the benchmark's, the verdict on it alone, and single elements with the "
            "values expected of them."
        ),
        takes=_takes(
            {**_DATA, "op": _text("Name of the op, a part that only one has, or its number as [17]."), **_PLACE}, "op"
        ),
        gives=_object({"ops": _list_of(_object({})), **_CUT}),
        run=_look_at_op,
    ),
    Tool(
        name="show_tensor",
        title="Show a tensor",
        description=(
            "Statistics, histogram and first values of a tensor, beside the benchmark's: of an op (all its tensors, or "
            "one by input or output), of a dump file, or of a .npy file below the data folder."
        ),
        takes=_takes(
            {**_DATA, "tensor": _text("An op, or a file; FILE:output:0 is one tensor of a file."), **_SLOT, **_PLACE},
            "tensor",
        ),
        gives=_object({"tensors": _list_of(_object({})), **_CUT}, ["tensors"]),
        run=_show_tensor,
    ),
    Tool(
        name="compare_tensors",
        title="Compare two tensors",
        description=(
            "Compare two tensors element by element: metrics, the worst elements, where the errors lie along each "
            "axis. With `npu` alone: the first output of that op, or the one of input or output, with its benchmark."
        ),
        takes=_takes(
            {
                **_DATA,
                "npu": _text("An op, a dump file or a .npy file."),
                "benchmark": _text("What it is compared with, if not its own benchmark tensor."),
                **_SLOT,
                **_PLACE,
            },
            "npu",
        ),
        gives=_object(
            {"metrics": _or_null("object", "Over all elements."), "shape": _or_null("array", ""), **_CUT}, ["metrics"]
        ),
        run=_compare_tensors,
    ),
    Tool(
        name="check",
        title="Run one check",
        description=(
            "overflow: the op that overflows first, and what to do. random: ops that differ between two runs of one "
            "script, and overwritten memory. fusion_passes: the passes in effect. fusion_blame: the pass that computes "
            "wrong. graph_differences: between npu/debug_0 and npu/debug_1. graphs: the graph files, which one is in "
            "use and why."
        ),
        takes=_takes({**_DATA, "what": {"enum": [*_CHECKS]}}, "what"),
        gives=_object(_CUT),
        run=_check,
    ),
    Tool(
        name="next_steps",
        title="List the next steps",
        description=(
            "List what to do after the verdict, what settles most first: with the tool of this server that does it, or "
            "the command line or code for the user."
        ),
        takes=_takes(_COMPARISON),
        gives=_object(
            {
                "steps": _list_of(
                    _object(
                        {
                            "culprit": _or_null("string", "Whom it is about."),
                            "cause": _or_null("string", "Its cause."),
                            **_STEP["properties"],
                            "tool": _or_null("string", "The tool of this server that does it."),
                            "arguments": _or_null("object", "What it takes."),
                            "command": _or_null("string", "The command line for the user's shell."),
                        },
                        ["why", "line", "file", "tool", "arguments", "command"],
                    )
                ),
                **_CUT,
            },
            ["steps"],
        ),
        run=_next_steps,
    ),
    Tool(
        name="write_report",
        title="Write the report",
        description="Write the comparison as one HTML file beside the result, for people; `lines` has its path.",
        takes=_takes(_COMPARISON),
        gives=_object({"lines": _list_of({"type": "string"}), "notes_of_command": _NOTES}, ["lines"]),
        run=_write_report,
        writes=True,
    ),
    Tool(
        name="write_repro",
        title="Write a reproduction package",
        description=(
            "Write a folder with one op cut out of the network: inputs, outputs, expected result, and a script that "
            "shows the error anywhere; for the kernel team. `lines` has its path and the command. Nothing is run."
        ),
        takes=_takes({**_DATA, "op": _text("Name of the op."), **_PLACE}, "op"),
        gives=_object({"lines": _list_of({"type": "string"}), "notes_of_command": _NOTES}, ["lines"]),
        run=_write_repro,
        writes=True,
    ),
)


def tools_of(permission: Permission) -> list[Tool]:
    """Return the tools of a server that may do so much."""
    return [tool for tool in TOOLS if permission.may_write or not tool.writes]


def run_tool(desk: Desk, name: str, arguments: Mapping[str, Any]) -> Document:
    """Return the answer of a tool to arguments that fit its schema; the user's errors are raised."""
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    if tool is None:
        raise UsageError("mcp.no_such_tool", name=name, names=[tool.name for tool in tools_of(desk.permission)])
    if tool.writes and not desk.permission.may_write:
        raise UsageError("mcp.read_only", tool=name)
    return tool.run(desk, arguments)
