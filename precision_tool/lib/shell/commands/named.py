"""What users name by a file, a slot of one, or any part of an op's name."""

from __future__ import annotations

import argparse
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence

from precision_tool.lib.collect.tfdbg import runs as tfdbg
from precision_tool.lib.errors import DataNotFoundError, UsageError
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.inspect.convert import Origins, Source
from precision_tool.lib.inspect.named_tensors import NamedTensor
from precision_tool.lib.io.files import exists, is_folder
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.wording import first_of
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import Completion, Output, Parser, completes
from precision_tool.lib.sources.names import is_number, parse_dump_name
from precision_tool.lib.sources.walk import find_named

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
    is_file_name = base.endswith((".npy", ".csv")) or is_number(base) or is_dump_name
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
