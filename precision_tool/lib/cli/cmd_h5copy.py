"""`h5copy`: ops of a PyTorch `.h5` dump, copied into another file."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterator, Mapping

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, tell_notes
from precision_tool.lib.data.pytorch_pairing import H5Hit
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io.files import size_of
from precision_tool.lib.io.hdf5 import copy_ops
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.text import json_text, plain


def _options(parser: Parser, session: Session) -> None:
    flags.add(parser, "-i", "--input", metavar="FILE", help="the dump (default: the one of pt/npu)", completes="file")
    flags.add(parser, "-o", "--output", metavar="FILE", required=True, help="the file to copy to", completes="file")
    flags.add(
        parser, "-s", "--source", metavar="/OP/SEQ", required=True, action="append", completes="op",
            help="the op, as /Addmm/4; again for more ops. A name without number, as Addmm, is every run of that op",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--destination", metavar="/OP/SEQ", action="append", help="the same as -s, and not needed"
    )
    parser.add_argument("-p", "--parents", action="store_true", help="as in h5copy; always done")
    parser.add_argument("-v", "--verbose", action="store_true", help="as in h5copy; what was copied is always printed")
    flags.add_json(parser)


@command(
    "h5copy",
    "Copy ops of a PyTorch .h5 dump into another .h5 file, to run them alone (torch.utils.dumper with "
    "use_load and load_with_acl_dump). What the other file holds stays. Options are those of HDF5's h5copy.",
    _options,
    example="h5copy -pv -i ./input.h5 -o ./output.h5 -s /Addmm/4/",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.destination is not None and list(map(_bare, args.destination)) != list(map(_bare, args.source)):
        raise UsageError("cli.h5copy_destination")
    source = _copy_source(session, args.input)
    target = args.output
    session.workspace.check_outside_dumps(posixpath.dirname(posixpath.abspath(target)))
    hits = {hit.op.name: hit for text in args.source for hit in _ops_to_copy(session, source, text)}
    replaced = copy_ops(source, target, [hit.op for hit in hits.values()])
    tell_notes(session, output)
    size = size_of(target)
    if args.json:
        document = {"input": source, "output": target, "ops": list(hits), "replaced": list(replaced), "size": size}
        output.write_json(json_text(document))
        return DONE
    output.out.print(*(plain(line) for line in _copied(hits, replaced)), sep="\n", soft_wrap=True)
    done = text("screen.cli.h5_copied_all", ops=len(hits), path=shown_path(target), size=size)
    output.print_line(done, "bold")
    return DONE


def _copied(hits: Mapping[str, H5Hit], replaced: tuple[str, ...]) -> Iterator[str]:
    for name, hit in hits.items():
        yield text("screen.cli.h5_copied", name=name, values=len(hit.op.values), replaced=name in replaced)


def _bare(name: str) -> str:
    return name.strip("/")


def _copy_source(session: Session, path: str | None) -> str:
    if path is not None:
        return path
    npu, _ = session.data.pytorch_files()
    if len(npu) != 1:
        raise UsageError("cli.h5copy_source", folder=session.workspace.pt_npu_dir, files=len(npu))
    return npu[0]


def _ops_to_copy(session: Session, source: str, text: str) -> tuple[H5Hit, ...]:
    """Return the op of a name `/op/seq`, or every run of an op type."""
    name = _bare(text)
    if not re.fullmatch(r"[^/]+(/\d+)?", name, re.ASCII):
        raise UsageError("cli.h5copy_op", name=text)
    hits = session.data.find_h5(f"{source}:/{name}", many=True)
    exact = tuple(hit for hit in hits if name in (hit.op.type, _bare(hit.op.name)))
    if not exact:
        raise DataNotFoundError("cli.h5copy_no_op", name=text, path=source, closest=[hit.op.name for hit in hits[:5]])
    return exact
