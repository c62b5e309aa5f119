"""The catalogue and its renderer; every kind that the code names is there with its fields, in both languages."""

from __future__ import annotations

import ast
import builtins
import json
import pickle
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from precision_tool.lib import messages
from precision_tool.lib.diagnose.error_shape import Mistake
from precision_tool.lib.diagnose.run_checks import RUN_CHECKS
from precision_tool.lib.diagnose.study_conclusion import Ground
from precision_tool.lib.diagnose.verdict_model import Action, Cause, NotCheckedKind, Proof
from precision_tool.lib.messages import Message, catalogue, language, render, use_language
from precision_tool.lib.messages.errors import FormatError, UsageError

PACKAGE = Path(messages.__file__).resolve().parents[2]
ENGLISH, CHINESE = catalogue.catalogue("en"), catalogue.catalogue("zh")


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    made: dict[str, str] = {"list.comma": ", ", "list.more": "{names} and {more} more", "color.red": "red"}
    monkeypatch.setattr(catalogue, "catalogue", lambda language: made)
    return made


@pytest.mark.parametrize(
    ("template", "fields", "shown"),
    [
        ("{name} is here", {"name": "conv"}, "conv is here"),
        ("{n}", {"n": 12345}, "12,345"),
        ("{n:d}", {"n": 12345}, "12345"),
        ("{x:.2f}", {"x": 0.126}, "0.13"),
        ("{n:count op}", {"n": 1}, "1 op"),
        ("{n:count op}", {"n": 3000}, "3,000 ops"),
        ("{n:count box|boxes}", {"n": 2}, "2 boxes"),
        ("{n} {n:plural is|are}", {"n": 2}, "2 are"),
        ("{x:percent}", {"x": 0.637}, "63.7 %"),
        ("{x:percent}", {"x": 23.1234}, "2,310 %"),
        ("{x:percent}", {"x": 231234.0}, "2.31e+07 %"),
        ("{x:percent}", {"x": float("nan")}, "Inf"),
        ("{n:bytes}", {"n": 1_500_000_000}, "1.5 GB"),
        ("{s:shape}", {"s": (8,)}, "(8,)"),
        ("{s:shape}", {"s": ((8, 12), ())}, "(8, 12), ()"),
        ("{names:list 2}", {"names": ["a", "b", "c", "d"]}, "a, b and 2 more"),
        ("{names:list 2}", {"names": ["a", "b"]}, "a, b"),
        ("{names}", {"names": ("a", 2)}, "a, 2"),
        ("{parts:join ; }", {"parts": ("a", "b")}, "a; b"),
        ("{c:of color}", {"c": "red"}, "red"),
        ("a{?b , with {b}}", {"b": "c"}, "a, with c"),
        ("a{?b , with {b}}", {"b": ""}, "a"),
        ("a{?b , with {b}}", {"b": 0}, "a, with 0"),
        ("a{!b , without}", {}, "a, without"),
        ("a{?b {?c {b}{c}}}", {"b": 1, "c": 2}, "a12"),
        ("{{{name}}}", {"name": "x"}, "{x}"),
        ("{name}", {"name": "\x1b[31mred"}, "\\x1b[31mred"),
        ("{inner}!", {"inner": Message("color.red")}, "red!"),
        ("{s:shape}", {"s": ("\x1b[31m", 2)}, "(\\x1b[31m, 2)"),
        # What a file holds where a figure should be.
        ("{x:.2f} {x:d} {x:shape} {x:list 2} {x:join ;}", {"x": 1.5}, "1.50 1.5 1.5 1.5 1.5"),
        ("{x:.2f} {x:count op} {x:bytes}", {"x": ("a\x1b", 2)}, "a\\x1b, 2 a\\x1b, 2 a\\x1b, 2"),
        ("{x:shape} {x:list 2} {x:join ;}", {"x": "abc"}, "abc abc abc"),
        ("{n}", {"n": 10**5000}, "1.00000e+5000"),
    ],
)
def test_placeholders(texts: dict[str, str], template: str, fields: dict[str, object], shown: str) -> None:
    texts["kind"] = template
    assert render(Message("kind", **fields)) == shown


@pytest.mark.parametrize("template", ["{name", "name}", "{?name inner"])
def test_broken_templates_are_errors(texts: dict[str, str], template: str) -> None:
    texts["kind"] = template
    with pytest.raises(ValueError, match=r"brace|substring"):
        render(Message("kind", name=1))


def test_messages_are_values() -> None:
    message = Message("a.b", number=3, inner=Message("c"), names=("x", float("inf")))
    assert message == Message.from_dict(json.loads(json.dumps(message.to_dict())))
    assert message == pickle.loads(pickle.dumps(message))
    assert message != Message("a.b", number=4)
    assert message.number == 3
    with pytest.raises(AttributeError):
        _ = message.nothing


@pytest.mark.parametrize("document", [{}, {"kind": 1, "fields": {}}, {"kind": "a", "fields": []}])
def test_damaged_documents_are_refused(document: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Message.from_dict(document)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh-Hans"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zhx"}, "en"),
    ],
)
def test_the_locale_chooses(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language() == expected
    with use_language("zh"):
        assert language() == "zh"
    assert language() == expected


def test_errors_speak_the_language_in_use() -> None:
    error = FormatError.of("a.npy", "cut off", "copy it again", line=3)
    assert (error.message, error.hint) == ("a.npy line 3: cut off", "copy it again")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is FormatError
    assert (copy.message, copy.path, copy.line) == (error.message, "a.npy", 3)
    with use_language("zh"):
        assert error.message == "a.npy 第 3 行\N{FULLWIDTH COLON}cut off"
    assert isinstance(UsageError("no"), ValueError)


# --- the catalogue and the code ---


def test_both_languages_have_the_same_kinds_and_fields() -> None:
    assert ENGLISH.keys() == CHINESE.keys()
    for kind, template in ENGLISH.items():
        assert catalogue.field_names(template) == catalogue.field_names(CHINESE[kind]), kind


def test_no_kind_stands_twice() -> None:
    def checked(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    for name in messages.LANGUAGES:
        path = Path(messages.__file__).with_name(f"{name}.json")
        json.loads(path.read_text("utf-8"), object_pairs_hook=checked)


#: Exceptions that are no errors of the user: their texts are reasons of rows, of the log and of errors.
REASONS = ("JSONDecodeError", "OddCacheError", "_RefusedError")


def uses(source: str) -> Iterator[tuple[int, str, set[str], bool]]:
    """The kinds that a module names: line, kind, fields, and whether more fields may come (`**fields`)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_of_file = name == "of" and isinstance(owner, ast.Name) and owner.id.endswith("Error")
        is_error = name.endswith("Error") or (name == "within" and isinstance(owner, ast.Name)) or is_of_file
        first = node.args[is_of_file] if len(node.args) > is_of_file else None
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            continue
        fields = {keyword.arg for keyword in node.keywords if keyword.arg}
        is_open = any(keyword.arg is None for keyword in node.keywords)
        if name in ("Message", "text"):
            yield node.lineno, first.value, fields, is_open
        elif name in ("say", "_say_once"):
            yield node.lineno, f"note.training.{first.value}", fields, is_open
        elif name == "add_columns":
            for column in node.args[1:]:
                if isinstance(column, ast.Constant) and isinstance(column.value, str):
                    yield node.lineno, f"{first.value}.{column.value}", set(), False
        elif name in ("NotComputedError", "NoValueError", "LayoutError", "SizeMismatchError"):
            yield node.lineno, f"reason.{first.value}", fields, is_open
        elif is_error and " " not in first.value and not hasattr(builtins, name) and name not in REASONS:
            yield node.lineno, f"error.{first.value}", fields - PLACE, is_open


#: Arguments of errors that are no fields, but which their texts may name.
PLACE = {"offset", "line", "what"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_kind_that_the_code_names_has_its_texts(path: Path) -> None:
    for line, kind, fields, is_open in uses(path.read_text("utf-8")):
        named: set[str] = set()
        parts = [kind] if kind in ENGLISH else [part for part in (f"{kind}.text", f"{kind}.hint") if part in ENGLISH]
        assert parts, f"{path}:{line}: {kind} has no text"
        for part in parts:
            named |= catalogue.field_names(ENGLISH[part])
        if kind not in ENGLISH:
            named -= PLACE
        missing = named - fields
        if path.parent.name == "ops":
            missing.discard("op_type")  # filled in where a function of the table ends
        assert is_open or not missing, f"{path}:{line}: {kind} lacks {missing}"
        unused = fields - named
        assert not unused, f"{path}:{line}: {kind} does not name {unused}"


def test_an_error_without_a_text_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("UsageError('cli.oddd')\nFormatError.of(path, 'io.oddd')\nValueError('ours')\n")
    assert [kind for _, kind, _, _ in uses(module.read_text("utf-8"))] == ["error.cli.oddd", "error.io.oddd"]
    with pytest.raises(AssertionError, match=r"cli\.oddd has no text"):
        test_every_kind_that_the_code_names_has_its_texts(module)


#: Sections whose kinds must all be used in Python; `page` is the report's.
WHOLE_SECTIONS = frozenset(kind.partition(".")[0] for kind in ENGLISH) - {"page", "list", "text"}


def patterns(source: str) -> Iterator[str]:
    """The kinds that a module may name, as regular expressions: literals, sections and f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_section = node.value.count(".") > 1  # which a name is added to
            yield re.escape(node.value.removesuffix(".")) + (r"(\.\w+)?" if is_section else "")
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+" for part in node.values
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_columns":
            section = node.args[0]
            if isinstance(section, ast.Constant):
                yield rf"{re.escape(str(section.value))}\.\w+"
        elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            yield re.escape(node.left.value) + r"\w+"


def spelled(kind: str) -> Iterator[str]:
    """How a module names a kind: in full, or without what errors and the training side put around it."""
    yield kind
    if kind.startswith("error."):
        yield kind.removeprefix("error.").removesuffix(".text").removesuffix(".hint")
    yield kind.removeprefix("reason.").removeprefix("note.training.")


def test_every_kind_is_used() -> None:
    sources = [path.read_text("utf-8") for path in MODULES]
    forms = {form for source in sources for form in patterns(source) if re.fullmatch(r"[a-z][\w.+?()\\]*", form)}
    enumerations = {prefix for text in ENGLISH.values() for prefix in re.findall(r":of ([\w.]+)", text)}
    forms |= {re.escape(prefix) + r"\.\w+" for prefix in enumerations}
    named = re.compile("|".join(sorted(forms)))
    expected = {kind for kind in ENGLISH if kind.partition(".")[0] in WHOLE_SECTIONS}
    assert sorted(kind for kind in expected if not any(map(named.fullmatch, spelled(kind)))) == []


def test_every_check_has_its_title() -> None:
    names = [re.search(r'^NAME = "(\w+)"$', path.read_text("utf-8"), re.M) for path in MODULES]
    checks = {match[1] for match in names if match is not None}
    assert checks >= set(RUN_CHECKS.all())
    assert [name for name in checks if f"check.{name}.title" not in ENGLISH] == []


@pytest.mark.parametrize(
    ("prefix", "values"),
    [
        ("cause", Cause), ("cause.what", Cause), ("step", Action), ("gap", NotCheckedKind), ("study.ground", Ground),
        ("verdict.proof", set(Proof) - {Proof.COPIES, Proof.RECOMPUTED}), ("verdict.pattern", Mistake),
    ],
)  # fmt: skip
def test_every_value_has_its_text(prefix: str, values: Iterable[str]) -> None:
    assert [value for value in values if f"{prefix}.{value}" not in ENGLISH] == []


def sentences(source: str) -> Iterator[int]:
    """The lines that raise an error of ours with a sentence, a text with a blank, where a kind should be."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name, _, method = ast.unparse(node.func).partition(".")
        if (
            not name.endswith("Error")
            or hasattr(builtins, name)
            or name in REASONS
            or method not in ("", "of", "within")
        ):
            continue
        for argument in node.args[method == "of" :][:1]:
            literals = (part.value for part in ast.walk(argument) if isinstance(part, ast.Constant))
            if any(isinstance(value, str) and " " in value for value in literals):
                yield node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_errors_are_kinds(path: Path) -> None:
    assert list(sentences(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("UsageError('no.kind')", []), ("ValueError('our own mistake')", []), ("FormatError.of(path, 'cut off')", [1]),
        ("\nUsageError(f'{name}: no such folder')", [2]), ("FormatError.within('a ' + name)", [1]),
    ],
)  # fmt: skip
def test_sentences_are_seen(source: str, lines: list[int]) -> None:
    assert list(sentences(source)) == lines
