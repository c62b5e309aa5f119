r"""Texts with hostile strings, and whether protobuf's own C++ parser, which GE uses, reads the same names from them.

    PYTHONPATH=tests/campaigns .venv/bin/python -m fuzzing.protobuf_oracle --texts 150000 --seed 1

It needs `protoc` (Debian: protobuf-compiler): `protoc --encode` parses with the same TextFormat as GE. `\X41` is left
out, which protobuf 3.21 refuses and newer ones take, and so is an `id` beyond `int64`, whose type this reader of texts
does not know.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from precision_tool.lib.io.ge_graph import load_graph_bytes
from precision_tool.lib.io.ge_graph_partial import load_graph_lines
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.graph import Graph

# Strings are bytes here, as Python's protobuf would refuse those that are not UTF-8; the text format reads both alike.
_SCHEMA = """
syntax = "proto3";
message ModelDef { bytes name = 1; repeated GraphDef graph = 7; }
message GraphDef { bytes name = 1; repeated OpDef op = 6; }
message OpDef { bytes name = 1; bytes type = 2; repeated bytes input = 5; repeated Attr attr = 10; int64 id = 21; }
message Attr { bytes key = 1; AttrDef value = 2; }
message AttrDef { bytes s = 2; int64 i = 3; }
"""
_BATCH = 1000
#: Pieces of strings: what both take, and what is no escape sequence.
_SOUND: tuple[str | bytes, ...] = (
    "a", "/", ":0", " ", "#", "{", "}", "'", "é", "中", "😀", "٣", "²", "߃", b"\xff", b"\xc3", b"\xed\xa0\xbd",
    *(f"\\{escape}" for escape in "abfnrtv\\?'\""), "\\0", "\\7", "\\08", "\\101", "\\1012", "\\377", "\\400", "\\777",
    "\\12٣", "\\x4", "\\x41", "\\x414", "\\xfg", "\\x4٣", "\\u0041", "\\u00e9", "\\u00E94", "\\ud83d",
    "\\uDE00", "\\ud83d\\ude00", "\\ud83d\\ud83d\\ude00", "\\U0000d83d\\ude00", "\\ud83d\\U0000de00", "\\uffff",
    "\\U0001f600", "\\U0010ffff", "\\U00110000", "\\U001fFFff", "\\u0000",
)  # fmt: skip
_UNSOUND: tuple[str, ...] = (
    "\\٣", "\\²", "\\߃", "\\8", "\\9", "\\q", "\\é", "\\x", "\\xg", "\\x٣", "\\u004", "\\u004٣", "\\u", "\\U0041",
    "\\U00200000", "\\U00a00000", "\\U10000000", "\\Uffffffff", "\\U0000٣041", "\\ud83d\\u", "\\ ", "\\N{DIGIT ONE}",
)  # fmt: skip
_NUMBERS = ("0", "7", "010", "0x1F", "-3", "- 4", "9223372036854775807", "-0")
_ODD_NUMBERS = ("08", "٣", "1_0", "+1", "0b1", "0o7", "1.", "1e3", "18446744073709551616")

#: Of each graph its name, and of each op name, type and number.
Names: TypeAlias = list[tuple[str, list[tuple[str, str, int | None]]]]


def make_text(rng: Random) -> bytes:
    """A text graph; as a rule all of its strings are sound, and it is written as GE does."""
    odd, by_lines = rng.random() < 0.15, rng.random() < 0.7

    def string() -> bytes:
        pieces: list[str | bytes] = [rng.choice(_SOUND) for _ in range(rng.randrange(5))]
        if odd and rng.random() < 0.2:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(_UNSOUND))
        content = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        if not by_lines and rng.random() < 0.3:
            return b"'" + content.replace(b"'", b'"') + b"' \"\\" + rng.choice((b"1", b"n", b"u0663")) + b'"'
        return b'"' + content + b'"'

    gap = b"\n" if by_lines else rng.choice((b" ", b" # '\n", b"\t", b"\n"))
    text = b"graph {%b  name: %b%b" % (gap, string(), gap)
    for _ in range(rng.randrange(1, 4)):
        number = rng.choice(_ODD_NUMBERS if odd and rng.random() < 0.2 else _NUMBERS).encode()
        lines = (b"  op {", b"    name: " + string(), b"    type: " + string(), b"    id: " + number, b"  }")
        text += b"".join(line + gap for line in lines)
    return text + b"}\n"


def names_read(text: bytes) -> Names | None:
    """What this project reads from a text, by a full parse or by its lines; None for a text that it refuses."""
    try:
        names = _names(load_graph_bytes(text, "text").graphs)
    except FormatError:
        return None
    lines = load_graph_lines(text, "text", (0, 0, 0, 0, 0))
    assert lines is None or _names(lines.graphs) == names, text
    return names


def _names(graphs: Sequence[Graph]) -> Names:
    return [(graph.name, [(op.name, op.type, op.id) for op in graph.ops]) for graph in graphs]


class Protobuf:
    """protobuf's parser of texts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "model.proto").write_text(_SCHEMA)
        self._protoc("--descriptor_set_out=model.set", text=b"")
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString((folder / "model.set").read_bytes()).file:
            pool.Add(file)
        self._model: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelDef"))

    def _protoc(self, option: str, text: bytes) -> bytes | None:
        command = ["protoc", option, "model.proto"]
        run = subprocess.run(command, cwd=self._folder, input=text, capture_output=True, check=False)
        return run.stdout if run.returncode == 0 else None

    def names(self, text: bytes) -> Names | None:
        """What it reads from a text; None for a text that it refuses."""
        encoded = self._protoc("--encode=ModelDef", text)
        if encoded is None:
            return None
        return [
            (_printed(graph.name), [(_printed(op.name), _printed(op.type), op.id) for op in graph.op])
            for graph in self._model.FromString(encoded).graph
        ]

    def names_of(self, texts: Sequence[bytes]) -> Iterator[Names | None]:
        """The same for many texts of one graph each: one refused text has all others read in smaller batches."""
        names = self.names(b"".join(texts))
        if names is not None:
            yield from ([graph] for graph in names)
        elif len(texts) == 1:
            yield None
        else:
            middle = len(texts) // 2
            yield from self.names_of(texts[:middle])
            yield from self.names_of(texts[middle:])


def _printed(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


@dataclass
class Outcome:
    """How often both answer alike, and the texts for which they do not."""

    accepted: int = 0
    refused: int = 0
    differing: list[tuple[bytes, Names | None, Names | None]] = field(default_factory=list)


def compare(texts: int, seed: int) -> Outcome:
    """Read `texts` texts both ways."""
    outcome = Outcome()
    rng = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        protobuf = Protobuf(Path(folder))
        for start in range(0, texts, _BATCH):
            made = [make_text(rng) for _ in range(min(_BATCH, texts - start))]
            read = [(text, names_read(text)) for text in made]
            accepted = [text for text, names in read if names is not None]
            expected = protobuf.names_of(accepted)
            for text, names in read:
                other = protobuf.names(text) if names is None else next(expected)
                if names != other:
                    outcome.differing.append((text, names, other))
                elif names is None:
                    outcome.refused += 1
                else:
                    outcome.accepted += 1
    return outcome


def main() -> int:
    """Run the comparison; 1 where there are texts that the two read differently."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    outcome = compare(args.texts, args.seed)
    print(
        f"{args.texts} texts of seed {args.seed}: {outcome.accepted} accepted with the same names, "
        f"{outcome.refused} refused by both, {len(outcome.differing)} read differently"
    )
    for text, names, other in outcome.differing[:10]:
        print(f"{text!r}\n  here: {names}\n  protobuf: {other}")
    return 1 if outcome.differing else 0


if __name__ == "__main__":
    sys.exit(main())
