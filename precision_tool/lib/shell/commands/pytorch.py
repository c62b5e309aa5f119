"""PyTorch `.h5` dumps: what `ls`, `ni`, `pt` and `cp` do with them, and `h5copy`."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.formats.h5 import copy_ops
from precision_tool.lib.inspect.convert import Source, h5_source, in_own_folders
from precision_tool.lib.inspect.named_tensors import (
    BENCHMARK,
    NamedTensor,
    named_value,
    tensors_of_pair,
    view_of,
)
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.pytorch import OUTPUT, H5Value
from precision_tool.lib.pairing.pytorch_ops import H5Hit, H5Listing, H5Side, list_h5, parse_h5_name
from precision_tool.lib.present import pytorch as report
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.tensors import number_text
from precision_tool.lib.present.text import byte_size, counted, json_text, plain
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_json,
    completes,
    spaced,
    tell_notes,
)
from precision_tool.lib.shell.commands.named import Named, note_others
from precision_tool.lib.sources.h5_files import PYTORCH
from precision_tool.lib.storage.stores import size_of
from precision_tool.lib.workspace import lies_in, shown_path


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
    hits = session.find_h5(name, many=bool((asked := parse_h5_name(name)) and asked.file and not asked.inside))
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


# --- ls ---------------------------------------------------------------------------------------------------------------


def listings(session: Session, name: str | None, op_type: str | None, *, of_ops: bool = False) -> tuple[H5Listing, ...]:
    """The ops and data sets of the data folder's dumps that fit (see `list_h5`); () where it has none."""
    data = session.pytorch()
    return () if data is None else list_h5(data.sides, name, op_type, of_ops=of_ops)


def list_ops(session: Session, args: argparse.Namespace, name: str | None, limit: int, output: Output) -> int:
    """`ls`: the ops of the dumps, where there is no graph."""
    given = {"-f": args.fusion, "-k": args.kernel, "-g": args.graph}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"ls: {option} is for graphs, which PyTorch dumps have not", "use -n NAME and -t TYPE")
    cosines = session.cosines()
    found = listings(session, name, args.type, of_ops=True)
    threshold = session.settings.threshold
    if args.below is not None:
        threshold = args.below
        found = tuple(_below(listing, cosines, args.below) for listing in found)
    tell_notes(session, output)
    if args.json:
        document = {"dumps": report.listings_json(found, args.limit or 0, _of(found, cosines))}
        output.out.file.write(json_text(document) + "\n")
        return DONE
    parts = [[*report.op_listing(listing, limit, _cosines_of(listing, cosines), threshold)] for listing in found]
    output.show(*spaced(parts))
    return DONE


def _cosines_of(listing: H5Listing, cosines: Mapping[str, float]) -> Mapping[str, float]:
    """Results name the ops of the NPU."""
    return {} if listing.side.side == BENCHMARK else cosines


def _of(found: tuple[H5Listing, ...], cosines: Mapping[str, float]) -> Mapping[str, float]:
    return cosines if any(listing.side.side != BENCHMARK for listing in found) else {}


def _below(listing: H5Listing, cosines: Mapping[str, float], threshold: float) -> H5Listing:
    known = _cosines_of(listing, cosines)
    rows = tuple(row for row in listing.rows if row.op.name in known and not known[row.op.name] >= threshold)
    return H5Listing(side=listing.side, rows=rows)


# --- ni ---------------------------------------------------------------------------------------------------------------


def show_op(session: Session, args: argparse.Namespace, name: str, output: Output) -> int:
    """`ni` of an op of a PyTorch dump."""
    for option, value in (("-g", args.graph), ("-a ATTR", args.attribute or None), ("-s", args.depth)):
        if value is not None:
            raise UsageError(f"ni: {option} is for graphs, and {name} is an op of a PyTorch dump", "leave it out")
    hits = session.find_h5(name)
    threshold = session.settings.threshold
    reports = [_report(session, hit, output) for hit in hits]
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.op_json(reports, threshold) + "\n")
    else:
        output.show(*report.op_lines(reports, threshold))
    return DONE


def _report(session: Session, hit: H5Hit, output: Output) -> report.H5Report:
    from precision_tool.lib.inspect.op_tensors import compare_op  # what compares takes long to load

    pairs = hit.side.pairs_of(hit.op)
    with ProgressReport(output.err, "reading") as progress:
        rows = compare_op(Op(name=hit.op.name, type=hit.op.type), pairs, session.settings.workers, progress)
    parameters = tuple((value, _parameter(hit.side, hit, value)) for value in hit.op.values if not value.is_tensor)
    return report.H5Report(hit=hit, rows=tuple(rows), parameters=parameters)


def _parameter(side: H5Side, hit: H5Hit, value: H5Value) -> str:
    """The first values of a parameter."""
    view = view_of(named_value(side.dump.path, hit.op, value), bins=0, first=report.SHOWN_VALUES)
    if view.figures is None or value.tensor is None:
        return view.reason or value.reason
    texts = [number_text(number) for number in view.figures.first]
    if not value.tensor.shape:
        return texts[0]
    return f"[{', '.join(texts)}{', …' if len(texts) < value.tensor.size else ''}]"


# --- h5copy -----------------------------------------------------------------------------------------------------------


def _copy_parser(session: Session) -> Parser:
    parser = Parser(
        prog="h5copy",
        description="Copy ops of a PyTorch .h5 dump into another .h5 file, to run them alone (torch.utils.dumper with "
        "use_load and load_with_acl_dump). What the other file holds stays. Options are those of HDF5's h5copy.",
        epilog="example: h5copy -pv -i ./input.h5 -o ./output.h5 -s /Addmm/4/",
    )
    completes(
        parser.add_argument("-i", "--input", metavar="FILE", help="the dump (default: the one of pt/npu)"),
        Completion.FILE,
    )
    completes(
        parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to copy to"),
        Completion.FILE,
    )
    completes(
        parser.add_argument(
            "-s", "--source", metavar="/OP/SEQ", required=True, action="append",
            help="the op, as /Addmm/4; again for more ops. A name without number, as Addmm, is every run of that op",
        ),
        Completion.OP,
    )  # fmt: skip
    parser.add_argument(
        "-d", "--destination", metavar="/OP/SEQ", action="append", help="the same as -s, and not needed"
    )
    parser.add_argument("-p", "--parents", action="store_true", help="as h5copy has it; always done")
    parser.add_argument("-v", "--verbose", action="store_true", help="as h5copy has it; what was copied is always told")
    add_json(parser)
    return parser


def _run_copy(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.destination is not None and list(map(_bare, args.destination)) != list(map(_bare, args.source)):
        raise UsageError("h5copy: -d is not the same as -s", "the dumper finds ops by their own names: leave -d out")
    source = _copy_source(session, args.input)
    target = args.output
    session.workspace.check_outside_dumps(posixpath.dirname(posixpath.abspath(target)))
    hits = {hit.op.name: hit for text in args.source for hit in _ops_to_copy(session, source, text)}
    replaced = copy_ops(source, target, [hit.op for hit in hits.values()])
    tell_notes(session, output)
    size = size_of(target)
    if args.json:
        document = {"input": source, "output": target, "ops": list(hits), "replaced": list(replaced), "size": size}
        output.out.file.write(json_text(document) + "\n")
        return DONE
    output.out.print(*(plain(line) for line in _copied(hits, replaced)), sep="\n", soft_wrap=True)
    done = f"{counted(len(hits), 'op')} copied to {shown_path(target)}, {byte_size(size)}"
    output.out.print(plain(done, "bold"), soft_wrap=True)
    return DONE


def _copied(hits: Mapping[str, H5Hit], replaced: tuple[str, ...]) -> Iterator[str]:
    for name, hit in hits.items():
        again = " (replaced)" if name in replaced else ""
        yield f"{name}  {counted(len(hit.op.values), 'data set')}{again}"


def _bare(name: str) -> str:
    return name.strip("/")


def _copy_source(session: Session, path: str | None) -> str:
    if path is not None:
        return path
    npu, _ = session.pytorch_files()
    if len(npu) != 1:
        what = "no .h5 file" if not npu else f"{len(npu)} .h5 files"
        raise UsageError(f"h5copy: {session.workspace.pt_npu_dir} holds {what}", "name the dump with -i FILE")
    return npu[0]


def _ops_to_copy(session: Session, source: str, text: str) -> tuple[H5Hit, ...]:
    """The op of a name `/op/seq`, or every run of an op type."""
    name = _bare(text)
    if not re.fullmatch(r"[^/]+(/\d+)?", name, re.ASCII):
        raise UsageError(f"h5copy: {text!r} is no op", "name one as /Addmm/4, or all of a type as Addmm")
    hits = session.find_h5(f"{source}:/{name}", many=True)
    exact = tuple(hit for hit in hits if name in (hit.op.type, _bare(hit.op.name)))
    if not exact:
        raise DataNotFoundError(
            f"{text}: no such op in {source}", f"closest are {', '.join(hit.op.name for hit in hits[:5])}"
        )
    return exact


H5COPY = Command(_copy_parser, _run_copy)
