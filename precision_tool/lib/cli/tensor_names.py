"""What users name by a file, a slot of one, or any part of an op's name, and the tensors that it stands for."""

from __future__ import annotations

import argparse
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli.command import (
    Completion,
    Output,
    Parser,
    completes,
)
from precision_tool.lib.collect.tfdbg import runs as tfdbg
from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.inspect.convert import Origins, Source, find_sources, h5_source, in_own_folders
from precision_tool.lib.inspect.named_tensors import (
    NamedTensor,
    named_value,
    tensors_of_file,
    tensors_of_pair,
)
from precision_tool.lib.io.files import exists, folder_exists, is_folder
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.pytorch import OUTPUT, H5Value
from precision_tool.lib.model.wording import first_of
from precision_tool.lib.pairing.pytorch_ops import H5Hit, parse_h5_name
from precision_tool.lib.present.op import run_name
from precision_tool.lib.present.text import plain
from precision_tool.lib.session import Session
from precision_tool.lib.sources.h5_files import PYTORCH
from precision_tool.lib.sources.kinds import NPY, kind_at
from precision_tool.lib.sources.names import is_number, parse_dump_name
from precision_tool.lib.sources.overflow_files import DECODED_FOLDER, parse_status_name
from precision_tool.lib.sources.walk import find_named
from precision_tool.lib.workspace import lies_in, shown_path

#: Of many outputs as many are named.
_LISTED = 8
OP_GRAPH_HELP = "graph file to look an op up in"
TENSOR_HELP = (
    "a dump file, one of its slots (FILE:output:0), a .npy file, or an op: part of its name, or its number as [17]"
)


class Named(ABC):
    """What a name stands for: tensors of a file, or of an op. One class for each way to find them."""

    def __init__(self, session: Session, name: str, graph: str | None) -> None:
        self.session, self.name, self.graph = session, name, graph

    @abstractmethod
    def groups(self, slot: str) -> list[list[NamedTensor]]:
        """Each tensor alone, or with its benchmark; of `slot` only, "" for all."""

    @abstractmethod
    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        """The tensor in a slot, the first output without one, and its benchmark, as `vc` pairs them."""

    @abstractmethod
    def single(self, own_slot: str, slot: str, output: Output) -> NamedTensor:
        """The one tensor of the NPU in the slot behind the name; without, that in `slot` or output 0."""

    @staticmethod
    @abstractmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[str, ...]]:
        """All below a folder that is decoded, into `folder` if one was asked for, and notes."""

    @abstractmethod
    def sources(self, slot: str, folder: str | None) -> list[Source]:
        """The files to decode for it, into `folder` if one was asked for."""


def add_name(parser: Parser, metavar: str, what: str) -> None:
    """The arguments that `one_name` takes the name from; `what` is their help."""
    plain = parser.add_argument("name", nargs="?", metavar=metavar, help=what)
    option = parser.add_argument("-n", "--name", dest="option_name", metavar=metavar, help="the same, as an option")
    completes(plain, Completion.TENSOR)
    completes(option, Completion.TENSOR)


def one_name(args: argparse.Namespace, command: str) -> str:
    """The name, given as an option or without; UsageError if it is missing or given twice."""
    names = [name for name in (args.name, args.option_name) if name is not None]
    if len(names) != 1 or not names[0]:
        raise UsageError(f"{command}: name one tensor, file or op", f"`{command} -h` shows how")
    return str(names[0])


def named_files(session: Session, name: str) -> list[str]:
    """The paths a name stands for: itself, or files of this name in the data folder; none for what may be an op."""
    if exists(name):
        return [name]
    base = posixpath.basename(name)
    is_dump_name = parse_dump_name(base) is not None or tfdbg.is_tensor_name(base)
    is_file_name = NPY.has_suffix(base) or base.endswith(".csv") or is_number(base) or is_dump_name
    if not is_file_name or "\0" in name:
        return []
    if base != name:
        raise DataNotFoundError(f"{name}: no such file", "check the name and the folder above it")
    space = session.workspace
    roots = [space.dump_dir(number) for number in space.debug_numbers()]
    roots += [space.tf_dump_dir, space.tf_debug_dir, space.overflow_dump_dir]
    roots += [base / "decode" for base in space.result_dirs()]
    found = [path for root in roots if is_folder(root) for path in find_named(str(root), name)]
    if not found:
        raise DataNotFoundError(
            f"{name}: no such file, here or in {space.root}", "`ls dump` lists the dump files; or name an op"
        )
    return found


def dumped_ops(session: Session, name: str, graph: str | None) -> list[tuple[FoundOp, tuple[Pair, ...]]]:
    """The op of a name in every graph, with the rows of its dump; DataNotFoundError if it has none."""
    try:
        found = session.find_ops(name, graph)
    except DataNotFoundError as error:
        raise DataNotFoundError(f"{name}: no such file, and no such op: {error.message}", error.hint) from error
    dumped = [(one, pairs) for one in found if (pairs := session.pairs_of(one))]
    if not dumped:
        raise DataNotFoundError(
            f"{found[0].op.name}: the graph has this op ({found[0].op.type}), the dump has no file of it",
            "constants, variables and ops that the compiler works out are not dumped; `ls dump` lists what is",
        )
    return dumped


def note_others(session: Session, name: str, taken: str, others: Sequence[str]) -> None:
    """Notes that an op has other outputs than the one taken; `others` are the options that choose them."""
    if others:
        session.workspace.notes.append(
            f"{name}: {taken} is compared, one of {len(others) + 1} outputs; choose another with "
            f"{first_of(others, _LISTED)}"
        )


def origins_of(found: FoundOp) -> Origins:
    """What the graph tells of the original layout and shape of each slot of an op."""
    sides = (("input", found.op.input_descs), ("output", found.op.output_descs))
    return {
        f"{side}:{index}": (desc.dump_origin_layout or desc.origin_layout, desc.origin_shape)
        for side, descs in sides
        for index, desc in enumerate(descs)
    }


class GraphName(Named):
    """A file, or an op of a graph with its dump."""

    @staticmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[str, ...]]:
        return find_sources(path, output_folder(session, path, folder))

    def groups(self, slot: str) -> list[list[NamedTensor]]:
        if folder_exists(self.name):
            raise UsageError(f"{self.name}: a folder", "name a file in it; `dc` decodes whole folders")
        paths = named_files(self.session, self.name)
        if paths:
            return [[named] for path in paths for named in tensors_of_file(path, slot)]
        groups = []
        ops = dumped_ops(self.session, self.name, self.graph)
        for found, pairs in ops:
            origins = origins_of(found)
            for pair in pairs:
                if slot in ("", pair.slot):
                    npu, golden = tensors_of_pair(pair, run_name(found.run), *origins.get(pair.slot, (None, None)))
                    groups.append([npu] if golden is None else [npu, golden])
        if not groups:
            raise _no_slot(*ops[0], slot)
        return groups

    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        """As of every name; a dump file stands for its op."""
        name, is_chosen, slot = self.name, bool(slot), slot or "output:0"
        parsed = parse_dump_name(posixpath.basename(name))
        if parsed is not None:
            name = parsed[0].op_name
        elif exists(name) and NPY.has_suffix(name):
            raise UsageError(f"cp: {name} with what?", "name a second tensor")
        ops = dumped_ops(self.session, name, self.graph)
        fitting = [(found, pair, pairs) for found, pairs in ops for pair in pairs if pair.slot == slot]
        if not fitting:
            raise _no_slot(*ops[0], slot)
        for found, pair, pairs in fitting:
            if pair.status is Status.COMPARED:
                npu, golden = tensors_of_pair(pair, run_name(found.run))
                assert golden is not None
                if not is_chosen:
                    outputs = dict.fromkeys(one.slot for one in pairs if one.slot.startswith("output:"))
                    others = [f"-o {one.partition(':')[2]}" for one in outputs if one != slot]
                    note_others(self.session, name, slot, others)
                return pair, npu, golden
        _, pair, _ = fitting[0]
        raise FormatError.of(
            pair.npu.path if pair.npu is not None else "",
            f"nothing to compare it with: {pair.reason}",
            "name both tensors, or another output with -o N",
            what=pair.tensor_index,
        )

    def single(self, own_slot: str, slot: str, output: Output) -> NamedTensor:
        groups = self.groups(own_slot)
        wanted = own_slot or slot or "output:0"
        fitting = [group[0] for group in groups if group[0].slot in ("", wanted)]
        if not fitting and len(groups) == 1 and not (own_slot or slot):
            fitting = [groups[0][0]]
        if not fitting:
            slots = ", ".join(dict.fromkeys(group[0].slot for group in groups))
            raise DataNotFoundError(f"{self.name}: no {wanted}", f"it has {slots}: choose with -i N or -o N")
        if len(fitting) > 1:
            others = len(fitting) - 1
            found = f"{self.name} is found {len(fitting)} times"
            note = f"note: {found}; {shown_path(fitting[0].path)} is taken, {others} left out"
            output.err.print(plain(note, "yellow"), soft_wrap=True)
        return fitting[0]

    def sources(self, slot: str, folder: str | None) -> list[Source]:
        def of_file(path: str) -> Source:
            return find_sources(path, output_folder(self.session, path, folder))[0][0]

        paths = named_files(self.session, self.name)
        if paths:
            return [replace(of_file(path), slot=slot) for path in paths]
        chosen: dict[str, Source] = {}
        for one, pairs in dumped_ops(self.session, self.name, self.graph):
            for path in [pair.npu.path for pair in pairs if pair.npu is not None and slot in ("", pair.slot)]:
                chosen.setdefault(path, replace(of_file(path), slot=slot, origins=origins_of(one)))
        if not chosen:
            nothing = f"{self.name}: its dump has no {slot or 'tensor that can be read'}"
            raise DataNotFoundError(nothing, "`pt` shows its slots")
        return list(chosen.values())


def _no_slot(found: FoundOp, pairs: Sequence[Pair], slot: str) -> DataNotFoundError:
    slots = ", ".join(pair.slot for pair in pairs if pair.slot)
    return DataNotFoundError(f"{found.op.name}: its dump has no {slot}", f"it has {slots or 'no tensors'}")


def output_folder(session: Session, path: str, folder: str | None) -> str:
    """Where the results of `path` go: as asked, else the folder of its run."""
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
    """The values that were asked for: those of the name, or the one that a slot `output:0` numbers."""
    if not slot:
        return hit.values
    direction, number = _slot_number(slot)
    tensors = [value for value in hit.values if value.direction == direction and value.is_tensor]
    return tuple(tensors[number : number + 1]) if number is not None else ()


def _hits(session: Session, name: str, slot: str) -> list[tuple[H5Hit, tuple[H5Value, ...]]]:
    hits = session.data.find_h5(name, many=bool((asked := parse_h5_name(name)) and asked.file and not asked.inside))
    found = [(hit, values) for hit in hits if (values := _values(hit, slot))]
    if not found:
        have = ", ".join(value.slot for value in hits[0].values if value.is_tensor)
        raise DataNotFoundError(f"{hits[0].op.name}: no {slot}", f"it has {have or 'no tensors'}")
    return found


class PytorchName(Named):
    """A `.h5` file, an op of one, or one of its data sets."""

    @staticmethod
    def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[str, ...]]:
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
            reason, hint = "no tensor that can be read", "`ls dump` lists the data sets"
            raise FormatError.of(hit.side.dump.path, reason, hint, what=self.name)
        return named_value(hit.side.dump.path, hit.op, chosen, "")

    def pair(self, slot: str) -> tuple[Pair, NamedTensor, NamedTensor]:
        hit, values = _hits(self.session, self.name, slot)[0]
        wanted = {value.slot for value in values if hit.is_part or slot or value.direction == OUTPUT}
        fitting = [pair for pair in hit.side.pairs_of(hit.op) if pair.slot in wanted]
        for pair in fitting:
            if pair.status is Status.COMPARED:
                npu, golden = tensors_of_pair(pair, "")
                assert golden is not None
                if not hit.is_part and not slot:
                    self._note_others(hit, pair.slot)
                return pair, npu, golden
        why = fitting[0].reason if fitting else "it has no such tensor"
        reason = f"nothing to compare it with: {why}"
        raise FormatError.of(hit.side.dump.path, reason, "name both tensors", what=self.name)

    def _note_others(self, hit: H5Hit, taken: str) -> None:
        outputs = [value.slot for value in hit.values if value.is_tensor and value.direction == OUTPUT]
        others = [f"-o {number} ({one.partition(':')[2]})" for number, one in enumerate(outputs) if one != taken]
        note_others(self.session, self.name, taken, others)

    def sources(self, slot: str, folder: str | None) -> list[Source]:
        wanted: dict[str, set[str]] = {}
        for hit, values in _hits(self.session, self.name, slot):
            wanted.setdefault(hit.side.dump.path, set()).update(value.path for value in values)
        return placed(self.session, [h5_source(path, frozenset(names)) for path, names in wanted.items()], folder)


def placed(session: Session, sources: Sequence[Source], folder: str | None) -> list[Source]:
    """Where the tensors of `.h5` dumps go: as asked, but those of several dumps, or where nothing was asked, apart."""
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
    """The way a name is looked up, in `graph` if one was asked for."""
    is_pytorch = graph is None and session.data.is_pytorch_name(name)
    return (PytorchName if is_pytorch else GraphName)(session, name, graph)


def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[str, ...]]:
    """All that lies below a folder, to be decoded into `folder` if one was asked for, and notes."""
    return (GraphName if kind_at(path).has_graph else PytorchName).sources_below(session, path, folder)
