"""Names of dump files, of files of tensors, and of ops of a graph; and which way a name is looked up."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.inspect.convert import Source, find_sources
from precision_tool.lib.inspect.named_tensors import NamedTensor, tensors_of_file, tensors_of_pair
from precision_tool.lib.io.files import exists, folder_exists
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.present.op import run_name
from precision_tool.lib.present.text import plain
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import Output
from precision_tool.lib.shell.commands.named import Named, dumped_ops, named_files, note_others, origins_of
from precision_tool.lib.shell.commands.pytorch import PytorchName
from precision_tool.lib.sources.kinds import kind_at
from precision_tool.lib.sources.names import parse_dump_name
from precision_tool.lib.sources.overflow_files import DECODED_FOLDER, parse_status_name
from precision_tool.lib.workspace import lies_in, shown_path


def look_up(session: Session, name: str, graph: str | None) -> Named:
    """The way a name is looked up, in `graph` if one was asked for."""
    is_pytorch = graph is None and session.data.is_pytorch_name(name)
    return (PytorchName if is_pytorch else GraphName)(session, name, graph)


def sources_below(session: Session, path: str, folder: str | None) -> tuple[list[Source], tuple[str, ...]]:
    """All that lies below a folder, to be decoded into `folder` if one was asked for, and notes."""
    return (GraphName if kind_at(path).has_graph else PytorchName).sources_below(session, path, folder)


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
        elif exists(name) and name.endswith(".npy"):
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
