"""`mcp`: a server by which an assistant works through a case, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command
from precision_tool.lib.cli.mcp_tools import Permission
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import check_data, open_workspace
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import check_folder
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "--allow-write", action="store_true",
        help="also offer what writes: the HTML report and reproduction packages; results are then kept where they "
        "usually are, otherwise in a temporary folder until the server ends",
    )  # fmt: skip
    flags.add(
        parser, "--read", metavar="DIR", action="append", default=[], completes="folder",
        help="a further folder that may be read, for example where links in the data folder lead; may be repeated",
    )  # fmt: skip


@command(
    "mcp",
    "Start a server of the Model Context Protocol on standard input and output, so that an assistant can list data, "
    "diagnose, look at ops and tensors, and read the next steps. It reads the folders of --data and nothing else, runs "
    "no commands, and writes only with --allow-write. Needs pip install 'precision-tool[mcp]'.",
    _options,
    example="mcp",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not output.command:
        raise UsageError("mcp.at_prompt")
    for folder in args.read:
        check_folder(folder)
    settings, folders = _absolute(session.settings)
    if args.allow_write:
        _check_places(settings, folders)
    try:
        from precision_tool.lib.cli.mcp_server import serve
    except ImportError as error:
        raise UsageError("mcp.no_package", reason=str(error)) from None
    if sys.stdin.isatty():
        output.err.print(text("screen.cli.mcp_waits"), soft_wrap=True)
    readable = tuple(map(posixpath.abspath, args.read))
    serve(settings, Permission(folders=folders, readable=readable, may_write=args.allow_write), output.command)
    return DONE


def _check_places(settings: Settings, folders: Sequence[str]) -> None:
    """Raise UsageError where the results of data folders have no place, or the same one, that outlasts the server."""
    if len(folders) > 1 and settings.work is not None:
        raise UsageError("mcp.one_work")
    for folder in folders:
        if not open_workspace(folder, settings.work).output_dir().is_absolute():  # that of the working folder
            raise UsageError("mcp.no_place", folder=folder)


def _absolute(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings with absolute paths, and the data folders, all of which are there."""
    folders = [settings.data, *settings.more_data]
    for folder in folders:
        check_data(folder)
    paths = [folder if urls.is_remote(folder) else folder.absolute() for folder in folders]
    work = settings.work
    if work is not None and not urls.is_remote(work):
        work = work.absolute()
    return replace(settings, data=paths[0], more_data=(), work=work), tuple(map(str, paths))
