"""`completion`: the script that lets a shell complete commands, options, files and names of the data folder.

The script holds commands and options, so that Tab starts no program for them; names are asked for by `--names`.
"""

from __future__ import annotations

import argparse
import re
from typing import get_args

from precision_tool.cli import OPTIONS
from precision_tool.lib.cli.arguments import NAME
from precision_tool.lib.cli.command import DONE, Output, Parser, command, load_command
from precision_tool.lib.cli.flags import Completion, completion_of
from precision_tool.lib.cli.offers import IN_FILES, PLAIN, Offers
from precision_tool.lib.cli.words import LISTED
from precision_tool.lib.logs import LEVELS
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.messages.help_texts import help_text
from precision_tool.lib.messages.language import LANGUAGES
from precision_tool.lib.session import Session

_SHELLS = ("bash", "zsh", "fish")

#: What asks for names, with the data folder of the line: `$1` is the kind, and `$2` in bash what is typed of the name.
_FUNCTIONS = {
    "bash": """\
_precision_tool_names() {
  local data=() i at
  for ((i = 1; i < COMP_CWORD - 1; i++)); do
    [ "${COMP_WORDS[i]}" = --data ] || continue
    at=$((i + 1))
    [ "${COMP_WORDS[at]}" = = ] && at=$((i + 2))  # --data=DIR is three words to bash
    data=(--data "${COMP_WORDS[at]//[\\'\\\"]/}")
  done
  "${COMP_WORDS[0]}" "${data[@]}" completion --names "$1" "--text=$2" 2>/dev/null
}
""",
    "zsh": """\
_precision_tool_names() {
  local -a typed data names
  typed=("${(@Q)${(@z)LBUFFER}}")
  local at=${typed[(I)--data]}
  (( at )) && data=(--data "${typed[at + 1]}")
  at=${typed[(I)--data=*]}
  (( at )) && data=(--data "${typed[at]#--data=}")
  names=("${(@f)$(precision-tool $data completion --names $1 "--text=$PREFIX" 2>/dev/null)}")
  if [[ -n $names ]]; then
    compadd -U -a names
    # Names that hold what is typed elsewhere are listed; what they have in common would replace it.
    (( $#names > 1 )) && [[ -n ${names:#${(b)PREFIX}*} ]] && compstate[insert]= compstate[list]='list force'
  fi
  (( $# < 2 )) || _files
}
""",
    "fish": """\
function _precision_tool_names
  set -l data
  set -l typed (commandline -opc)
  set -l at (contains -i -- --data $typed)
  and set data --data $typed[(math $at + 1)]
  for word in (string match -- '--data=*' $typed)
    set data --data (string replace -- --data= '' $word)
  end
  precision-tool $data completion --names $argv[1] "--text="(commandline -ct) 2>/dev/null
  if test (count $argv) -gt 1
    __fish_complete_path (commandline -ct)
  end
end
""",
}


#: Values of options before the command; those of others are folders.
_CHOICES = {"--lang": LANGUAGES, "--log-level": LEVELS}


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument("shell", nargs="?", choices=_SHELLS, help="the shell that the script is for")
    parser.add_argument("--names", choices=get_args(Completion), help=argparse.SUPPRESS)
    parser.add_argument("--text", default="", help=argparse.SUPPRESS)


@command(
    "completion",
    "Print the script that lets a shell complete commands, options, files, and names of ops with Tab. "
    "Save it where the shell looks for it; the guide says where.",
    _options,
    example="completion bash",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.names is not None:
        # A shell takes what it is offered as it is.
        names = [name for name in Offers().of(session, args.names, args.text) if PLAIN.fullmatch(name)]
        output.out.file.write("".join(f"{name}\n" for name in names))
        return DONE
    if args.shell is None:
        raise UsageError("cli.no_shell")
    output.out.file.write(_script(session, args.shell))
    return DONE


def _script(session: Session, shell: str) -> str:
    """Return the script for one shell."""
    import shtab

    preamble = _FUNCTIONS[shell]
    if shell == "bash":  # calls functions without arguments of ours
        preamble += "".join(f"{_function(kind)}() {{ {_call(kind)}; }}\n" for kind in get_args(Completion))
    script: str = shtab.complete(_parser(session), shell=shell, preamble=preamble)
    if shell == "fish":  # which calls -lt an old-style option
        script = re.sub(r"(?m)^(complete .*)$", lambda line: re.sub(r" -s (?=\w\w)", " -o ", line[0]), script)
    return script.rstrip("\n") + "\n"


def _parser(session: Session) -> argparse.ArgumentParser:
    """Return one parser of the whole command line, with what completes its arguments."""
    parser = argparse.ArgumentParser(prog=NAME)
    for call, what in OPTIONS.items():
        option, _, value = call.partition(" ")
        if option.startswith("-h"):
            continue  # argparse adds it
        if not value:
            parser.add_argument(option, action="store_true", help=help_text(what))
            continue
        action = parser.add_argument(option, help=help_text(what), choices=_CHOICES.get(option))
        if option not in _CHOICES:
            action.complete = _completed("folder")  # type: ignore[attr-defined]
    commands = parser.add_subparsers()
    for word in (word for words in LISTED.values() for word in words):
        made = commands.add_parser(
            word.name, help=help_text(word.help), description=help_text(word.help), add_help=False
        )
        for action in load_command(word.name).parser(session)._actions:
            kind = completion_of(action)
            if kind is None and action.nargs == argparse.REMAINDER:  # a command line
                kind = "file"
            if kind is not None:
                action.complete = _completed(kind)  # type: ignore[attr-defined]
            made._add_action(action)
    return parser


def _completed(kind: Completion) -> object:
    """Return what shtab takes for an argument of this kind."""
    import shtab

    if kind in ("file", "folder"):
        return shtab.FILE if kind == "file" else shtab.DIRECTORY
    call = f"_precision_tool_names {kind}" + (" files" if kind in IN_FILES else "")
    return {"bash": _function(kind), "zsh": f" {call}", "fish": f"({call})"}  # the blank: zsh adds no words of its own


def _function(kind: str) -> str:
    return f"_precision_tool_{'file_' if kind in IN_FILES else ''}{kind}"  # shtab knows functions of files by the name


def _call(kind: str) -> str:
    return f'_precision_tool_names {kind} "$1"' + ('; compgen -f -- "$1"' if kind in IN_FILES else "")
