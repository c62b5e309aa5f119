"""The text-format parser: any style gives the same tree, any damage an error that says where."""

from __future__ import annotations

import gc
import math
import pickle
import random
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest
from fuzzing.protobuf_oracle import compare
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.io import proto_text, wire
from precision_tool.lib.io.lazy_nodes import LazyNodes
from precision_tool.lib.io.proto_text import (
    MAX_DEPTH,
    bool_of,
    bytes_of,
    float_of,
    int_of,
    not_utf8_notes,
    parse_proto_text,
    string_of,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError


def tree_of(text: str | bytes) -> dict[str, list[Any]]:
    """The tree of a text, which is the same where some of its blocks are parsed again when somebody asks for them."""
    tree = parse_proto_text(text, "f.txt")
    for lazy in ("a", "name"):
        again: Any = parse_proto_text(text, "f.txt", lazy)
        kept = [block for blocks in again.values() if isinstance(blocks, list) for block in blocks]
        for node in (again, *kept):
            assert lazy not in node or isinstance(node, str) or isinstance(node[lazy], LazyNodes)
        assert opened(again) == tree
    return tree


def opened(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: opened(values) for name, values in tree.items()}
    return tree if isinstance(tree, str) else [opened(value) for value in tree]


def error_of(text: str | bytes) -> str:
    messages = []
    for lazy in ("", "a"):
        with pytest.raises(FormatError) as caught:
            parse_proto_text(text, "f.txt", lazy)
        assert caught.value.hint
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    return messages[0]


# ---- every way to write a field


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", {}),
        (" \n# nothing but a comment", {}),
        ("a: 1", {"a": ["1"]}),
        ("a:1 a:2", {"a": ["1", "2"]}),
        ("a: 1, b: 2; c: 3", {"a": ["1"], "b": ["2"], "c": ["3"]}),
        ("a { }", {"a": [{}]}),
        ("a: { }", {"a": [{}]}),
        ("a < b: 1 >", {"a": [{"b": ["1"]}]}),
        ("a: < b { c: x } >", {"a": [{"b": [{"c": ["x"]}]}]}),
        ("a {}, b {}; c {}", {"a": [{}], "b": [{}], "c": [{}]}),
        ("a: [1, 2]", {"a": ["1", "2"]}),
        ("a: []", {}),
        ("a: 0 a: [1,2] a: 3", {"a": ["0", "1", "2", "3"]}),
        ("a: [1, # 7 ]\n 2 # 8\n]", {"a": ["1", "2"]}),
        ("a: [{b: 1}, {b: 2}]", {"a": [{"b": ["1"]}, {"b": ["2"]}]}),
        ("a [<b: 1>, {}] c: 3", {"a": [{"b": ["1"]}, {}], "c": ["3"]}),
        ("a {b: [{c [{}] } # }, {\n] }", {"a": [{"b": [{"c": [{}]}]}]}),
        ("[x.y/z-1]: 5 [k] {}", {"[x.y/z-1]": ["5"], "[k]": [{}]}),
        ('a # {\n : # "\n "}" # }', {"a": ['"}"']}),
        ("a: -1 b: - 1 c: -inf d: 1.5e-3f e: 0x1F f: .5 g: 5.", None),
        ("\ufeffa: 1", {"a": ["1"]}),
        ("a: 1\r\nb {\r\n}\r\n", {"a": ["1"], "b": [{}]}),
    ],
)
def test_forms(text: str, tree: dict[str, Any] | None) -> None:
    if tree is None:
        tree = {"a": ["-1"], "b": ["- 1"], "c": ["-inf"], "d": ["1.5e-3f"], "e": ["0x1F"], "f": [".5"], "g": ["5."]}
    assert tree_of(text) == tree


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a {\n b {\n c: 1", ["line 3, byte 14", "cut off", "'b' (line 2), 'a' (line 1)"]),
        ('a {\n name: "abc', ["line 2, byte 15", "cut off in a string (byte 11)", "'name:'", "'a' (line 1)"]),
        ('a: "abc\nd: 1', ["line 1, byte 3", "string does not end on its line"]),
        ("a: 1\nb", ["line 2, byte 6", "cut off after 'b'"]),
        ("a: 1\nb:", ["line 2, byte 7", "cut off after 'b:'"]),
        ("a: [1, 2", ["byte 8", "cut off in the list of 'a'"]),
        ('a: [1, "s', ["byte 9", "cut off in a string", "list of 'a'"]),
        ("a: [{}, {}", ["cut off in a list of blocks", "'a' (line 1)"]),
        ("a: [{},", ["cut off in a list of blocks"]),
        ("a: [1 2]", ["byte 6", "unexpected '2'", "',' or ']'"]),
        ("a: [1, ]", ["byte 7", "unexpected ']'", "a value"]),
        ("a: [{} {}]", ["byte 5", "',' or ']'"]),
        ("a: [{b: 1 ]}", ["byte 10", "unexpected ']'"]),
        ("a: [{}>", ["byte 5", "after a block of a list"]),
        ("-", ["byte 0", "unexpected '-'"]),
        ("a [1]", ["byte 2", "unexpected '['"]),
        ("}", ["byte 0", "closes nothing"]),
        ("a {\n >", ["line 2, byte 5", "'>' where '}' was expected"]),
        ("a {}\n}", ["line 2, byte 5", "closes nothing"]),
        ("a { b {} ] }", ["byte 7", "unexpected ']'"]),
        ("a: 1b: 2", ["byte 3", "unexpected '1b'"]),
        ("a: 1.2.3", ["byte 3", "unexpected '1.2.3'"]),
        ("a 1", ["byte 2", "unexpected '1'", "':' or '{'"]),
        ("a: é", ["byte 3", "unexpected 'é'"]),
        ("é: 1", ["byte 0", "unexpected 'é'"]),
        ("# é\né", ["line 2, byte 5"]),  # the offset counts bytes, not characters
        ("a: 1,, b: 2", ["byte 5", "unexpected ','"]),
        ("Index,Name,Value\n", ["byte 5", "unexpected ','"]),
        ("a: 1\n\0\0", ["line 2, byte 5", "NUL"]),
    ],
)
def test_errors_say_where_and_why(text: str, parts: list[str]) -> None:
    message = error_of(text)
    for part in ["f.txt", *parts]:
        assert part in message


def test_an_error_survives_pickling() -> None:
    with pytest.raises(FormatError) as caught:
        parse_proto_text("a {", "f.txt")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.message, copy.hint) == (caught.value.message, caught.value.hint)


def test_nesting_up_to_the_limit() -> None:
    node = tree_of("a {" * MAX_DEPTH + "}" * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        (node,) = node["a"]
    assert node == {}
    assert f"deeper than {MAX_DEPTH}" in error_of("a {" * (MAX_DEPTH + 1) + "}" * (MAX_DEPTH + 1))
    assert f"deeper than {MAX_DEPTH}" in error_of("a: [<" * 100_000)


def test_the_collector_is_restored() -> None:
    assert gc.isenabled()
    error_of("a {")
    assert gc.isenabled()
    gc.disable()
    try:
        tree_of("a {}")
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- bytes that are no text


def test_bytes_that_are_not_utf8_are_noted_and_printable() -> None:
    data = b'a: "x\xff\xc3\xa9\xfe" # \xfd\n'
    (token,) = tree_of(data)["a"]
    assert string_of(token) == "x\\xffé\\xfe"
    assert bytes_of(token) == b"x\xff\xc3\xa9\xfe"
    assert not_utf8_notes(data) == (Message("note.io.not_utf8", count=3, offset=5),)
    string_of(token).encode()  # no lone surrogate in it


def test_utf8_gives_no_note() -> None:
    assert string_of(tree_of('a: "é中"')["a"][0]) == "é中"
    assert not_utf8_notes('a: "é中"'.encode()) == ()


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text("a:{}<>[]\",;#\\\n 1-'", max_size=60))
def test_junk_gives_a_tree_or_a_format_error(junk: bytes | str) -> None:
    try:
        tree = tree_of(junk)
    except FormatError as error:
        error.message.encode()
    else:
        assert isinstance(tree, dict)


# ---- megabytes


@pytest.mark.parametrize("piece", ["\\377", '\\"', "\\\\", "x", "\\n'", "é"])
def test_a_string_of_megabytes_is_one_undecoded_token(piece: str) -> None:
    # Anything that is tried again at each character would not end in the lifetime of a test run.
    token = '"' + piece * 1_000_000 + '"'
    text = f"a {{ bt: {token} }}"
    assert tree_of(text) == {"a": [{"bt": [token.encode().decode("latin-1")]}]}
    assert "cut off in a string" in error_of(text[:-3])
    assert "does not end on its line" in error_of(text[:-3] + "\n}")


def test_many_strings_and_spaces_are_one_pass() -> None:
    token = " ".join(['"a"'] * 300_000)
    assert string_of(tree_of(f"s: {token}")["s"][0]) == "a" * 300_000
    assert "cut off" in error_of(f'a {{ s: {token} "')
    assert "cut off after 'a:'" in error_of("a:" + " \n" * 1_000_000)
    assert "cut off in the list" in error_of("a: [" + "1," * 300_000)


# ---- scalars, by hand


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ('"plain"', b"plain"),
        ("'it\"s'", b'it"s'),
        ('""', b""),
        (r'"\a\b\f\n\r\t\v\\\'\"\?"', b"\x07\x08\x0c\x0a\x0d\x09\x0b\x5c\x27\x22\x3f"),
        (r'"\0\12\1777\377\777"', b"\x00\x0a\x7f7\xff\xff"),
        (r'"\x7fELF\xfg\X41"', b"\x7fELF\x0fgA"),
        (r'"\u00e9\U0001f600"', "é😀".encode()),
        (r'"\\n\\\\x"', b"\\n\\\\x"),
        (r'"\U00110000\U001fFFFF\U0010ffff"', rb"\U00110000\U001fffff" + "\U0010ffff".encode()),
        (r'"\ud83d\ude00\U0000D83D\uDE00"', "😀😀".encode()),
        (r'"\ud83d\U0000de00\ude00\ud83d"', b"\xed\xa0\xbd\xed\xb8\x80\xed\xb8\x80\xed\xa0\xbd"),
        ('"\\12٣\\x4٣\\1012"', "\n٣\4٣A2".encode()),
        ('"a" \'b\' # "no"\n "c\\n"', b"abc\n"),
    ],
)
def test_escapes(token: str, expected: bytes) -> None:
    (raw,) = tree_of(f"a: {token}")["a"]
    assert bytes_of(raw) == expected
    assert string_of(raw) == expected.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    "escape",
    [
        *(
            "\\٣",
            "\\²",
            "\\8",
            "\\q",
            "\\é",
            "\\x",
            "\\x٣",
            "\\u004",
            "\\u004٣",
            "\\U0041",
            "\\U00200000",
            "\\UFFFFFFFF",
        ),
        *("\\ud83d\\u", "\\\\\\٣"),
    ],
)
def test_what_is_no_escape(escape: str) -> None:
    """What protobuf's tokenizer refuses (ConsumeString of io/tokenizer.cc)."""
    with pytest.raises(FormatError) as caught:
        string_of(tree_of(f'a: "x{escape}"')["a"][0])
    assert caught.value.kind == "io.proto.escape"


@pytest.mark.skipif(which("protoc") is None, reason="there is no protoc")
def test_names_are_those_of_protobuf() -> None:
    outcome = compare(300, seed=11)
    assert not outcome.differing
    assert outcome.accepted > 200
    assert outcome.refused > 10


@settings(deadline=None)
@given(st.binary())
def test_octal_and_hex_escapes_hold_any_bytes(value: bytes) -> None:
    for style in ("\\{:03o}", "\\x{:02x}"):
        text = 'a: "' + "".join(style.format(byte) for byte in value) + '"'
        assert bytes_of(tree_of(text)["a"][0]) == value


@pytest.mark.parametrize(
    ("token", "expected"),
    [("0", 0), ("-0", 0), ("42", 42), ("-42", -42), ("- 42", -42), ("0x1F", 31), ("-0X1f", -31), ("017", 15)],
)
def test_integers(token: str, expected: int) -> None:
    (raw,) = tree_of(f"a: {token}")["a"]
    assert int_of(raw) == expected


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("1e-05", 1e-5),
        (".5", 0.5),
        ("5.", 5.0),
        ("2.5f", 2.5),
        ("3F", 3.0),
        ("0x10", 16.0),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_floats(token: str, expected: float) -> None:
    (raw,) = tree_of(f"a: {token}")["a"]
    assert float_of(raw) == expected


def test_nan_and_booleans() -> None:
    assert math.isnan(float_of("nan"))
    assert math.isnan(float_of("-nan"))
    assert [bool_of(word) for word in ("true", "True", "t", "1")] == [True] * 4
    assert [bool_of(word) for word in ("false", "False", "f", "0")] == [False] * 4


@pytest.mark.parametrize("token", ["abc", "1.5", "08", '"1"', "-x", {}, "9" * 5000])
def test_what_is_no_integer(token: Any) -> None:
    with pytest.raises(FormatError, match="whole number"):
        int_of(token)


@pytest.mark.parametrize(
    ("decode", "token"),
    [
        (float_of, '"1"'),
        (float_of, "abc"),
        (float_of, {}),
        (bool_of, "2"),
        (bool_of, "yes"),
        (bool_of, {}),
        (string_of, "a"),
        (string_of, {}),
        (bytes_of, "1"),
        (bytes_of, {}),
    ],
)
def test_what_is_no_float_boolean_or_string(decode: Callable[[Any], Any], token: Any) -> None:
    with pytest.raises(FormatError, match="where"):
        decode(token)


# ---- blocks that are parsed when somebody asks for them


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("graph { op { %s } }" % ('input: "a"\n' * 1000), "OP_MEMORY"),
        ("graph { op [{ %s }] }" % ("desc {}" * 1000), "OP_MEMORY"),
        ("op { input: [" + ",".join(["1"] * 10_000) + "] }", "OP_MEMORY"),
        ("graph {} " * 1000, "OP_MEMORY"),
        ("graph { %s }" % ('op { name: "a"}' * 1000), "MAX_GRAPH_OPS"),
        ("op [" + ",".join(["{}"] * 1000) + "]", "MAX_GRAPH_OPS"),
    ],
)
def test_a_text_that_would_take_too_much_is_refused_with_both_figures(
    text: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_proto_text(text, "f.txt", "op")
    monkeypatch.setattr(proto_text if limit == "OP_MEMORY" else wire, limit, 10)
    with pytest.raises(FormatError) as caught:
        parse_proto_text(text, "f.txt", "op")
    assert caught.value.kind == "io.out_of_proportion"
    fields: dict[str, Any] = caught.value.fields
    assert fields["size"] == len(text)
    assert fields["needed"] > fields["limit"]
    assert parse_proto_text(text, "f.txt")  # without such blocks it is not limited


def test_commas_in_strings_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'op { s: ["' + "1," * 5000 + '", "b"] }'
    monkeypatch.setattr(proto_text, "OP_MEMORY", 0)
    assert len(opened(parse_proto_text(text, "f.txt", "op"))["op"][0]["s"]) == 2


def test_many_lazy_blocks_take_as_little_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be as large as a block alone; what is around them is counted by itself."""
    block = "op { %s }\n" % ("x: 1 " * 100)
    text = "graph { name: 'a' %s version: 2 }" % (block * 50)
    monkeypatch.setattr(proto_text, "OP_MEMORY", 0)
    monkeypatch.setattr(proto_text, "_VALUE_BYTES", 2 * len(text) // 220)
    (graph,) = opened(parse_proto_text(text, "f.txt", "op"))["graph"]
    assert [len(op["x"]) for op in graph["op"]] == [100] * 50


# ---- properties: trees in any style

Tree = dict[str, list[Any]]
NAMES = st.sampled_from(["a", "name", "op_desc", "_x1", "[x.y]", "true"])


@st.composite
def strings(draw: st.DrawFn) -> str:
    quote = draw(st.sampled_from("\"'"))
    piece = st.sampled_from(["x", " ", "{", "}", "#", "\\n", "\\377", "\\\\", "\\" + quote, "é", ": <"])
    return str(quote + "".join(draw(st.lists(piece, max_size=8))) + quote)


def trees(size: int) -> st.SearchStrategy[Tree]:
    scalar = strings() | st.sampled_from(["1", "-2", "0x1F", "1.5e3", "-inf", "true", "DT_FLOAT", "- 3"])
    scalars = st.lists(scalar, min_size=1, max_size=3)
    return st.recursive(
        st.dictionaries(NAMES, scalars, max_size=3),
        lambda inner: st.dictionaries(NAMES, scalars | st.lists(inner, min_size=1, max_size=3), max_size=4),
        max_leaves=size,
    )


class Writer:
    """Writes a tree in a style that changes with every token."""

    def __init__(self, choice: random.Random) -> None:
        self.choice = choice

    def pick(self, *texts: str) -> str:
        return self.choice.choice(texts)

    def gap(self) -> str:
        return self.pick("", "", " ", "  ", "\n", "\t", " # {\n", "#'\"\n\n", "\r\n")

    def end(self) -> str:
        return self.gap() + self.pick(" ", "\n", " # }\n", ",", ";") + self.gap()

    def block(self, tree: Tree) -> str:
        braces = self.pick("{}", "<>")
        return braces[0] + self.gap() + self.fields(tree) + self.gap() + braces[1]

    def value(self, name: str, value: str | Tree) -> str:
        if isinstance(value, dict):
            return name + self.gap() + self.pick("", ":" + self.gap()) + self.block(value)
        return name + self.gap() + ":" + self.gap() + value

    def field(self, name: str, values: list[Any]) -> list[str]:
        if self.choice.random() < 0.3:
            items = [self.block(value) if isinstance(value, dict) else value for value in values]
            comma = self.gap() + "," + self.gap()
            return [name + self.gap() + ":" + self.gap() + "[" + self.gap() + comma.join(items) + self.gap() + "]"]
        return [self.value(name, value) for value in values]

    def fields(self, tree: Tree) -> str:
        return "".join(text + self.end() for name, values in tree.items() for text in self.field(name, values))


def as_tokens(tree: Any) -> Any:
    """The tree with its scalars as tokens: one character a byte."""
    if isinstance(tree, dict):
        return {name: [as_tokens(value) for value in values] for name, values in tree.items()}
    return tree.encode().decode("latin-1")


@settings(deadline=None)
@given(trees(12), st.randoms(use_true_random=False))
def test_any_style_gives_the_same_tree(tree: Tree, choice: random.Random) -> None:
    assert tree_of(Writer(choice).fields(tree)) == as_tokens(tree)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NAMES, strings() | trees(3)), max_size=3), st.randoms(use_true_random=False))
def test_a_cut_at_any_byte_is_an_error_or_between_fields(fields: list[Any], choice: random.Random) -> None:
    """A top-level field is a string or a block, as the first digits of a number are a valid number."""
    writer = Writer(choice)
    text = b""
    tree: Tree = {}
    whole = {0: as_tokens(tree)}  # what is expected, by the places where the text may end
    for name, value in fields:
        text += writer.value(name, value).encode()
        tree = {**tree, name: [*tree.get(name, []), value]}
        end = len(text)
        text += b" # gap\n"
        whole |= dict.fromkeys(range(end, len(text) + 1), as_tokens(tree))
    for cut in range(len(text) + 1):
        if cut in whole:
            assert tree_of(text[:cut]) == whole[cut]
        else:
            error_of(text[:cut])
