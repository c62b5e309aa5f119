"""Every reader of files that may come from elsewhere: what it is given, and what is done with what it says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch_files

from fuzzing import WrongAnswerError, kept, requests, seeds, shown
from fuzzing.mutations import BINARY, BORDERS, CLAIMS, CSV, TEXT, Mutation, mutated
from fuzzing.structures import MessageSeed, npy_file
from precision_tool.lib.cli.bisect_runner import BisectRun, is_bisected
from precision_tool.lib.cli.switch_files import SwitchFile
from precision_tool.lib.compare.columns import parse_metrics
from precision_tool.lib.compare.element_errors import compare_elements
from precision_tool.lib.compare.named_tensors import named_value, pair_up, split_slot, tensors_of_file, view_of
from precision_tool.lib.compare.noise import read_noise
from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.result_csv import read_output_figures, read_result
from precision_tool.lib.compare.result_files import _decoded as decoded_cosines
from precision_tool.lib.compare.result_files import read_source
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.compare.toolkit import _MEMORY, _json_problem, _remembered, _table_problem, read_texts
from precision_tool.lib.data import dump_names as file_names
from precision_tool.lib.data import graph_cache as cache
from precision_tool.lib.data.dump_tree import find_benchmark, find_named, find_run, find_status_files, parse_status_name
from precision_tool.lib.data.graph_catalog import RunFolder, find_run_graphs
from precision_tool.lib.data.graph_choice import GraphChooser
from precision_tool.lib.data.kinds import LISTED, PYTORCH
from precision_tool.lib.data.msprobe_tree import is_tensor_name
from precision_tool.lib.data.overview import overview
from precision_tool.lib.data.pair_selection import parse_ids, parse_range
from precision_tool.lib.data.settings import check_dump_step, read_settings_file
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.passports import compare_passports, parse_passport, read_passport
from precision_tool.lib.io.cache import OddCacheError
from precision_tool.lib.io.files import open_file, read_small_json, signature_of
from precision_tool.lib.io.fusion_passes import parse_switches, read_fusion_result, read_switches, render
from precision_tool.lib.io.ge_graph import is_json, load_graph_file
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.io.ge_graph_partial import (
    lines_of,
    load_graph_lines,
    peek_graph_name,
    skim_graph_file,
    skim_ops,
)
from precision_tool.lib.io.hdf5 import copy_ops, read_h5
from precision_tool.lib.io.msprobe_dump import read_calls, read_construct, read_dump_index, read_stacks
from precision_tool.lib.io.om_file import read_om_header
from precision_tool.lib.io.opdebug import document_text, read_opdebug
from precision_tool.lib.io.proto_text import not_utf8_notes, parse_proto_text
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.io.safetensors_file import read_safetensor, read_safetensors_file
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.io.tfdbg_files import is_same_npy, read_event, write_npy
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.messages import Message
from precision_tool.lib.messages import render as render_message
from precision_tool.lib.messages.errors import PrecisionToolError, escaped
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.msprobe import UnreadCall
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.training.acl_json import check_acl_json, write_acl_json
from precision_tool.lib.training.saving import load_feed, read_feeds
from precision_tool.lib.training.switches import _check_switch_file, parse_action
from precision_tool.lib.view.findings import pair_json
from precision_tool.lib.view.text import json_text as view_json

#: Reasons for a part of the input that could not be read; they are checked as messages are.
Reasons = Iterable[Message | str | None]
Files = Callable[[Path], list[bytes]]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader under attack. `read` gets the path of a file, and a folder of its own around it.

    `documents` says that the files are JSON, of which whole values are exchanged too; `messages` are protobuf messages
    in their files; `make` makes inputs from nothing.
    """

    read: Callable[[str], Reasons]
    files: Files
    mutations: Sequence[Mutation]
    file_name: str = "input"
    documents: bool = False
    messages: Callable[[Path], list[MessageSeed]] | None = None
    make: Callable[[Random], bytes] | None = None


# ---- tensors


def _tensors(path: str) -> Reasons:
    """As `pt FILE`."""
    for named in tensors_of_file(path):
        yield named.reason
        yield view_of(named, bins=5, first=5).reason


def _compared(path: str) -> Reasons:
    """As `cp FILE FILE` and `vc`: whatever a tensor holds, it agrees with itself."""
    for named in tensors_of_file(path):
        try:
            pair = pair_up(named, named)
        except PrecisionToolError as error:
            yield error.message
            continue
        (row,) = compare_pairs([pair], THIS_THREAD)
        yield row.reason
        if row.metrics is None:
            continue
        detail = compare_elements(pair, THIS_THREAD, atol=0.0, rtol=0.0, shown=3)
        if row.metrics.max_absolute_error > 0 or detail.outside:
            raise WrongAnswerError(f"it differs from itself: {row.metrics}, {detail}")


def _event(path: str) -> Reasons:
    """As `tf_dump`, then as `pt`."""
    event = read_event(path)
    if not event.skip and not event.is_mostly_claimed:
        target = f"{path}.npy"
        with suppress(FileNotFoundError):
            os.unlink(target)
        write_npy(event, target, lambda count: None)
        if not is_same_npy(event, target, lambda count: None):
            raise WrongAnswerError("what was written is not what would be written")
    yield event.skip
    yield from _tensors(path)


def _any_dump(path: str) -> Reasons:
    dump = open_op_dump(path)
    return (reason for _, reason in dump.bad_slots)


#: A tensor's bytes that are looked at.
_LOOKED_AT = 1 << 20


def _torch(path: str) -> Reasons:
    """As `pt FILE.pt`: every byte that a tensor claims is in its file."""
    tensor = read_torch(path)
    if tensor.nbytes <= _LOOKED_AT:
        with open_bytes(tensor) as file:
            if len(file.read_at(tensor.offset, tensor.nbytes)) != tensor.nbytes:
                raise WrongAnswerError("not all of the bytes")
        figures_of(tensor)
    return ()


def _safetensors(path: str) -> Reasons:
    """As `pt FILE.safetensors`: every byte that a tensor claims is in its file, and is found by its name."""
    with open_file(path) as file:
        dump = read_safetensors_file(file)
    for tensor in dump.outputs:
        if isinstance(tensor, Tensor):
            if tensor.offset + tensor.nbytes > Path(path).stat().st_size:
                raise WrongAnswerError("not all of the bytes")
            if read_safetensor(path, tensor.dataset) != tensor:
                raise WrongAnswerError("another tensor by its name")
            figures_of(tensor)
    return [reason for _, reason in dump.bad_slots]


def _torch_input(rng: Random) -> bytes:
    """A sound archive of a pickle with other numbers, or a damaged one."""
    numbers = [rng.choice((0, 1, 2, 3, 24, rng.choice(BORDERS))) for _ in range(8)]
    rank = rng.randrange(4)
    opcodes = torch_files.tensor_opcodes(
        rng.choice(("float32", "bool", "uint16", "nothing")), numbers[0], numbers[1 : 1 + rank], numbers[4 : 4 + rank],
        numbers[7],
    )  # fmt: skip
    if rng.random() < 0.5:
        opcodes = mutated(rng, opcodes, BINARY, ())
    return torch_files.archive(torch_files.torch_entries(opcodes, bytes(range(96))))


class _Object(list[tuple[str, Any]]):
    """An object of JSON, with all its members."""


def _msprobe(path: str) -> Reasons:
    """What the stream finds is what Python's own reader finds in the whole text."""
    for read in (read_stacks, read_construct):
        with suppress(PrecisionToolError):
            yield read(path).problem
    index = read_dump_index(path)
    yield index.problem
    for call in read_calls(index):
        if isinstance(call, UnreadCall):
            yield call.reason
            continue
        for _, tensor in call.tensors():
            name = tensor.data_name
            if is_tensor_name(name) and os.path.split(os.path.normpath(f"x/{name}")) != ("x", name):
                raise WrongAnswerError(f"a file of another folder: {name!r}")
    try:
        document = json.loads(Path(path).read_bytes().decode(), object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return
    expected = [name for key, value in document if key == "data" and isinstance(value, _Object) for name, _ in value]
    if index.problem is not None or list(index.names) != expected:
        raise WrongAnswerError(f"{list(index.names)} are not the entries {expected}")


def _h5(path: str) -> Reasons:
    """As `pt FILE.h5`."""
    dump = read_h5(path)
    for op in dump.ops:
        for value in op.values:
            yield value.reason
            yield value.note
            if value.is_tensor:
                yield view_of(named_value(path, op, value), bins=5, first=5).reason


def _h5_copy(path: str) -> Reasons:
    """As `h5copy` from the file, and into it."""
    dump = read_h5(path)
    target = f"{path}.copy.h5"
    for source, other in ((path, target), (target, path)):
        if source == path:
            with suppress(FileNotFoundError):
                os.unlink(target)
            copy_ops(source, other, dump.ops[:2])
        else:
            copy_ops(source, other, read_h5(source).ops)
    return ()


# ---- graphs


def _all_of(file: GraphFile) -> None:
    for graph in file.graphs:
        dict(graph.attrs)
        for op in graph.ops:
            dict(op.attrs)


def _graph(path: str) -> Reasons:
    """As `ls`, `graphs` and `graph2json`: whatever reads it, the answer is the same."""
    file = load_graph_file(path)
    _all_of(file)
    peek_graph_name(path)
    skim = skim_graph_file(path)
    if skim.graph_names != tuple(graph.name for graph in file.graphs) or skim.op_count != len(file.ops):
        raise WrongAnswerError(f"a skim finds {skim.graph_names} with {skim.op_count} ops")
    names = list(skim_ops(path))
    with open(path, "rb") as source:
        data = source.read()
    lines = load_graph_lines(data, path, signature_of(path) or (0, 0, 0, 0, 0)) if not is_json(data) else None
    if lines is not None and _without_attrs(lines) != _without_attrs(file):
        raise WrongAnswerError("read by its lines it is another graph")
    if lines is not None and names != [(op.name, op.type) for op in file.ops]:
        raise WrongAnswerError("a skim of the ops finds others")
    if not is_json(data):
        _export(path, data)
    return file.notes


def _export(path: str, data: bytes) -> None:
    """The JSON of a graph, which is the same where a comment lets a text be read as a whole."""
    pieces = "".join(export_graph(path)[0])
    if lines_of(data) is not None:
        Path(path).write_bytes(data + b"#")
        if "".join(export_graph(path)[0]) != pieces:
            raise WrongAnswerError("op by op the JSON is another")


def _without_attrs(file: GraphFile) -> list[Any]:
    return [
        (
            graph.name,
            [(op.name, op.type, op.id, op.inputs, op.input_descs, op.output_descs, op.pass_names) for op in graph.ops],
        )
        for graph in file.graphs
    ]


def _om(path: str) -> Reasons:
    read_om_header(path)
    return _graph(path)


def _proto_text(path: str) -> Reasons:
    data = Path(path).read_bytes()
    parse_proto_text(data, path)
    return not_utf8_notes(data)


def _graph_columns(path: str) -> Reasons:
    """The inside of a cache file, behind its checksum."""
    data = Path(path).read_bytes()
    source = f"{path}.txt"
    if not os.path.exists(source):
        Path(source).write_bytes(seeds.text_graphs(Path(path).parent)[0])
    signature = signature_of(source)
    assert signature is not None
    with suppress(OddCacheError):
        _, file = cache._decode(data, source, signature)
        if file is not None:
            _all_of(file)
    return ()


# ---- overflow, fusion, switches


def _statuses(path: str) -> Reasons:
    for status in read_opdebug(path):
        document_text(status.document)
        yield from status.notes


def _fusion_result(path: str) -> Reasons:
    list(read_fusion_result(path))
    return ()


def _passport(path: str) -> Reasons:
    """As `ac` does it, held against a sound one and against itself."""
    found, sound = read_passport(path), parse_passport(seeds.passports(Path(path).parent)[0].decode())
    for pair in (compare_passports(found, sound), compare_passports(sound, found)):
        view_json(pair_json(pair))
    if compare_passports(found, found).differences:
        raise WrongAnswerError("a passport differs from itself")
    return ()


def _switches(path: str) -> Reasons:
    """As `fusion off`, and as the training helper looks at it."""
    switches = read_switches(path)
    _check_switch_file(path)
    for again in (switches, switches.all_off(), switches.with_pass("NewPass", False)):
        text = render(again)
        if render(parse_switches(text)) != text:
            raise WrongAnswerError("what is written is not what is read again")
    return (*switches.refused, *switches.notes)


def _bisection(path: str) -> Reasons:
    """A `state.json` from which a search goes on."""
    folder = Path(path).parent
    switch_file = str(folder / "switch.cfg")
    file = SwitchFile(path=switch_file, target=switch_file, shipped=parse_switches('{"Switch": {}}'))
    run = BisectRun(folder=folder, check="true", names=("APass", "BPass"), passes={"APass": "APass"}, file=file)
    notes = run.open(fresh=False)
    is_bisected(folder, switch_file)
    yield from (render_message(note).replace(_path_in(path), "PATH") for note in notes)
    list(run.answers)


def _path_in(state: str) -> str:
    """The switch file that a state names: a path may be long, and is escaped where it is shown."""
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        return escaped(str(json.loads(Path(state).read_bytes())["file"])) or "?"
    return "?"


# ---- results and small files


def _mapping(path: str) -> Reasons:
    folder = os.path.dirname(path)
    for name in ("1", "2.csv", "3"):
        Path(folder, name).touch()
    find_named(folder, "Add.op.1.2.1772443800000000")
    for leaf in find_run(folder).leaves:
        for _, reason in leaf.ignored:
            yield reason


def _tensor_table(path: str) -> Reasons:
    folder = os.path.dirname(path)
    benchmark = LISTED.find(folder)
    for file in benchmark.files.values():
        if os.path.commonpath([folder, os.path.abspath(file.path)]) != folder:
            raise WrongAnswerError("a file of another folder")
        with suppress(PrecisionToolError):
            LISTED.read(file)
    return [*benchmark.notes, *(reason for _, reason in benchmark.ignored)]


def _result(path: str) -> Reasons:
    cosines = read_output_figures(path).cosines
    rows = read_result(path)
    assert len(cosines) <= len(rows)
    return ()


def _noise(path: str) -> Reasons:
    read_noise(path)
    return ()


def _acl_json(path: str) -> Reasons:
    write_acl_json(path, {"dump": {}})
    return [problem.text for problem in check_acl_json(path)]


def _settings(path: str) -> Reasons:
    read_settings_file(Path(path))
    return ()


def _feeds(path: str) -> Reasons:
    folder = Path(path).parent
    if not (folder / "x_0.npy").exists():
        np.save(folder / "x_0.npy", np.ones(3, np.float32))
    for each in read_feeds(folder, ["x:0"]).saved:
        _load_feed(folder, each)
    return ()


def _feed_array(path: str) -> Reasons:
    _load_feed(Path(path).parent, SimpleNamespace(tensor="x:0", file=os.path.basename(path)))
    return ()


def _load_feed(folder: Path, feed: Any) -> None:
    with suppress(PrecisionToolError):
        load_feed(folder, feed, SimpleNamespace(name="x:0", dtype=SimpleNamespace(as_numpy_dtype=np.float32)))


def _small_json(path: str) -> Reasons:
    folder = Path(path).parent
    read_small_json(path)
    read_source(str(folder / "input.csv"))
    read_texts(path)
    shutil.copyfile(path, folder / _MEMORY)
    _remembered([folder], ["/x"])
    decoded_cosines(Path(path).read_bytes())
    return [render_message(problem) for problem in (_json_problem(path), _table_problem(path))]


# ---- names


#: Characters that somebody types as a pattern.
_TYPED = 500


def _names(path: str) -> Reasons:
    text = os.fsdecode(Path(path).read_bytes())
    for parse in (
        file_names.parse_dump_name, file_names.parse_golden_name, file_names.numbered_output, file_names.is_graph_file,
        file_names.is_build_graph, file_names.is_data_file, file_names.flatten, file_names.file_part, parse_status_name,
    ):  # fmt: skip
        parse(text)
    parsed = file_names.parse_dump_name(text)
    if parsed and ".0" not in text and file_names.parse_dump_name(file_names.dump_name(parsed[0])) is None:
        raise WrongAnswerError("a name that is written is not read again")
    file_names.pattern(text[:_TYPED])("a/b_c")
    file_names.parse_leaf_path(tuple(text.split("/")))
    file_names.shortened(text, 60)
    return ()


def _tree(path: str) -> Reasons:
    """A data folder with files of these names."""
    root = f"{path}.tree"
    shutil.rmtree(root, ignore_errors=True)
    for line in Path(path).read_bytes().split(b"\n")[:16]:
        parts = [part[:200] for part in line.split(b"/") if part not in (b"", b".", b"..") and b"\0" not in part]
        with suppress(OSError):
            place = os.path.join(os.fsencode(root), *parts[:12])
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    space = Workspace(root)
    overview(space)
    for find in (find_run, find_benchmark, find_status_files, PYTORCH.files):
        with suppress(PrecisionToolError):
            find(root)
    with suppress(PrecisionToolError):
        find_run_graphs([RunFolder(number=0, graph_folder=root, run=None)], GraphChooser(), root=root)
    return ()


def _words(path: str) -> Reasons:
    text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    for parse in (parse_range, parse_ids, parse_metrics, parse_action):
        try:
            parse(text)
        except PrecisionToolError as error:
            yield error.advice
    with suppress(ValueError):
        check_dump_step(text)
    with suppress(ValueError):  # a zero byte in what may be a path
        split_slot(text)
    file_names.pattern(text[:_TYPED])("a/b_c")


# ---- all of them


def _mixed(folder: Path) -> list[bytes]:
    """Files of all kinds, and of those that lie beside dumps."""
    onnx = b"\x08\x07\x12\x04atc\x00:\x10\n\x02op\x12\x03Add\x1a\x05graph" + b'ir_version: 7\nproducer_name: "atc"\n'
    makers: tuple[Files, ...] = (seeds.dumps, seeds.npys, seeds.statistics, seeds.events, seeds.oms, seeds.text_graphs)
    return [onnx, b"", *(make(folder)[0] for make in makers)]


def _tensor_files(folder: Path) -> list[bytes]:
    return [*seeds.dumps(folder), *seeds.npys(folder)]


def _npy_input(rng: Random) -> bytes:
    return npy_file(rng, seeds.NPY_DATA)


READERS: dict[str, Reader] = {
    "dump": Reader(read=_tensors, files=seeds.dumps, mutations=BINARY, messages=seeds.dump_messages),
    "npy": Reader(read=_tensors, files=seeds.npys, mutations=BINARY, make=_npy_input),
    "compare": Reader(
        read=_compared, files=_tensor_files, mutations=BINARY, messages=seeds.dump_messages, make=_npy_input
    ),
    "statistics": Reader(read=_tensors, files=seeds.statistics, mutations=CSV, file_name="input.csv"),
    "tfdbg": Reader(
        read=_event, files=seeds.events, mutations=BINARY, messages=lambda folder: messages(seeds.events(folder))
    ),
    "torch": Reader(
        read=_torch, files=seeds.torches, mutations=(*CLAIMS * 2, *BINARY), make=_torch_input, file_name="input.pt"
    ),
    "safetensors": Reader(
        read=_safetensors, files=seeds.safetensors, mutations=(*CLAIMS, *BINARY, *TEXT), file_name="input.safetensors"
    ),
    "msprobe": Reader(read=_msprobe, files=seeds.msprobes, mutations=TEXT, documents=True, file_name="dump.json"),
    "any_dump": Reader(read=_any_dump, files=_mixed, mutations=BINARY),
    "h5": Reader(read=_h5, files=seeds.h5s, mutations=(*CLAIMS * 8, *BINARY), file_name="input.h5"),
    "h5copy": Reader(read=_h5_copy, files=seeds.h5s, mutations=(*CLAIMS * 8, *BINARY), file_name="input.h5"),
    "proto_text": Reader(read=_proto_text, files=seeds.text_graphs, mutations=TEXT),
    "graph_text": Reader(
        read=_graph, files=seeds.text_graphs, mutations=TEXT, file_name="ge_proto_00000001_graph_1_Build.txt"
    ),
    "graph_json": Reader(read=_graph, files=seeds.json_graphs, mutations=TEXT, documents=True, file_name="input.json"),
    "om": Reader(read=_om, files=seeds.oms, mutations=BINARY, messages=seeds.om_messages, file_name="input.om"),
    "graph_cache": Reader(read=_graph_columns, files=seeds.graph_columns, mutations=BINARY),
    "overflow": Reader(read=_statuses, files=seeds.statuses, mutations=BINARY),
    "overflow_json": Reader(read=_statuses, files=seeds.status_texts, mutations=TEXT, documents=True),
    "fusion_result": Reader(read=_fusion_result, files=seeds.fusion_results, mutations=TEXT, documents=True),
    "passport": Reader(read=_passport, files=seeds.passports, mutations=TEXT, documents=True),
    "fusion_switch": Reader(read=_switches, files=seeds.switch_files, mutations=TEXT, documents=True),
    "bisection": Reader(
        read=_bisection, files=seeds.bisections, mutations=TEXT, documents=True, file_name="state.json"
    ),
    "tensor_table": Reader(read=_tensor_table, files=seeds.tensor_tables, mutations=CSV, file_name="tensors.csv"),
    "mapping": Reader(read=_mapping, files=seeds.mappings, mutations=CSV, file_name="mapping.csv"),
    "result": Reader(read=_result, files=seeds.results, mutations=CSV),
    "noise": Reader(read=_noise, files=seeds.noises, mutations=CSV),
    "acl_json": Reader(read=_acl_json, files=seeds.acl_jsons, mutations=TEXT, documents=True),
    "settings": Reader(read=_settings, files=seeds.settings, mutations=TEXT),
    "feeds": Reader(read=_feeds, files=seeds.feeds, mutations=TEXT, documents=True, file_name="feeds.json"),
    "feed_array": Reader(read=_feed_array, files=seeds.npys, mutations=BINARY, make=_npy_input),
    "small_json": Reader(
        read=_small_json, files=seeds.small_jsons, mutations=TEXT, documents=True, file_name="input.json"
    ),
    "verdict": Reader(
        read=kept.read_kept_verdict, files=kept.verdicts, mutations=TEXT, documents=True, file_name="verdict_1.json"
    ),
    "profile": Reader(
        read=kept.read_kept_profile, files=kept.profiles, mutations=TEXT, documents=True, file_name="profile_1.json"
    ),
    "judgement": Reader(read=kept.read_judgement, files=kept.judgements, mutations=TEXT, documents=True),
    "study_outcome": Reader(read=kept.read_outcome, files=kept.outcomes, mutations=TEXT, documents=True),
    "study_database": Reader(read=kept.read_database, files=kept.databases, mutations=(*CLAIMS, *BINARY)),
    "study_votes": Reader(read=kept.read_votes, files=kept.votes, mutations=(*CLAIMS, *BINARY)),
    "messages": Reader(read=shown.read_message, files=shown.messages, mutations=TEXT, make=shown.message_input),
    "offered": Reader(read=shown.read_offered, files=shown.offered, mutations=TEXT, make=shown.offered_input),
    "request": Reader(read=requests.read_request, files=requests.requests, mutations=TEXT, make=requests.request_input),
    "names": Reader(read=_names, files=seeds.names, mutations=TEXT),
    "tree": Reader(read=_tree, files=seeds.trees, mutations=TEXT),
    "words": Reader(read=_words, files=seeds.words, mutations=TEXT),
}


def messages(files: Sequence[bytes]) -> list[MessageSeed]:
    """The files that are one message as a whole."""
    return seeds.messages_of(files)


def documents_of(files: Sequence[bytes]) -> list[Any]:
    """The files that are JSON, as values."""
    found = []
    for data in files:
        with suppress(ValueError):
            found.append(json.loads(data))
    return found
