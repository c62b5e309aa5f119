"""GE graphs: text and JSON give one model, the skim gives the answers of the full load, other files are refused."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside_data import GRAPHS, LENET, needs_outside_data

from precision_tool.lib.io import ge_graph as ge_graph_tree
from precision_tool.lib.io import ge_graph_partial as ge_graph_skim
from precision_tool.lib.io.ge_graph import load_graph_bytes, load_graph_file
from precision_tool.lib.io.ge_graph_partial import GraphSkim, peek_graph_name, skim_graph_file, skim_ops
from precision_tool.lib.io.proto_text import parse_proto_text
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc

# ---- messages in Python, written as text and, the way atc does, as JSON


class Word(str):
    """An enum value."""


Message = list[tuple[str, Any]]

#: Repeated fields of GE's messages; in AttrDef.list all kinds are repeated too.
REPEATED = {
    "graph", "op", "attr", "input", "input_desc", "output_desc", "dim", "subgraph_name", "list_list_i", "list_i",
}  # fmt: skip


def quoted(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return "".join(
        "\\" + chr(byte) if chr(byte) in "\"'\\" else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in raw
    )


def to_text(message: Message, depth: int = 0) -> str:
    lines = []
    for name, value in message:
        start = "  " * depth + name
        if isinstance(value, list):
            lines.append(f"{start} {{\n{to_text(value, depth + 1)}{'  ' * depth}}}\n")
        elif isinstance(value, Word):
            lines.append(f"{start}: {value}\n")
        elif isinstance(value, (str, bytes)):
            lines.append(f'{start}: "{quoted(value)}"\n')
        else:
            lines.append(f"{start}: {str(value).lower()}\n")
    return "".join(lines)


def json_value(name: str, value: Any, parent: str) -> Any:
    if isinstance(value, list):
        return to_json_tree(value, name) or None
    if parent == "value" and name in ("s", "bt"):
        return quoted(value)
    return f"{value:g}" if isinstance(value, float) else value


def to_json_tree(message: Message, parent: str = "") -> Any:
    tree: dict[str, Any] = {}
    for name, value in message:
        if name in REPEATED or (parent == "list" and name != "val_type"):
            tree.setdefault(name, []).append(json_value(name, value, parent))
        else:
            tree[name] = json_value(name, value, parent)
    return tree


def to_json(message: Message) -> str:
    return json.dumps(to_json_tree(message), sort_keys=True, indent=2)


def attr(key: str, *value: tuple[str, Any]) -> tuple[str, Message]:
    return ("attr", [("key", key), ("value", list(value))])


def attr_list(key: str, kind: str, *values: Any) -> tuple[str, Message]:
    return attr(key, ("list", [(kind, value) for value in values] + [("val_type", Word("VT_LIST_ANY"))]))


def op(name: str, kind: str, *fields: tuple[str, Any]) -> tuple[str, Message]:
    return ("op", [("name", name), ("type", kind), *fields])


def model(*ops: tuple[str, Message]) -> Message:
    return [("graph", [("name", "g"), *ops])]


def load_text(message: Message) -> GraphFile:
    return load_graph_bytes(to_text(message).encode(), "x")


def load_json(message: Message) -> GraphFile:
    return load_graph_bytes(to_json(message).encode(), "x")


def nested(name: str, depth: int) -> Message:
    message: Message = []
    for _ in range(depth):
        message = [(name, message)]
    return message


BOTH = pytest.mark.parametrize("load", [load_text, load_json], ids=["text", "json"])


def only_op(load: Any, *fields: tuple[str, Any], name: str = "n") -> Op:
    (found,) = load(model(op(name, "T", *fields))).ops
    assert isinstance(found, Op)
    return found


# ---- the model


@BOTH
def test_an_op_with_everything(load: Any) -> None:
    desc = [
        ("dtype", Word("DT_FLOAT16")),
        ("shape", [("dim", 1), ("dim", 3), ("dim", -1)]),
        ("layout", "NC1HWC0"),
        attr("origin_format", ("s", "NHWC")),
        attr_list("origin_shape", "i", 1, 3),
        attr("_datadump_origin_name", ("s", "conv/BiasAdd")),
        attr("_datadump_origin_output_index", ("i", 0)),
        attr("_datadump_origin_format", ("s", "NCHW")),
    ]
    found = only_op(
        load,
        ("input", "a/b:0"),
        ("input", ""),
        ("input", "x:y:12"),
        ("input", "ctl:-1"),
        attr_list("pass_name", "s", "PassA", "PassB"),
        attr_list("_datadump_original_op_names", "s", "conv", "relu"),
        attr("_ge_attr_op_kernel_lib_name", ("s", "AIcoreEngine")),
        attr("n_kernelname", ("s", "te_conv")),
        attr("_L1_fusion_sub_graph_no", ("s", "7")),
        attr("_datadump_is_multiop", ("b", True)),
        attr("_parent_node_index", ("i", 2)),
        ("id", 5),
        ("stream_id", 3),
        ("input_desc", desc),
        ("output_desc", [("dtype", Word("DT_NEW_ONE"))]),
        ("subgraph_name", "then"),
        ("subgraph_name", "else"),
    )
    assert found == Op(
        name="n",
        type="T",
        id=5,
        inputs=(Edge(producer="a/b", index=0), None, Edge(producer="x:y", index=12)),
        control_inputs=("ctl",),
        input_descs=(
            TensorDesc(
                dtype="float16",
                layout="NC1HWC0",
                shape=(1, 3, -1),
                origin_layout="NHWC",
                origin_shape=(1, 3),
                dump_origin_name="conv/BiasAdd",
                dump_origin_index=0,
                dump_origin_layout="NCHW",
            ),
        ),
        output_descs=(TensorDesc(dtype="DT_NEW_ONE"),),
        pass_names=("PassA", "PassB"),
        original_names=("conv", "relu"),
        stream_id=3,
        kernel_name="te_conv",
        kernel_lib="AIcoreEngine",
        l1_fusion_group="7",
        is_multiop=True,
        parent_index=2,
        subgraph_names=("then", "else"),
    )


@BOTH
def test_a_bare_op(load: Any) -> None:
    # Protobuf does not write zeros, so an absent number field is 0.
    assert only_op(load) == Op(name="n", type="T", id=0, stream_id=0)


@BOTH
def test_original_names_absent_empty_and_blank(load: Any) -> None:
    key = "_datadump_original_op_names"
    assert only_op(load).original_names is None
    assert only_op(load, attr_list(key, "s")).original_names == ()
    assert only_op(load, attr(key, ("list", []))).original_names == ()
    assert only_op(load, attr_list(key, "s", "")).original_names == ("",)
    assert only_op(load, attr_list(key, "s", "é中")).original_names == ("é中",)


@BOTH
def test_attributes_in_their_other_forms(load: Any) -> None:
    assert only_op(load, attr("pass_name", ("s", "One"))).pass_names == ("One",)
    assert only_op(load, attr("_kernelname", ("s", "k"))).kernel_name == "k"
    assert only_op(load, attr("a:b_kernelname", ("s", "k")), name="a:b").kernel_name == "k"
    assert only_op(load, attr("_L1_fusion_sub_graph_no", ("i", 4))).l1_fusion_group == "4"
    assert only_op(load, attr("_datadump_is_multiop", ("i", 1))).is_multiop is True
    assert only_op(load, attr("_datadump_is_multiop", ("b", False))).is_multiop is False


@BOTH
def test_tensors_without_shape_and_of_unknown_rank(load: Any) -> None:
    found = only_op(
        load,
        ("output_desc", [("shape", []), attr_list("origin_shape", "i")]),
        ("output_desc", [("shape", [("dim", -2)]), attr_list("origin_shape", "i", -2)]),
        ("output_desc", [("dtype", 27)]),  # how a writer shows a value it has no name for
        ("output_desc", [("dtype", Word("DT_BF16")), ("shape", [("dim", 0)])]),
    )
    assert [(desc.dtype, desc.shape, desc.origin_shape) for desc in found.output_descs] == [
        ("", (), ()),
        ("", (-2,), (-2,)),
        ("bfloat16", (), None),
        ("bfloat16", (0,), None),
    ]


@BOTH
def test_attributes_decode_to_plain_python(load: Any) -> None:
    found = only_op(
        load,
        attr("s", ("s", 'a "b"\n\\é')),
        attr("i", ("i", -(2**63))),
        attr("f", ("f", 0.5)),
        attr("b", ("b", False)),
        attr("bt", ("bt", b"\x00\xff\\n")),
        attr("dt", ("dt", 3)),
        attr_list("ls", "s", "x", 'a"b\\n'),
        attr_list("li", "i", 1, -2),
        attr_list("lf", "f", 1.5, -0.25),
        attr_list("lb", "b", True, False),
        attr_list("nothing", "i"),
        attr("lli", ("list_list_int", [("list_list_i", [("list_i", 1), ("list_i", 2)]), ("list_list_i", [])])),
        attr("func", ("func", [("name", "f"), attr("x", ("i", 1))])),
        attr("td", ("td", [("dtype", Word("DT_INT8")), ("shape", [("dim", 4)])])),
        attr("later", ("new_kind", [("number", 3), ("flag", True)])),
        attr("empty"),
        attr("s", ("s", "the last of two with one key counts")),
    )
    assert dict(found.attrs) == {
        "s": "the last of two with one key counts",
        "i": -(2**63),
        "f": 0.5,
        "b": False,
        "bt": b"\x00\xff\\n",
        "dt": 3,
        "ls": ["x", 'a"b\\n'],
        "li": [1, -2],
        "lf": [1.5, -0.25],
        "lb": [True, False],
        "nothing": [],
        "lli": [[1, 2], []],
        "func": {"name": "f", "attr": {"x": 1}},
        "td": {"dtype": "DT_INT8", "shape": {"dim": [4]}},
        "later": {"number": 3, "flag": True},
        "empty": None,
    }
    assert len(found.attrs) == 16
    assert "bt" in found.attrs
    assert "zz" not in found.attrs
    assert found.attrs.get("zz", 1) == 1


@BOTH
def test_texts_in_attributes_are_unescaped_once(load: Any) -> None:
    assert only_op(load, attr("s", ("s", 'a "b"\n\\n\té'))).attrs["s"] == 'a "b"\n\\n\té'


def test_attributes_that_cannot_be_decoded_fail_when_asked_for() -> None:
    found = only_op(load_text, attr("i", ("i", Word("abc"))))
    with pytest.raises(FormatError, match="'abc' where a whole number"):
        found.attrs["i"]


def test_messages_nested_to_the_limit_decode() -> None:
    value: Message = [("i", 1)]
    for _ in range(60):
        value = [("func", [attr("k", *value)])]
    for load in (load_text, load_json):
        found = only_op(load, attr("deep", *value)).attrs["deep"]
        for _ in range(60):
            found = found["attr"]["k"]
        assert found == 1


def test_graphs_and_models() -> None:
    graph: Message = [("name", "g"), attr("_session_graph_id", ("s", "0_1")), op("a", "A"), op("a", "B")]
    sub: Message = [("name", "sub"), op("d", "Data")]
    for load in (load_text, load_json):
        bare = load(graph)
        assert [(found.name, found.type) for found in bare.ops] == [("a", "A"), ("a", "B")]
        assert bare.graphs[0].attrs == {"_session_graph_id": "0_1"}
        assert bare.graphs[0].by_name["a"].type == "A"
        several = load([("name", "m"), ("version", 1), ("graph", graph), ("graph", sub), attr("x", ("i", 1))])
        assert [found.name for found in several.graphs] == ["g", "sub"]
        assert [found.type for found in several.ops] == ["A", "B", "Data"]
        assert several.notes == ()


@BOTH
def test_unknown_fields_are_passed_over(load: Any) -> None:
    new: Message = [("new_scalar", 1), ("new_block", [("x", [("y", "z")])])]
    desc: Message = [("dtype", Word("DT_INT8")), *new]
    message = [("graph", [("name", "g"), *new, op("n", "T", *new, attr("k", ("i", 1)), ("input_desc", desc))]), *new]
    (found,) = load(message).ops
    assert found == Op(name="n", type="T", id=0, stream_id=0, input_descs=(TensorDesc(dtype="int8"),))


def test_the_model_can_be_sent_to_another_process() -> None:
    for load in (load_text, load_json):
        loaded = load(model(op("n", "T", attr("k", ("s", "v")))))
        copy = pickle.loads(pickle.dumps(loaded))
        assert copy == loaded
        assert copy.ops[0].attrs == {"k": "v"}


def test_numbers_in_json_may_be_strings() -> None:
    text = (
        '{"graph": [{"name": "g", "op": [{"name": "n", "type": "T", "id": "12", "attr": [{"key": "f", "value": {"f": '
    )
    (found,) = load_graph_bytes((text + '"1e-05"}}]}]}]}').encode(), "x").ops
    assert found.id == 12
    assert found.attrs["f"] == 1e-05


def test_json_with_unescaped_control_characters_in_strings() -> None:
    assert load_graph_bytes(b'{"graph": [{"name": "a\n\tb", "op": []}]}', "x").graphs[0].name == "a\n\tb"


def test_json_that_lost_a_key_or_a_value() -> None:
    text = '{"graph": [{"op": [{"name": "n", "attr": [{"value": null}, {"key": "k"}, {"key": "l", "value": null}]}]}]}'
    (found,) = load_graph_bytes(text.encode(), "x").ops
    assert dict(found.attrs) == {"k": None, "l": None}


# ---- bytes that are not UTF-8


def test_bytes_that_are_not_utf8_are_noted_and_printable() -> None:
    text = b'graph { name: "g\xff" op { name: "n" attr { key: "k" value { s: "\xfe" } } } }'
    for data in (
        text,
        b'{"graph": [{"name": "g\xff", "op": [{"name": "n", "attr": [{"key": "k", "value": {"s": "\xfe"}}]}]}]}',
    ):
        loaded = load_graph_bytes(data, "x")
        assert loaded.graphs[0].name == "g\\xff"
        assert loaded.ops[0].attrs["k"] == "\\xfe"
        assert len(loaded.notes) == 1
        assert (loaded.notes[0].kind, loaded.notes[0].count) == ("note.io.not_utf8", 2)


def test_lone_surrogates_of_json_are_printable() -> None:
    loaded = load_graph_bytes(rb'{"graph": [{"name": "g\ud800", "op": []}]}', "x")
    assert loaded.graphs[0].name == "g\\ud800"


# ---- files that are no GE graph


def write(folder: Path, content: str | bytes, name: str = "graph.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


READERS = pytest.mark.parametrize("read", [load_graph_file, skim_graph_file], ids=["load", "skim"])


@READERS
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        (" \n\n", ["empty"]),
        ('ir_version: 6\nproducer_name: "GE"\ngraph {\n  node {\n  }\n}\n', ["ONNX text graph"]),
        ("graph {\n  node {\n  }\n}\n", ["ONNX text graph"]),
        ("graph {\n  op {\n  }\n}\nir_version: 3\n", ["ONNX text graph"]),
        ('node {\n  name: "a"\n  op: "Const"\n}\n', ["no GE graph", "TensorFlow"]),
        ('name: "m"\nversion: 1\n', ["no GE graph", "'name', 'version'"]),
        ("Index,OpType\n1,Conv\n", ["line 1", "unexpected ','"]),
        ("IMOD\0\0\1", ["offline model", "cut off"]),
        ("graph {\n\0\0\0", ["NUL", "byte 8"]),
        ('graph {\n  name: "a\0b"\n}\n', ["NUL", "byte 18"]),
        (to_text([("graph", nested("a", 200))]), ["deeper than 200"]),
        (b"\x93NUMPY\x01\x00", ["NUL"]),
        ("PK\x03\x04", ["line 1, byte 2"]),
        ('graph {\n  name: "g"\n', ["cut off", "'graph' (line 1)"]),
        ("[1, 2]", ["JSON is a list"]),
        ("{}", ["no GE graph"]),
        ('{"session_and_graph_id_0_1": {"graph_fusion": {}}}', ["no GE graph", "session_and_graph_id_0_1"]),
        ('{"graph": [{"name": "g",', ["the JSON is cut off", "line 1, byte 24"]),
        ('{"graph": "', ["the JSON is cut off"]),
        ('{"graph": [}]}', ["not valid JSON", "byte 11"]),
        ('{"graph": ' + "[" * 100_000, ["nested too deep"]),
        ("graph {\n  op: 5\n}\n", ["a value where a block"]),
        ("graph {\n  name: 5\n}\n", ["'5' where a string was expected"]),
        ("graph {\n  op {\n    type: 5\n  }\n}\n", ["'5' where a string was expected"]),
        ('{"graph": [{"op": [5]}]}', ["a value where a block"]),
        ('{"graph": [{"name": {}}]}', ["a block where a string"]),
    ],
)
def test_other_content_is_refused(tmp_path: Path, read: Any, content: str | bytes, words: list[str]) -> None:
    path = write(tmp_path, content)
    with pytest.raises(FormatError) as caught:
        read(path)
    for word in [str(path), *words]:
        assert word in caught.value.message
    assert caught.value.hint


def test_an_onnx_file_has_a_hint_where_to_look(tmp_path: Path) -> None:
    path = write(tmp_path, "ir_version: 6 graph { node { } }", "ge_onnx_1_Build.pbtxt")
    with pytest.raises(FormatError) as caught:
        load_graph_file(path)
    assert "ge_proto_*_Build.txt" in caught.value.hint


def test_a_bad_value_names_the_op(tmp_path: Path) -> None:
    path = write(tmp_path, 'graph { name: "g" op { name: "n" id: abc } }')
    with pytest.raises(FormatError, match="graph 'g', op 'n': 'abc' where a whole number was expected"):
        load_graph_file(path)


@READERS
def test_a_file_that_is_too_large(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, to_text(model()))
    monkeypatch.setattr(ge_graph_tree, "MAX_FILE_SIZE", 5)
    with pytest.raises(FormatError, match="too many"):
        read(path)


# ---- the skim says what the full load says


def skim_of(loaded: GraphFile, size: int) -> GraphSkim:
    types = {found.type for found in loaded.ops}
    return GraphSkim(
        path=loaded.path,
        size=size,
        graph_names=tuple(graph.name for graph in loaded.graphs),
        data_source_types=tuple(kind for kind in ("IteratorV2", "Iterator", "GetNext") if kind in types),
        op_count=len(loaded.ops),
    )


#: All that could mislead who reads line by line: blocks, names and types at other depths, quotes and backslashes.
TRICKY: Message = [
    ("name", "model"),
    ("other", [("op", [("type", "GetNext")]), ("name", "no graph")]),
    (
        "graph",
        [
            ("name", 'ge "default"\\ \n 1'),
            attr("type", ("s", 'graph {\n  op {\n    type: "Iterator"\n')),
            op("a", "IteratorV2", attr("k", ("bt", b'\\"\\\\"\\\\\\"\n"\x00 {\n'))),
            op("b", "Cast", ("type", "Iterator"), ("input_desc", [("type", "GetNext"), ("dim", -5)])),
            ("new", [("type", "GetNext"), ("op", [("type", "GetNext")])]),
            op("type", "", attr("f", ("f", -1.5))),
        ],
    ),
    ("graph", []),
    ("graph", [op("c", "Data"), ("name", "last")]),
]


def test_skim_of_a_tricky_file(tmp_path: Path) -> None:
    expected = ("IteratorV2", "Iterator")
    for name, content in (("lines.txt", to_text(TRICKY)), ("one_line.txt", to_text(TRICKY).replace("\n", " "))):
        path = write(tmp_path, content, name)
        found = skim_graph_file(str(path))
        assert found.graph_names == ('ge "default"\\ \n 1', "", "last")
        assert found.data_source_types == expected
        assert found.op_count == 4
        assert found == skim_of(load_graph_file(str(path)), len(content))


def test_the_usual_form_is_skimmed_without_a_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, to_text(TRICKY))
    monkeypatch.setattr(ge_graph_skim, "_skim_tree", None)
    assert skim_graph_file(path).op_count == 4


def test_skim_of_json_and_of_a_bare_graph(tmp_path: Path) -> None:
    message = model(op("a", "GetNext"), op("b", "Iterator"))
    for content in (to_json(message), to_text(message[0][1]), to_json(message[0][1])):
        found = skim_graph_file(write(tmp_path, content))
        assert (found.graph_names, found.data_source_types, found.op_count) == (("g",), ("Iterator", "GetNext"), 2)


def answer(read: Any, path: Path) -> Any:
    try:
        return read(str(path))
    except FormatError as error:
        return error


def assert_same_answer(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    loaded, skimmed = answer(load_graph_file, path), answer(skim_graph_file, path)
    if isinstance(loaded, GraphFile):
        assert skimmed == skim_of(loaded, len(data))
    elif isinstance(skimmed, GraphSkim):
        parse_proto_text(data, str(path))  # the text is whole, only a value is wrong, which a skim does not look at
        assert "graph '" in loaded.message


@settings(deadline=None, max_examples=300)
@given(st.randoms(use_true_random=False))
def test_skim_of_damaged_and_edited_files(tmp_path_factory: pytest.TempPathFactory, choice: random.Random) -> None:
    lines = to_text(TRICKY).splitlines(keepends=True)
    for _ in range(choice.randint(1, 3)):
        place = choice.randrange(len(lines))
        match choice.randrange(7):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, choice.choice(lines))
            case 2:
                lines[place] = choice.choice([" ", "  ", "\t", "# "]) + lines[place]
            case 3:
                lines[place] = lines[place].lstrip(" ")
            case 4:
                lines[place] = lines[place].removesuffix("\n") + choice.choice(["", " ", "\r\n", " # x\n", ",\n"])
            case 5:
                cut = choice.randrange(len(lines[place]) + 1)
                extra = choice.choice(['"', "\\", "{", "}", "\n", "'", ' "x"', "[", ":", "\0", "\\\\\\", "<"])
                lines[place] = lines[place][:cut] + extra + lines[place][cut:]
            case _:
                lines[place] = lines[place][: choice.randrange(len(lines[place]) + 1)]
    assert_same_answer(tmp_path_factory.getbasetemp() / "edited.txt", "".join(lines).encode())


def test_skim_of_a_file_cut_anywhere(tmp_path: Path) -> None:
    data = to_text(TRICKY).encode()
    for cut in range(1, len(data)):
        assert_same_answer(tmp_path / "cut.txt", data[:cut])


@settings(deadline=None)
@given(st.lists(st.sampled_from(['"', "\\", "\n", "a: ", "'", "x", " ", '\\"', "{\n", "}\n"]), max_size=14))
def test_strings_that_run_over_lines_do_not_fool_the_skim(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    text = 'graph {\n  op {\n    s: "' + "".join(pieces) + '"\n    t: "x"\n  }\n}\n'
    assert_same_answer(tmp_path_factory.getbasetemp() / "strings.txt", text.encode())


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("after", ["", " ", '"', "x"])
def test_backslashes_before_a_quote_do_not_fool_the_skim(tmp_path: Path, count: int, after: str) -> None:
    for start in ("", "x", '\\"', "\\\\"):
        text = 'graph {\n  op {\n    s: "' + start + "\\" * count + '"' + after + '\n    t: "x"\n  }\n}\n'
        assert_same_answer(tmp_path / "backslashes.txt", text.encode())


@pytest.mark.parametrize("piece", ["\\377", '\\"', "\\\\", "x", '\\\\\\"'])
def test_skim_of_megabytes_in_a_line(tmp_path: Path, piece: str) -> None:
    text = 'graph {\n  op {\n    s: "' + piece * 500_000 + '"\n  }\n}\n'
    assert skim_graph_file(write(tmp_path, text)).op_count == 1


# ---- real files


@needs_outside_data
@pytest.mark.parametrize("run", ["debug_0", "debug_1"])
def test_text_and_the_vendors_json_of_one_graph_are_equal(run: str) -> None:
    text = str(LENET / "precision_data/npu" / run / "graph/ge_proto_00000005_graph_1_Build.txt")
    from_text = load_graph_file(text)
    from_json = load_graph_file(str(LENET / "vendor" / f"{run}.graph.json"))
    assert len(from_text.ops) == Path(text).read_text().count("\n  op {\n")
    assert from_text.graphs == from_json.graphs
    assert dict(from_text.graphs[0].attrs) == dict(from_json.graphs[0].attrs)
    for ours, theirs in zip(from_text.ops, from_json.ops, strict=True):
        assert set(ours.attrs) == set(theirs.attrs)
        for key, value in theirs.attrs.items():
            assert value in (ours.attrs[key], None)  # the JSON leaves out weights and kernels


@needs_outside_data
def test_what_the_lenet_graph_is_known_to_hold() -> None:
    path = str(LENET / "precision_data/npu/debug_0/graph/ge_proto_00000005_graph_1_Build.txt")
    graph = load_graph_file(path).graphs[0]
    assert graph.name == "ge_default_20261120150420_1"  # also the folder of its dump
    assert [found.id for found in graph.ops] == list(range(len(graph.ops)))
    names = {found.name for found in graph.ops}
    edges = [edge for found in graph.ops for edge in found.inputs if edge]
    assert edges
    assert {edge.producer for edge in edges} <= names
    assert skim_graph_file(path).data_source_types == ("IteratorV2", "GetNext")


@needs_outside_data
def test_streams_of_the_lenet_graph_are_those_of_its_dump_files() -> None:
    path = str(LENET / "precision_data/npu/debug_0/graph/ge_proto_00000005_graph_1_Build.txt")
    flat = {
        found.name.translate(str.maketrans("./\\ ", "____")): found for found in load_graph_file(path).graphs[0].ops
    }
    dumped = 0
    for file in (LENET / "precision_data/npu/debug_0/dump").rglob("*.*.*.*.*"):
        op_type, name, _, stream, _ = file.name.split(".")
        if name in flat and op_type == flat[name].type:
            assert flat[name].stream_id == int(stream)
            dumped += 1
    assert dumped > 0


@needs_outside_data
def test_skim_of_all_real_files() -> None:
    paths = sorted([*GRAPHS.glob("*.txt"), *LENET.glob("**/graph/*.txt"), *LENET.glob("vendor/*.json")])
    assert paths
    for path in paths:
        assert skim_graph_file(str(path)) == skim_of(load_graph_file(str(path)), path.stat().st_size)


@needs_outside_data
def test_a_real_onnx_file_is_refused() -> None:
    path = str(GRAPHS / "ge_onnx_00000001_graph_11_Build.pbtxt")
    for read in (load_graph_file, skim_graph_file):
        with pytest.raises(FormatError, match="ONNX text graph"):
            read(path)


# ---- values that no graph holds


def test_a_peeked_name_in_raw_utf8(tmp_path: Path) -> None:
    for name, shown in (("图é", "图é"), ("plain", "plain"), ("q\\303\\251", "qé")):
        path = write(tmp_path, f'graph {{\n  name: "{name}"\n}}\n')
        assert peek_graph_name(path) == shown
    path = write(tmp_path, b'graph {\n  name: "a\xff"\n}\n')
    assert peek_graph_name(path) == "a\\xff"


LONG = "9" * 5000


@BOTH
@pytest.mark.parametrize("fields", [
    [("input", f"X:{LONG}")],
    [("input", f"X:-{LONG}")],
    [("input_desc", [("dtype", Word(LONG))])],
    [("id", LONG)],
    [attr("_parent_node_index", ("i", 1 << 70))],
], ids=["index", "negative index", "dtype", "id", "attribute"])  # fmt: skip
def test_numbers_of_thousands_of_digits(load: Any, fields: Message) -> None:
    with pytest.raises(FormatError, match=r"graph 'g', op 'n': .*where a whole number was expected"):
        only_op(load, *fields)


def test_a_number_of_thousands_of_digits_in_json() -> None:
    with pytest.raises(FormatError, match=r"^g\.json: a number in this JSON has thousands of digits"):
        load_graph_bytes(b'{"graph": [{"op": [{"name": "n", "id": ' + LONG.encode() + b"}]}]}", "g.json")


def test_a_hexadecimal_number_of_thousands_of_digits() -> None:
    """Python reads it, but could not print it."""
    text = f'graph {{ op {{ name: "n" id: 0x{"f" * 5000} }} }}'
    with pytest.raises(FormatError, match=r"op 'n': .*where a whole number was expected"):
        load_graph_bytes(text.encode(), "g.txt")


@pytest.mark.parametrize("number", ["١٢", "1_2", " 12", "²"])
def test_numbers_in_other_scripts_and_styles(number: str) -> None:
    """Python's `int` and `float` take them, protobuf does not."""
    for field in (f'"id": "{number}"', f'"attr": [{{"key": "f", "value": {{"f": "{number}"}}}}]'):
        with pytest.raises(FormatError):
            dict(load_graph_bytes(f'{{"op": [{{{field}}}]}}'.encode(), "x").ops[0].attrs)
    (op,) = load_graph_bytes(f'{{"op": [{{"input_desc": [{{"dtype": "{number}"}}]}}]}}'.encode(), "x").ops
    assert op.input_descs[0].dtype == number


def test_a_string_that_is_none_is_refused_however_it_is_read(tmp_path: Path) -> None:
    path = str(write(tmp_path, 'graph {\n  name: "g"\n  op {\n    name: "n"\n    type: "\\q"\n  }\n}\n'))
    for read in (load_graph_file, skim_graph_file, lambda path: list(skim_ops(path))):
        with pytest.raises(FormatError) as caught:
            read(path)
        assert caught.value.path == path


@READERS
@pytest.mark.parametrize(
    "content",
    [
        'graph{name:"g" ' + "op{}" * 1000 + "}",
        'graph {\n  name: "g"\n' + "  op {\n  }\n" * 1000 + "}\n",
        'graph{name:"g" op{input_desc{shape{dim:[' + ",".join("1" * 3000) + "]}}}}",
        '{"graph":[{"op":[' + ",".join(["{}"] * 1000) + "]}]}",
    ],
)
def test_a_file_out_of_proportion_is_refused_with_what_it_needs(
    tmp_path: Path, read: Any, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = to_text(model(op("a_name/as/long/as/usual", "Relu", ("input", "another_name/as/long/as/usual:0"))))
    monkeypatch.setattr(ge_graph_tree, "MEMORY", 0)  # the proportion alone counts, as for large files
    read(write(tmp_path, usual))
    with pytest.raises(FormatError) as caught:
        read(write(tmp_path, content))
    assert caught.value.kind == "io.out_of_proportion"
    fields: dict[str, Any] = caught.value.fields
    assert fields["needed"] > fields["limit"] >= 13 * len(content)
    assert fields["seconds"] > fields["most_seconds"]
    monkeypatch.setattr(ge_graph_tree, "MEMORY", fields["needed"])
    read(write(tmp_path, content))


@BOTH
def test_negative_indices(load: Any) -> None:
    op = only_op(load, ("input", "a:-1"), ("input", "b:0"), attr("_parent_node_index", ("i", -3)))
    assert (op.inputs, op.control_inputs) == ((Edge(producer="b", index=0),), ("a",))
    assert op.parent_index is None
    with pytest.raises(FormatError, match="op 'n': input 'X:-5' has the index -5; only -1"):
        only_op(load, ("input", "X:-5"))
