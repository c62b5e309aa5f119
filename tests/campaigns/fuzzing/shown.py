"""Readers of what others see: texts of the catalogue with any fields, and names that a shell is offered."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from rich.text import Text

from fuzzing import WrongAnswerError
from precision_tool.lib.cli import cmd_completion
from precision_tool.lib.compare.columns import read_text, text_cell
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.catalogue import catalogue, field_names
from precision_tool.lib.messages.language import LANGUAGES, use_language
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.html import html_of
from precision_tool.lib.view.text import LabelledLines, json_text, shown

#: What names, reasons and figures of files may be.
HOSTILE: tuple[Any, ...] = (
    "\x1b[2J\x1b[31m", "\x9b31m", "\x1b]0;title\x07", "\u202egnp.exe", "\u2066\u2069\u200b\ufeff",
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "]]>", "<!--", "-->", "&lt;&#x27;",
    "\"'`", "=cmd()|'/c calc'!A0", "+1", "-1", "@SUM(A1)", "%x", "\t=1", "'=1", "[bold]x[/bold]", "[/]",
    "[link=file:///]x", "{name}", "{?a b}", "{0.__class__}", "%s%n", "\ud800", "\udcff", "a\0b", "a\r\nb", "\n\n",
    "\u2028\u2029", "\U000e0001", "A"*5000, "\u0301"*300, "", " ", "..", 0, 1, -1, 2**64, 10**5000, -(10**400),
    0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"), True, False, None, (), ("a", "\x1b[1m"),
    (1, None), ((2, 3), ()), (("\x00",),), ((((),),),),
)  # fmt: skip


@cache
def _kinds() -> tuple[str, ...]:
    return tuple(sorted(catalogue("en")))


@cache
def _fields_of(kind: str) -> tuple[str, ...]:
    return tuple(sorted(set().union(*(field_names(catalogue(language)[kind]) for language in LANGUAGES))))


def _value(rng: Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.1 and depth < 3:
        inner = rng.choice(_kinds())
        return Message(inner, **{name: _value(rng, depth + 1) for name in _fields_of(inner)})
    if kind < 0.2 and depth < 3:
        return tuple(_value(rng, depth + 1) for _ in range(rng.randrange(5)))
    return rng.choice(HOSTILE)


def hostile_message(rng: Random, kind: str = "") -> Message:
    """A kind of the catalogue with fields that are anything, now and then missing."""
    kind = kind or rng.choice(_kinds())
    return Message(kind, **{name: _value(rng) for name in _fields_of(kind) if rng.random() < 0.95})


def message_input(rng: Random) -> bytes:
    """Such a message as JSON."""
    return json.dumps(_without_digits(hostile_message(rng).to_dict())).encode()


def _without_digits(document: Any) -> Any:
    """Python reads no whole numbers of thousands of digits from JSON: shorter ones."""
    if isinstance(document, dict):
        return {name: _without_digits(value) for name, value in document.items()}
    if isinstance(document, list):
        return [*map(_without_digits, document)]
    return document % 10**50 if isinstance(document, int) and not isinstance(document, bool) else document


def messages(folder: Path) -> list[bytes]:
    """A few messages."""
    del folder
    sound = (Message("error.place", where="f", reason=Message("text", text="damaged")), Message("list.comma"))
    return [json.dumps(message.to_dict()).encode() for message in sound]


def read_message(path: str) -> Iterator[str]:
    """In both languages, on the terminal, in HTML, CSV and JSON."""
    with suppress(KeyError, TypeError, ValueError, OverflowError, RecursionError):
        check_message(Message.from_dict(json.loads(Path(path).read_bytes())))
    yield from ()


def check_message(message: Message) -> None:
    """WrongAnswerError where a message is shown as it must not be."""
    for language in LANGUAGES:
        with use_language(language):
            text = render(message)
            if not text.replace("\n", "").isprintable():
                raise WrongAnswerError(f"{message.kind}: a text with control characters: {text!r}"[:500])
            screen, file = io.StringIO(), io.StringIO()
            console = ReportConsole(file=screen, width=100)
            console.print(shown(message, "bold", dict.fromkeys(message.fields, "red")))
            console.print(LabelledLines([("x", shown(message))]))
            if not screen.getvalue().replace("\n", "").isprintable():
                raise WrongAnswerError(f"{message.kind}: a screen with control characters: {screen.getvalue()!r}"[:500])
            if _Elements(html_of(shown(message))).names != _Elements(html_of(Text("x" * bool(text.strip())))).names:
                raise WrongAnswerError(f"{message.kind}: other elements of HTML: {text!r}"[:500])
            if json.loads(json_text({"message": message})) != {"message": text}:
                raise WrongAnswerError(f"{message.kind}: another text in JSON: {text!r}"[:500])
            csv.writer(file).writerow([text_cell(text)])
            ((cell,),) = csv.reader(io.StringIO(file.getvalue(), newline=""))
            if cell[:1] in {"=", "+", "-", "@", "\t", "\r"} or read_text(cell) != text:
                raise WrongAnswerError(f"{message.kind}: a cell that may be a formula, or another one: {cell!r}"[:500])


class _Elements(HTMLParser):
    """The elements of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "span":  # a field in a style of its own
            self.names.append(tag)

    def handle_comment(self, data: str) -> None:
        self.names.append("comment")


# --- names that Tab offers


def offered(folder: Path) -> list[bytes]:
    """Names of ops, one a line."""
    del folder
    return [b"net/layer_1/MatMul\n[17]\n/Addmm/4\nop:output:0\na+b\na=b\n", b"$(id)\n`id`\n;id\n~\n-x\n*\na b\na'b\n"]


def offered_input(rng: Random) -> bytes:
    """Names that shells take for something else."""
    pieces = (
        "a", "op/", "[1]", "[17]", "[a-z]", "$(id)", "`id`", "${HOME}", "$HOME", ";id", "&", "|", ">x", "<x", "*",
        "?", "~", "~root", "!", "!!", "^a^b", "#", "{a,b}", "(", "'", '"', "\\", " ", "\t", "\r", "\0", "\x1b[1m",
        "=", "=~", ":~", "%1", "-", "--", "-rf", "@", ",", "+", ".", "..", "/", "²", "中", "\u202e", "\u2028",
        "\x85", "\ud800", "é", "_", ":",
    )  # fmt: skip
    names = ("".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6))) for _ in range(40))
    return "\n".join(names).encode("utf-8", "surrogatepass")


def read_offered(path: str) -> Iterator[str]:
    """As Tab does: what is offered stands for itself when a shell reads it."""
    names = tuple(Path(path).read_bytes().decode("utf-8", "surrogateescape").split("\n"))
    session = Mock()
    session.names.op_names.return_value, session.workspace.notes = names, []
    out: Any = SimpleNamespace(out=SimpleNamespace(file=io.StringIO()))
    cmd_completion.run(session, ("--names", "op"), out)
    lines = out.out.file.getvalue().split("\n")
    if lines.pop() or not {*lines} <= {*names}:
        raise WrongAnswerError(f"a name that is none: {lines}"[:500])
    empty = f"{path}.empty"
    os.makedirs(empty, exist_ok=True)
    script = "set -- " + " ".join(lines) + '\n[ $# = 0 ] || printf "%s\\n" "$@"\n'
    shell = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=empty, capture_output=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    said = shell.stdout.decode("utf-8", "surrogateescape").split("\n")[:-1]
    if shell.stderr or said != [line for line in lines if line]:
        raise WrongAnswerError(f"bash reads {said} for {lines}: {shell.stderr!r}"[:600])
    yield from ()
