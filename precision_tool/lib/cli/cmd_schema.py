"""`schema`: the JSON Schema of what commands print with --json."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from precision_tool.lib.cli.arguments import Parser
from precision_tool.lib.cli.command import Output, command
from precision_tool.lib.cli.words import DONE, find_word
from precision_tool.lib.view.json_schema import json_schema

if TYPE_CHECKING:
    from precision_tool.lib.session import Session


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument("word", nargs="?", default="", metavar="COMMAND", help="only that of this command")


@command(
    "schema",
    "Print the JSON Schema (2020-12) of what commands print with --json. `version` goes up when a key changes its "
    "meaning or is removed; new keys may be added.",
    _options,
    example="schema ac",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    word = find_word(args.word)
    output.write_json(json.dumps(json_schema(args.word if word is None else word.name), indent=1))
    return DONE
