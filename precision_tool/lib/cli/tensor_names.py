"""What users name by a file, a slot of one, or any part of an op's name, and the tensors that it stands for."""

from __future__ import annotations

import argparse
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, show_note
from precision_tool.lib.compare.convert import Origins, Source, find_sources, h5_source, in_own_folders
from precision_tool.lib.compare.named_tensors import NamedTensor, named_value, tensors_of_file, tensors_of_pair
from precision_tool.lib.data.dump_names import is_number, parse_dump_name
from precision_tool.lib.data.dump_tree import DECODED_FOLDER, find_named, parse_status_name
from precision_tool.lib.data.graph_catalog import FoundOp
from precision_tool.lib.data.kinds import NPY, PYTORCH, kind_at
from precision_tool.lib.data.pytorch_pairing import H5Hit, parse_h5_name
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.io import tfdbg_files as tfdbg
from precision_tool.lib.io.files import exists, folder_exists, is_folder
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.pytorch import OUTPUT, H5Value
from precision_tool.lib.session import Session
from precision_tool.lib.view.op_screen import run_name

#: Of many outputs as many are named.
_LISTED = 8
OP_GRAPH_HELP = "graph file to look an op up in"
TENSOR_HELP = (
    "a dump file, one of its slots (FILE:output:0), a .npy file, or an op: part of its name, or its number as [17]"
)


class Named(ABC):
    """A name of tensors: of a file, or of an op. There is a subclass for each way to find them."""

    def __init__(self, session: Session, name: str, graph: str | None) -> None:
        self.session, self.name, self.graph = session, name, graph

    @abstractmethod
    def groups(self, slot: str) -> list[list[NamedTensor]]:
        """Return each tensor alone, or with its benchmark; only of `slot`, or of all for ""."""

    @abstractmethod
    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        """Return the tensor in a slot, by default the first output, and its benchmark, as `vc` pairs them."""

    @abstractmethod
    def single(self, own_slot: str, slot: str, output: Output) -> NamedTensor:
        """Return the single NPU tensor in `own_slot`, else in `slot` or output 0."""

    @staticmethod
    @abstractmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[Message, ...]]:
        """Return the files to decode below a folder, and notes."""

    @abstractmethod
    def sources(self, slot: str, folder: str | None) -> list[Source]:
        """Return the files to decode, into `folder` if there is one."""


def add_name(parser: Parser, metavar: str, what: str) -> None:
    """Add the arguments that `one_name` reads; `what` is their help."""
    flags.add(parser, "name", nargs="?", metavar=metavar, help=what, completes="tensor")
    flags.add(
        parser, "-n", "--name", dest="option_name", metavar=metavar, help="the same, as an option", completes="tensor"
    )


def one_name(args: argparse.Namespace, command: str) -> str:
    """Return the name, given as an option or without. UsageError if it is missing or given twice."""
    names = [name for name in (args.name, args.option_name) if name is not None]
    if len(names) != 1 or not names[0]:
        raise UsageError("cli.one_tensor", command=command)
    return str(names[0])


def named_files(session: Session, name: str) -> list[str]:
    """Return the paths of a name: itself, or files of this name in the data folder; none if it may be an op."""
    if exists(name):
        return [name]
    base = posixpath.basename(name)
    is_dump_name = parse_dump_name(base) is not None or tfdbg.is_tensor_name(base)
    is_file_name = NPY.has_suffix(base) or base.endswith(".csv") or is_number(base) or is_dump_name
    if not is_file_name or "\0" in name:
        return []
    if base != name:
        raise DataNotFoundError("cli.no_such_file", name=name)
    space = session.workspace
    roots = [space.dump_dir(number) for number in space.debug_numbers()]
    roots += [space.tf_dump_dir, space.tf_debug_dir, space.overflow_dump_dir]
    roots += [base / "decode" for base in space.result_dirs()]
    paths = [path for root in roots if is_folder(root) for path in find_named(str(root), name)]
    if not paths:
        raise DataNotFoundError("cli.no_such_file_in", name=name, folder=space.root)
    return paths


def dumped_ops(session: Session, name: str, graph: str | None) -> list[tuple[FoundOp, tuple[Pair, ...]]]:
    """Return the op of a name in every graph, with the rows of its dump. DataNotFoundError if it has none."""
    try:
        ops = session.find_ops(name, graph)
    except DataNotFoundError as error:
        reason, advice = error.full_message, error.hint_message
        raise DataNotFoundError("cli.no_such_op", name=name, reason=reason, advice=advice) from error
    dumped = [(op, pairs) for op in ops if (pairs := session.pairs_of(op))]
    if not dumped:
        raise DataNotFoundError("cli.op_not_dumped", name=ops[0].op.name, op_type=ops[0].op.type)
    return dumped


def note_others(session: Session, name: str, taken: str, others: Sequence[str]) -> None:
    """Add a note that an op has other outputs; `others` are the options that choose them."""
    if others:
        session.workspace.notes.append(
            Message("note.cli.one_of_outputs", name=name, slot=taken, outputs=len(others) + 1, others=list(others))
        )


def origins_of(op: FoundOp) -> Origins:
    """Return the original layout and shape of each slot of an op, as the graph has them."""
    sides = (("input", op.op.input_descs), ("output", op.op.output_descs))
    return {
        f"{side}:{index}": (desc.dump_origin_layout or desc.origin_layout, desc.origin_shape)
        for side, descs in sides
        for index, desc in enumerate(descs)
    }


class GraphName(Named):
    """A file, or an op of a graph with its dump."""

    @staticmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[Message, ...]]:
        return find_sources(path, output_folder(session, path, folder))

    def groups(self, slot: str) -> list[list[NamedTensor]]:
        if folder_exists(self.name):
            raise UsageError("cli.is_folder", name=self.name)
        paths = named_files(self.session, self.name)
        if paths:
            return [[named] for path in paths for named in tensors_of_file(path, slot)]
        groups = []
        ops = dumped_ops(self.session, self.name, self.graph)
        for op, pairs in ops:
            origins = origins_of(op)
            for pair in pairs:
                if slot in ("", pair.slot):
                    npu, golden = tensors_of_pair(pair, run_name(op.run), *origins.get(pair.slot, (None, None)))
                    groups.append([npu] if golden is None else [npu, golden])
        if not groups:
            raise _no_slot(*ops[0], slot)
        return groups

    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        """Return the pair as for every name; a dump file stands for its op."""
        name, is_chosen, slot = self.name, bool(slot), slot or "output:0"
        parsed = parse_dump_name(posixpath.basename(name))
        if parsed is not None:
            name = parsed[0].op_name
        elif exists(name) and NPY.has_suffix(name):
            raise UsageError("cli.cp_second", name=name)
        ops = dumped_ops(self.session, name, self.graph)
        fitting = [(op, pair, pairs) for op, pairs in ops for pair in pairs if pair.slot == slot]
        if not fitting:
            raise _no_slot(*ops[0], slot)
        for op, pair, pairs in fitting:
            if pair.status is Status.COMPARED:
                npu, golden = tensors_of_pair(pair, run_name(op.run))
                assert golden is not None
                if not is_chosen:
                    outputs = dict.fromkeys(other.slot for other in pairs if other.slot.startswith("output:"))
                    others = [f"-o {other.partition(':')[2]}" for other in outputs if other != slot]
                    note_others(self.session, name, slot, others)
                return pair, npu, golden
        _, pair, _ = fitting[0]
        raise FormatError.of(
            pair.npu.path if pair.npu is not None else "", "cli.no_partner", what=pair.tensor_index, reason=pair.reason
        )

    def single(self, own_slot: str, slot: str, output: Output) -> NamedTensor:
        groups = self.groups(own_slot)
        slot_ = own_slot or slot or "output:0"
        fitting = [group[0] for group in groups if group[0].slot in ("", slot_)]
        if not fitting and len(groups) == 1 and not (own_slot or slot):
            fitting = [groups[0][0]]
        if not fitting:
            raise DataNotFoundError(
                "cli.no_slot_chosen",
                name=self.name,
                slot=slot_,
                slots=list(dict.fromkeys(group[0].slot for group in groups)),
            )
        if len(fitting) > 1:
            others = len(fitting) - 1
            path = shown_path(fitting[0].path)
            note = Message("note.cli.several_matches", name=self.name, count=len(fitting), path=path, others=others)
            show_note(output, note)
        return fitting[0]

    def sources(self, slot: str, folder: str | None) -> list[Source]:
        def of_file(path: str) -> Source:
            return find_sources(path, output_folder(self.session, path, folder))[0][0]

        paths = named_files(self.session, self.name)
        if paths:
            return [replace(of_file(path), slot=slot) for path in paths]
        chosen: dict[str, Source] = {}
        for op, pairs in dumped_ops(self.session, self.name, self.graph):
            for path in [pair.npu.path for pair in pairs if pair.npu is not None and slot in ("", pair.slot)]:
                chosen.setdefault(path, replace(of_file(path), slot=slot, origins=origins_of(op)))
        if not chosen:
            raise DataNotFoundError("cli.no_readable_slot", name=self.name, slot=slot)
        return list(chosen.values())


def _no_slot(op: FoundOp, pairs: Sequence[Pair], slot: str) -> DataNotFoundError:
    return DataNotFoundError(
        "cli.no_slot", name=op.op.name, slot=slot, slots=[pair.slot for pair in pairs if pair.slot]
    )


def output_folder(session: Session, path: str, folder: str | None) -> str:
    """Return the output folder for `path`: `folder`, else the one of its run."""
    if folder is not None:
        return folder
    place = posixpath.abspath(path)
    for number in session.workspace.debug_numbers():
        root = posixpath.abspath(session.workspace.debug_dir(number))
        if lies_in(place, root):
            return str(session.workspace.output_dir("decode", "dump_decode", f"debug_{number}"))
    root = posixpath.abspath(session.workspace.overflow_dump_dir)
    if lies_in(place, root) or parse_status_name(posixpath.basename(place)) is not None:
        return str(session.workspace.output_dir(*DECODED_FOLDER))
    return str(session.workspace.output_dir("decode", "dump_decode"))


def _slot_number(slot: str) -> tuple[str, int | None]:
    direction, _, number = slot.partition(":")
    return direction, int(number) if number else None


def _values(hit: H5Hit, slot: str) -> tuple[H5Value, ...]:
    """Return the values of the name, or the one that a slot `output:0` numbers."""
    if not slot:
        return hit.values
    direction, number = _slot_number(slot)
    tensors = [value for value in hit.values if value.direction == direction and value.is_tensor]
    return tuple(tensors[number : number + 1]) if number is not None else ()


def _hits(session: Session, name: str, slot: str) -> list[tuple[H5Hit, tuple[H5Value, ...]]]:
    hits = session.data.find_h5(
        name, many=bool((h5_name := parse_h5_name(name)) and h5_name.file and not h5_name.inside)
    )
    matches = [(hit, values) for hit in hits if (values := _values(hit, slot))]
    if not matches:
        raise DataNotFoundError(
            "cli.no_slot",
            name=hits[0].op.name,
            slot=slot,
            slots=[value.slot for value in hits[0].values if value.is_tensor],
        )
    return matches


class PytorchName(Named):
    """A `.h5` file, an op of one, or one of its data sets."""

    @staticmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[Message, ...]]:
        return placed(session, [h5_source(file) for file in PYTORCH.files(path)], folder), ()

    def groups(self, slot: str) -> list[list[NamedTensor]]:
        groups = []
        for hit, values in _hits(self.session, self.name, slot):
            pairs = {pair.slot: pair for pair in hit.side.pairs_of(hit.op)} if hit.side.other is not None else {}
            for value in values:
                pair = pairs.get(value.slot) if value.is_tensor else None
                if pair is None or pair.npu is None:
                    groups.append([named_value(hit.side.dump.path, hit.op, value, hit.side.side)])
                    continue
                npu, golden = tensors_of_pair(pair, "")
                groups.append([npu] if golden is None else [npu, golden])
        return groups

    def single(self, own_slot: str, slot: str, output: Output) -> NamedTensor:
        slot = own_slot or slot
        hit, values = _hits(self.session, self.name, slot)[0]
        tensors = [value for value in values if value.tensor is not None]
        outputs = [value for value in tensors if value.is_tensor and value.direction == OUTPUT]
        chosen = next(iter(outputs if not hit.is_part and not slot else tensors), None)
        if chosen is None:
            raise FormatError.of(hit.side.dump.path, "cli.no_h5_tensor", what=self.name)
        return named_value(hit.side.dump.path, hit.op, chosen, "")

    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        hit, values = _hits(self.session, self.name, slot)[0]
        slots = {value.slot for value in values if hit.is_part or slot or value.direction == OUTPUT}
        fitting = [pair for pair in hit.side.pairs_of(hit.op) if pair.slot in slots]
        for pair in fitting:
            if pair.status is Status.COMPARED:
                npu, golden = tensors_of_pair(pair, "")
                assert golden is not None
                if not hit.is_part and not slot:
                    self._note_others(hit, pair.slot)
                return pair, npu, golden
        raise FormatError.of(
            hit.side.dump.path, "cli.no_h5_partner", what=self.name, reason=fitting[0].reason if fitting else None
        )

    def _note_others(self, hit: H5Hit, taken: str) -> None:
        outputs = [value.slot for value in hit.values if value.is_tensor and value.direction == OUTPUT]
        others = [
            f"-o {number} ({output.partition(':')[2]})" for number, output in enumerate(outputs) if output != taken
        ]
        note_others(self.session, self.name, taken, others)

    def sources(self, slot: str, folder: str | None) -> list[Source]:
        slots_by_op: dict[str, set[str]] = {}
        for hit, values in _hits(self.session, self.name, slot):
            slots_by_op.setdefault(hit.side.dump.path, set()).update(value.path for value in values)
        return placed(self.session, [h5_source(path, frozenset(names)) for path, names in slots_by_op.items()], folder)


def placed(session: Session, sources: Sequence[Source], folder: str | None) -> list[Source]:
    """Set the output folders of `.h5` dumps: `folder`; of several dumps, or without one, a folder each."""
    apart = folder is None or len(sources) > 1
    output = folder or str(session.workspace.output_dir("decode", "dump_decode", "pt"))
    placed = [replace(source, folder=output) for source in sources]
    if not apart:
        return placed
    root = posixpath.abspath(session.workspace.pt_npu_dir.parent)
    places = [posixpath.dirname(posixpath.abspath(source.path)) for source in sources]
    is_inside = all(lies_in(place, root) for place in places)
    return in_own_folders(placed, root if is_inside else posixpath.commonpath(places))


def look_up(session: Session, name: str, graph: str | None) -> Named:
    """Return the name as one of a file or op of a graph, or of a PyTorch dump."""
    is_pytorch = graph is None and session.data.is_pytorch_name(name)
    return (PytorchName if is_pytorch else GraphName)(session, name, graph)


def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[Message, ...]]:
    """Return the files to decode below a folder, and notes."""
    return (GraphName if kind_at(path).has_graph else PytorchName).sources_below(session, path, folder)
