"""msprobe's JSON files: what msprobe writes is read, in a stream; what is damaged costs itself and no more."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msprobe_files import dump_text, forward, literal, tensor
from msprobe_python import dump_with_msprobe

from precision_tool.lib.io import msprobe_dump
from precision_tool.lib.io.msprobe_dump import (
    DumpIndex,
    data_type_of,
    read_calls,
    read_construct,
    read_dump_index,
    read_stacks,
)
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.msprobe import (
    CallName,
    DescribedArgument,
    Direction,
    Literal,
    RecordedCall,
    RecordedTensor,
    SliceArgument,
    UnreadCall,
    parse_call_name,
)


def index_of(folder: Path, text: str | bytes) -> DumpIndex:
    path = folder / "dump.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_dump_index(str(path))


def only_call(folder: Path, entry: Any, name: str = "Torch.x.0.forward") -> RecordedCall:
    (call,) = read_calls(index_of(folder, dump_text({name: entry})))
    assert isinstance(call, RecordedCall), call
    return call


def many(count: int) -> dict[str, Any]:
    return {f"Functional.gelu.{n}.forward": forward(tensor(np.ones((n + 1, 2)))) for n in range(count)}


# ---- what msprobe writes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "level", "summary"),
    [("tensor", "mix", "statistics"), ("statistics", "L0", "md5"), ("statistics", "L1", "xor")],
)
def test_what_msprobe_writes(tmp_path: Path, task: str, level: str, summary: str) -> None:
    leaf = next((dump_with_msprobe(tmp_path, task, level, summary) / "step0").iterdir())
    document = json.loads((leaf / "dump.json").read_text())
    index = read_dump_index(str(leaf / "dump.json"))
    assert (index.task, index.level, index.framework, index.problem) == (task, level, "pytorch", None)
    assert list(index.names) == list(document["data"])
    calls = {call.name: call for call in read_calls(index) if isinstance(call, RecordedCall)}
    assert list(calls) == list(index.names)
    assert all(call.call is not None for call in calls.values())
    stacks, tree = read_stacks(str(leaf / "stack.json")), read_construct(str(leaf / "construct.json"))
    assert (stacks.problem, tree.problem) == (None, None)
    assert tree.parents == json.loads((leaf / "construct.json").read_text())
    tensors = [(call, slot, one) for call in calls.values() for slot, one in call.tensors()]
    assert tensors
    if task == "tensor":
        for call, slot, one in tensors:
            # The gradients of parameters have no index, and no word for what they are.
            is_grad = call.call is not None and call.call.direction is Direction.PARAMETERS_GRAD
            assert one.data_name == f"{call.name}.{slot.split('.')[1] if is_grad else slot}.pt"
        gelu = calls["Functional.gelu.0.forward"]
        assert gelu.kwargs == {"approximate": Literal("str", "tanh")}
        assert tree.parents["Functional.layer_norm.0.forward"] == "Module.norm.LayerNorm.forward.0"
        assert any("in forward" in line for line in stacks.frames[gelu.name])
        assert calls["Module.fc.Linear.forward.0"].parameters.keys() == {"weight", "bias"}
    else:
        assert all(len(one.checksum) == (8 if summary == "md5" else 18) for _, _, one in tensors if one.shape)


# ---- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Functional.gelu.1.forward", ("Functional", "gelu", 1, "forward", "")),
        ("Tensor.__add__.12.backward", ("Tensor", "__add__", 12, "backward", "")),
        ("Aten.add.Tensor.0.forward", ("Aten", "add.Tensor", 0, "forward", "")),
        ("Module.blocks.1.act.GELU.forward.0", ("Module", "blocks.1.act", 0, "forward", "GELU")),
        ("Cell.net.Dense.backward.3", ("Cell", "net", 3, "backward", "Dense")),
        ("Module.head.Linear.parameters_grad.0", ("Module", "head", 0, "parameters_grad", "Linear")),
        ("Module.Encoder.forward.0", ("Module", "", 0, "forward", "Encoder")),
    ],
)
def test_names(text: str, expected: tuple[str, str, int, Any, str]) -> None:
    prefix, name, count, direction, class_name = expected
    assert parse_call_name(text) == CallName(
        prefix=prefix, name=name, count=count, direction=Direction(direction), class_name=class_name
    )


@pytest.mark.parametrize(
    "text",
    ["", "gelu", "Functional.gelu.forward", "Functional.gelu.x.forward", "Functional.gelu.٣.forward", "..0.forward",
     "Functional.gelu.0.sideways", "Functional.w.0.parameters_grad", "Module.a.B.0.forward",
     "a.b." + "9" * 5000 + ".forward"],
)  # fmt: skip
def test_unusual_names(text: str) -> None:
    assert parse_call_name(text) is None


# ---- entries


def test_arguments(tmp_path: Path) -> None:
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "0a1b2c3d"}
    size = {"type": "torch.Size", "value": [2, -1]}
    memory = {"type": "torch.memory_format", "format": "channels_last"}
    array = np.array([[1, -3]], np.float32)
    peer = {
        "type": "torch.distributed.P2POp",
        "class_type": "x",
        "tensor": tensor(array, "p.pt"),
        "peer": 1,
        "op": "isend",
    }
    entry = forward(
        tensor(array, "a.pt", requires_grad=True, md5="0123abcd", placements=[{"Shard": {"dim": 0}}]),
        [literal(2), [literal(1.5), None]],
        {"type": "slice", "value": [0, None, 2]},
        output=[tensor(np.array([True]), Mean=None, Norm=None)],
        size=size,
        memory=memory,
        group=group,
        peer=peer,
        deep={"a": [tensor(array, "b.pt")]},
    )  # fmt: skip
    call = only_call(tmp_path, {**entry, "is_recompute": True})
    first = call.inputs[0]
    assert isinstance(first, RecordedTensor)
    assert (first.type, first.dtype, first.shape) == ("torch.Tensor", "torch.float32", (1, 2))
    assert (first.maximum, first.minimum, first.mean, first.norm) == (1, -3, -1, math.sqrt(10))
    assert (first.requires_grad, first.checksum, first.data_name) == (True, "0123abcd", "a.pt")
    assert first.more == {"placements": ({"Shard": {"dim": 0}},)}
    assert call.inputs[1:] == ((Literal("int", 2), (Literal("float", 1.5), None)), SliceArgument(0, None, 2))
    assert call.kwargs["size"] == Literal("torch.Size", (2, -1))
    assert call.kwargs["memory"] == Literal("torch.memory_format", "channels_last")
    assert call.kwargs["group"] == DescribedArgument(
        "torch.ProcessGroup", {"group_ranks": (0, 1), "group_id": "0a1b2c3d"}
    )
    assert [slot for slot, _ in call.tensors()] == ["input.0", "kwargs.peer.tensor", "kwargs.deep.a.0", "output.0"]
    assert call.is_recomputed


def test_numbers_that_are_none(tmp_path: Path) -> None:
    entry = forward(tensor(np.ones(1, np.float32)))
    entry["input_args"][0].update(Max=math.nan, Min=-math.inf, Mean="Infinity", Norm="many")
    one = only_call(tmp_path, entry).inputs[0]
    assert isinstance(one, RecordedTensor)
    assert math.isnan(one.maximum or 0)
    assert (one.minimum, one.mean, one.norm) == (-math.inf, math.inf, None)


@pytest.mark.parametrize(
    "entry",
    [
        3, None, [], {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [-1]}]},
        {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": "2x3"}]},
        {"input_args": [{"type": "slice", "value": [1]}]}, {"input_kwargs": [1]}, {"parameters": 3},
    ],
)  # fmt: skip
def test_an_entry_that_is_none_costs_itself(tmp_path: Path, entry: Any) -> None:
    good = forward(tensor(np.ones(1, np.float32)))
    index = index_of(tmp_path, dump_text({"Torch.a.0.forward": good, "Torch.b.0.forward": entry, "last": good}))
    first, bad, last = read_calls(index)
    assert isinstance(first, RecordedCall)
    assert isinstance(last, RecordedCall)
    assert last.call is None
    assert isinstance(bad, UnreadCall)
    assert bad.name == "Torch.b.0.forward"
    assert render(bad.reason, "zh")


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "BFloat16", "mindspore.bfloat16", "bfloat16"])
def test_data_types(dtype: str) -> None:
    assert data_type_of(dtype) == "bfloat16"
    assert data_type_of("torch.qint8") == ""


# ---- the stream

FORMS: list[Callable[[Any], str]] = [
    lambda document: json.dumps(document, indent=1),
    lambda document: json.dumps(document, indent=4, ensure_ascii=False),
    lambda document: json.dumps(document, indent="\t"),
    lambda document: json.dumps(document, indent=0),
    json.dumps,
    lambda document: json.dumps(document, separators=(",", ":")),
    lambda document: json.dumps(document, indent=1).replace("\n", "\r\n"),
    lambda document: json.dumps(document, indent=1).replace("},\n", "}\n,\n"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [1, 7, 300, 1 << 20])
def test_forms_of_json_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, block: int) -> None:
    """However it is written, and wherever a block ends; also what lies behind the entries is read."""
    monkeypatch.setattr(msprobe_dump, "_BLOCK", block)
    entries = many(3) | {'Torch.ü"\\".0.forward': forward(literal('},\n  "x": {é')), "n": 12, "empty": {}}
    document = {"task": "tensor", "other": [1, {"a": None}], "data": entries, "level": "L1", "number": 123}
    index = index_of(tmp_path, form(document))
    assert list(index.names) == list(entries)
    assert index.header == {key: value for key, value in document.items() if key != "data"}
    assert (index.problem, index.task, index.level) == (None, "tensor", "L1")
    text = (tmp_path / "dump.json").read_bytes()
    parts = [json.loads(text[start:end]) for start, end in zip(index.starts, index.ends, strict=True)]
    assert parts == list(entries.values())
    call = next(read_calls(index, [3, 0]))
    assert isinstance(call, RecordedCall)
    assert call.inputs == (Literal("str", '},\n  "x": {é'),)


@pytest.mark.parametrize(
    "inner",
    ['{"k": {"v": 1},\n  "x": {"v": 2}}', '{"k": "v",\n  "x": 1}', '[{"k": "{"},\n  "x", "}"]', '["[",\n  "x"]'],
)
def test_lines_in_an_entry_that_begin_as_entries_do(tmp_path: Path, inner: str) -> None:
    """Nobody writes them so, and they are JSON."""
    text = f'{{\n "data": {{\n  "a": {inner},\n  "b": {{"input_args": {inner}}},\n  "c": 1\n }}\n}}'
    assert list(index_of(tmp_path, text).names) == list(json.loads(text)["data"])


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_cut_off_has_the_entries_before(tmp_path: Path, form: Any) -> None:
    entries = many(4)
    text = form({"task": "tensor", "data": entries}).encode()
    start = text.index(b"{", text.index(b'"data"')) + 1
    ends = list(index_of(tmp_path, text).ends)
    for cut in range(start, len(text), 3):
        index = index_of(tmp_path, text[:cut])
        whole = sum(end <= cut for end in ends)
        assert list(index.names) == list(entries)[:whole], cut
        assert index.problem is not None
        assert index.problem.kind == "row.io.msprobe.ends"
        assert all(isinstance(call, RecordedCall) for call in read_calls(index))
    for cut in range(1, start - 1):
        with pytest.raises(FormatError) as caught:
            index_of(tmp_path, text[:cut])
        assert caught.value.path == str(tmp_path / "dump.json")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"), ("[]", "msprobe.not_json"), ("{}", "msprobe.no_data"), ('{"data": 3}', "msprobe.no_data"),
        ("nonsense", "msprobe.not_json"), ('{"a": ' + "[" * 1_000_000, "msprobe.not_json"), ("{1}", "msprobe.not_json"),
        ('{"a" 1}', "msprobe.not_json"), ('{"a": ' + "9" * 5000 + "}", "msprobe.not_json"), ("  ", "msprobe.not_json"),
    ],
)  # fmt: skip
def test_no_dump(tmp_path: Path, text: str, kind: str) -> None:
    with pytest.raises(FormatError) as caught:
        index_of(tmp_path, text)
    assert caught.value.kind == f"io.{kind}"


def test_entries_nested_a_million_deep(tmp_path: Path) -> None:
    good = json.dumps(forward(literal(1)))
    deep = "[" * 1_000_000 + "]" * 1_000_000
    members = f'"a": {good},\n  "b": {deep},\n  "c": {good}'
    index = index_of(tmp_path, f'{{\n "data": {{\n  {members}\n }}\n}}')
    first, bad, last = read_calls(index)
    assert isinstance(bad, UnreadCall)
    assert bad.reason.fields["reason"].kind == "row.io.msprobe.nested"
    assert isinstance(first, RecordedCall)
    assert isinstance(last, RecordedCall)
    index = index_of(tmp_path, f'{{"data": {{{members}}}}}')
    assert list(index.names) == ["a"]
    assert index.problem is not None


def test_an_entry_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msprobe_dump, "_MAX_ENTRY", 1 << 16)
    monkeypatch.setattr(msprobe_dump, "_BLOCK", 1 << 12)
    good = json.dumps(forward(literal(1)))
    for start in ('{"data": {"a": %s, "b": "', '{\n "data": {\n  "a": %s,\n  "b": "'):
        index = index_of(tmp_path, start % good + "x" * (1 << 20) + '"}}')
        assert list(index.names) == ["a"]
        assert index.problem is not None
        assert index.problem.fields["reason"].kind == "row.io.msprobe.too_long"


@pytest.mark.parametrize(("limit", "count"), [("_MAX_COUNT", 2), ("_MAX_NAMES", 70)])
def test_more_entries_than_memory_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, count: int
) -> None:  # fmt: skip
    """A file of a few bytes an entry would take many times its size."""
    monkeypatch.setattr(msprobe_dump, limit, count)
    index = index_of(tmp_path, dump_text(many(4)))
    assert list(index.names) == list(many(2))
    assert index.problem is not None
    assert index.problem.fields["reason"].kind == "row.io.msprobe.too_many"


def test_arguments_nested_deeper_than_anybody_nests_them(tmp_path: Path) -> None:
    nested: list[Any] = [literal(1)]
    for _ in range(90):
        nested = [nested]
    assert list(only_call(tmp_path, forward(nested)).tensors()) == []
    for _ in range(20):
        nested = [nested]
    (bad,) = read_calls(index_of(tmp_path, dump_text({"Torch.x.0.forward": forward(nested)})))
    assert isinstance(bad, UnreadCall)


def test_entries_that_share_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has a line of its own and the others do not: no line is looked for any more, in however long a text."""
    for name, value in (("_BLOCK", 64), ("_MAX_LINES", 256), ("_MAX_ENTRY", 512)):
        monkeypatch.setattr(msprobe_dump, name, value)
    names = [f"n{number}" for number in range(200)]
    members = ", ".join(f'"{name}": {{"a": [1]}}' for name in names)
    index = index_of(tmp_path, f'{{\n "data": {{\n  "first": {{}},\n  {members}}}}}')
    assert (list(index.names), index.problem) == (["first", *names], None)


def test_an_index_takes_little_time_and_memory(tmp_path: Path) -> None:
    entry = json.dumps(forward(*[tensor(np.ones(3))] * 3), indent=1).replace("\n", "\n  ")
    body = ",".join(f'\n  "Functional.gelu.{number}.forward": {entry}' for number in range(20_000))
    text = f'{{\n "data": {{{body}\n }}\n}}'.encode()
    assert len(text) > 10_000_000
    (tmp_path / "dump.json").write_bytes(text)
    start = time.perf_counter()
    index = read_dump_index(str(tmp_path / "dump.json"))
    seconds = time.perf_counter() - start
    assert len(index.names) == 20_000
    assert seconds < 1.0  # a million entries in 10 s leaves 0.2
    tracemalloc.start()
    read_dump_index(str(tmp_path / "dump.json"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 9_000_000


# ---- stack.json and construct.json


def test_stacks(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    content: dict[str, Any] = {
        "0": [["a", "b"], ["File x.py, line 3, in f, \n y = 1"]],
        "1": [["c", 3], []],
        "2": "odd",
        "3": [1, 2],
    }
    path.write_text(json.dumps(content, indent=1))
    stacks = read_stacks(str(path))
    assert stacks.frames == {"a": ("File x.py, line 3, in f, \n y = 1",), "b": stacks.frames["a"], "c": ()}
    assert stacks.frames["a"] is stacks.frames["b"]
    path.write_text(json.dumps(content, indent=1)[:110])
    cut = read_stacks(str(path))
    assert cut.frames == {name: stacks.frames[name] for name in "ab"}
    assert cut.problem is not None


def test_construct(tmp_path: Path) -> None:
    path = tmp_path / "construct.json"
    path.write_text(json.dumps({"a": "m", "m": None, "b": ["m", 2], "c": 5, "d": {}}, indent=1))
    tree = read_construct(str(path))
    assert (tree.parents, tree.micro_steps, tree.problem) == ({"a": "m", "m": None, "b": "m"}, {"b": 2}, None)
    path.write_text("{}")
    assert read_construct(str(path)).parents == {}
    path.write_text("[1]")
    with pytest.raises(FormatError):
        read_construct(str(path))
