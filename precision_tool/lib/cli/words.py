"""The one table of commands, light enough to show help without loading any analysis.

A word's command is registered in `COMMANDS` by its module, `cmd_WORD` beside this file, which is imported when the word
is run; only `data` and the words of the prompt are done by the command line and the prompt themselves. This module runs
on Python 3.7.
"""

import difflib
import importlib
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

#: Exit codes: findings are for `--fail`, errors the user's or ours.
DONE, FOUND, USER_ERROR, INTERNAL_ERROR, STOPPED = 0, 1, 2, 3, 130

_TRAINING = (3, 7)
#: The commands of the modules that are imported, by name: each a Command, or a PlainCommand.
COMMANDS: Dict[str, Any] = {}


#: Options before the command.
GLOBAL_OPTIONS = ("--data", "--work", "--lang", "--log-level")


def close_words(name: str, names: Sequence[str]) -> Tuple[str, ...]:
    """Return the words that were probably meant: the same one in small letters, else up to three that are alike."""
    word = name.lower()
    return (word,) if word in names else tuple(difflib.get_close_matches(word, names, n=3, cutoff=0.5))


class Word(NamedTuple):
    """A command: `aliases` are old names that keep working, `min_python` is the oldest Python that runs it.

    `plain` words need no analysis and so run in training environments: their command is a PlainCommand. A word that
    `makes_data` does not need a data folder that is there; one of `many_folders` takes several. `file` is the module of
    a command that shares it with another. A `hidden` word is an old one that works as ever, but is neither listed nor
    completed, because another word does the same.
    """

    name: str
    arguments: str
    help: str
    aliases: Tuple[str, ...] = ()
    min_python: Tuple[int, int] = (3, 11)
    plain: bool = False
    makes_data: bool = False
    many_folders: bool = False
    file: str = ""
    hidden: bool = False

    def load(self) -> Any:
        """Import the module of the command and return the command."""
        importlib.import_module("precision_tool.lib.cli." + (self.file or "cmd_" + self.name))
        return COMMANDS[self.name]


def _training(name: str, arguments: str, help_: str, **more: Any) -> Word:
    return Word(name, arguments, help_, min_python=_TRAINING, plain=True, **more)


#: The commands below the headings of the help, in its order.
FAMILIES: Dict[str, Tuple[Word, ...]] = {
    "Compare": (
        Word("ac", "[-c] [-l N]", "run all checks and report the faulty op", many_folders=True),
        Word("vc", "[-lt DIR] [-rt DIR] [-g GRAPH]", "compare two dump folders, op by op", ("vector_compare",)),
        Word(
            "vcs",
            "[-f FILE] [-c COS] [-l N]",
            "list the ops below a cosine similarity, in execution order",
            many_folders=True,
            file="cmd_vc",
        ),
        Word("report", "[RESULT] [-o FILE.html]", "export a result as one self-contained HTML report"),
    ),
    "Find causes": (
        Word("overflow", "[DIR] [-l N] [--mixlist]", "find the op that overflows first, and what to do about it"),
        Word(
            "random",
            "[-lt DIR] [-rt DIR]",
            "find ops that differ between two runs of one script, and overwritten memory",
        ),
        Word(
            "fusion",
            "[show|off|on|all-off|reset|blame|bisect] ...",
            "list fusion passes, switch them on and off, find the faulty one",
        ),
        Word(
            "bisect",
            "--check CMD [--write FILE]",
            "find the fewest switches of precision and fusion with which a command of yours succeeds",
        ),
        Word(
            "profile",
            "[RESULT] | learn DIR | merge FILE ... [-o FILE]",
            "how precise the device computes, by type of op; carried to later runs",
        ),
        Word(
            "preflight",
            "[DIR] [--type TYPE] [--write]",
            "tell from the benchmark what 16 bits will do, and what to keep in float32",
        ),
    ),
    "Look closer": (
        Word(
            "ls",
            "[dump] [-n NAME] [-t TYPE] ...",
            "list ops, or dump files, by name, type, pass and kernel",
            many_folders=True,
        ),
        Word(
            "ni",
            "NAME [-g GRAPH] [-a [ATTR]] [-s N]",
            "show one op: graph, neighbours, dumped tensors; -s draws it",
            many_folders=True,
        ),
        Word(
            "curves",
            "[NAME ...] [--tensorboard DIR]",
            "draw variables, gradients and the loss over steps and ranks; after ac --all",
            many_folders=True,
        ),
        Word(
            "whatif", "OP ... [DIR]", "mend an op and recompute what is behind it: how much of the deviation goes away"
        ),
        Word(
            "repro",
            "OP [DIR] [--minimize [--run CMD]]",
            "build a reproduction package of one op, with a script that shows its error; --minimize shrinks it",
        ),
        Word(
            "graphs",
            "[diff [LEFT RIGHT]] [--find WORD] [--use FILE]",
            "list the graph files, which one is in use and why; graphs diff compares two",
            ("graph",),
        ),
    ),
    "Tensors": (
        Word("pt", "FILE|NAME [-c]", "show one tensor: statistics, histogram, first values"),
        Word("cp", "LEFT RIGHT [-p N] [-s]", "compare two tensors element by element", ("compare",), file="cmd_pt"),
        Word("dc", "FILE|DIR|OP [-f FORMAT] [-o DIR]", "decode NPU dumps to .npy"),
    ),
    "PyTorch": (
        Word("h5copy", "-i FILE -o FILE -s /OP/SEQ", "copy ops of a PyTorch .h5 dump into another file"),
        _training("acl_json", "[FILE] [--dump-path DIR]", "write or check the acl.json that dumps single ops"),
    ),
    "Collect": (
        _training("tf_dump", "[CMD]", "extract benchmark tensors from a tfdbg dump on CPU or GPU", makes_data=True),
        _training(
            "npu_dump",
            "[--overflow] CMD",
            "run a training command with data dump, or overflow detection, on",
            makes_data=True,
        ),
        _training(
            "npu_overflow",
            "CMD",
            "run a training command with overflow detection on",
            makes_data=True,
            file="cmd_npu_dump",
            hidden=True,
        ),
        _training("train", "[-d DEVICE] [-a ACTION]", "replay a saved training step on CPU and NPU"),
    ),
    "Toolkit": (
        Word("toolkit", "", "show the installed CANN toolkit, its versions, and what is missing"),
        Word("graph2json", "GRAPH [OUT]", "convert a graph, text or .om, to the JSON that atc writes"),
    ),
    "Data": (
        Word(
            "data",
            "DIR [COMMAND ...]",
            "start the prompt, or run COMMAND, on another data folder: the same as --data DIR [COMMAND ...]",
            min_python=_TRAINING,
            hidden=True,
        ),
        Word(
            "infer", "DIR|FILE.om [COMMAND ...]", "start the prompt, or run COMMAND, on msquickcmp output; show an .om"
        ),
        Word("demo", "[DIR]", "generate demo data with one faulty op and find it", makes_data=True),
        Word(
            "run",
            "CMD",
            "run a command of the operating system: at the prompt the same as !CMD",
            makes_data=True,
            hidden=True,
        ),
        Word("completion", "bash|zsh|fish", "print the script with which a shell completes with Tab", makes_data=True),
        Word(
            "mcp",
            "[--allow-write] [--read DIR]",
            "start a server by which an assistant works with the data (MCP)",
            many_folders=True,
        ),
        _training("guide", "[--path]", "print the guide", makes_data=True),
        Word("schema", "[COMMAND]", "print the JSON Schema of --json", makes_data=True),
    ),
}
WORDS = tuple(word for words in FAMILIES.values() for word in words)
#: The commands that help and completion show, below the same headings.
LISTED = {family: tuple(word for word in words if not word.hidden) for family, words in FAMILIES.items()}
#: What only a prompt has; `help` the command line too.
PROMPT_WORDS = (
    Word("help", "[COMMAND]", "list the commands, or show one of them"),
    Word("set", "[NAME VALUE]", "show or change settings: data folder, threshold, limit, width, theme and so on"),
    Word("--data", "DIR [COMMAND ...]", "run COMMAND on another data folder; without COMMAND the same as set data"),
    Word("!", "CMD", "run a command of the operating system"),
    Word("history", "[-a]", "list earlier input; with -a also of earlier sessions, which Ctrl+R searches"),
    Word("run_script", "FILE", "run the commands of a file, one per line"),
    Word("refresh", "", "read dumps, graphs and results again"),
    Word("exit", "", "leave the prompt, like quit, Ctrl+D, and Ctrl+C at an empty prompt", ("quit",)),
)


def find_word(name: str, words: Sequence[Word] = WORDS) -> Optional[Word]:
    """Return the word of this name or old name."""
    return next((word for word in words if name == word.name or name in word.aliases), None)
