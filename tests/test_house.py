"""Rules of the house that a machine can keep."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import precision_tool
from precision_tool import tf_config
from precision_tool.cli import DEPENDENCIES, main
from precision_tool.lib.cli.words import WORDS, find_word
from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.data.settings import CONFIG_FILE, SETTING_NAMES, read_settings_file
from precision_tool.lib.io.fusion_passes import ON_BY_NAME
from precision_tool.lib.session import Session

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))


#: What Python and npm leave in a folder.
NOT_OURS = {"__pycache__", "node_modules"}


def own_files() -> list[Path]:
    """Every text file of the project, whatever else lies in the folder."""
    files = [path for path in REPO.iterdir() if path.is_file() and path.name not in ("LICENSE", ".git")]
    for folder in ("precision_tool", "tests", "scripts", ".ci"):
        files += [path for path in (REPO / folder).rglob("*") if path.is_file() and not NOT_OURS & {*path.parts}]
    return files


def test_every_word_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-h"])
    text = " ".join(capsys.readouterr().out.split())
    for word in WORDS:
        assert word.help
        assert (f" {word.name} {word.help}" in text) != word.hidden


def test_words_and_old_names_are_told_apart() -> None:
    names = [name for word in WORDS for name in (word.name, *word.aliases)]
    assert len(names) == len(set(names))
    assert all(find_word(name) for name in names)


def test_every_public_name_is_there() -> None:
    for name in precision_tool.__all__:
        assert callable(getattr(precision_tool, name))
        assert name in dir(precision_tool)


def test_a_name_that_is_not_public() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compar'"):
        precision_tool.compar  # noqa: B018


def test_the_example_documents_every_setting() -> None:
    """It is the file that users edit, with every setting and a comment above each."""
    example = REPO / "config.example.py"
    assert example.read_bytes() == Path(CONFIG_FILE).read_bytes()  # a link, but in a source distribution
    assert {name.upper() for name in read_settings_file(example)} == set(SETTING_NAMES)
    blocks = example.read_text("utf-8").split('"""')[2].strip().split("\n\n")
    assert all(block.startswith("# ") for block in blocks)


def test_fusion_switch_files_are_what_ge_takes() -> None:
    for path in (tf_config.FUSION_OFF_FILE, tf_config.FUSION_SWITCH_FILE):
        assert Path(path).is_absolute()
        content = json.loads(Path(path).read_text("ascii"))
        assert set(content) == {"Switch"}
        assert set(content["Switch"]) == {"GraphFusion", "UBFusion"}
        for passes in content["Switch"].values():
            assert set(passes.values()) <= {"on", "off"}
    off = json.loads(Path(tf_config.FUSION_OFF_FILE).read_text("ascii"))
    # ALL, and by name what GE's own file switches on by name, which beats ALL.
    assert set(off["Switch"]) == {"GraphFusion", "UBFusion"}
    for section, passes in off["Switch"].items():
        assert set(passes.values()) == {"off"}
        assert set(passes) == {"ALL", *(name for name, place in ON_BY_NAME.items() if place == section)}


def test_dependencies_have_lower_bounds_and_are_named_once() -> None:
    requirements = [
        re.match(r"([\w-]+)>=[\d.]+(?:,<[\d.]+)?; python_version >= '3.11'$", text)
        for text in PROJECT["project"]["dependencies"]
    ]
    assert tuple(match and match[1] for match in requirements) == DEPENDENCIES


def test_tests_have_names_of_their_own_and_are_no_packages() -> None:
    campaigns = REPO / "tests/campaigns"  # has packages, which are run from their own processes
    names = [path.name for path in (REPO / "tests").rglob("*.py") if path.parent.parent != campaigns]
    assert len(names) == len(set(names))
    assert "__init__.py" not in names


def test_no_machine_is_named() -> None:
    """Neither registries nor folders of whoever wrote a file."""
    hosts = r"pypi\.org|pythonhosted|npmjs|deb\.debian|crates\.io|proxy\.golang|readthedocs\.io/simple"
    folders = r"(?<![\w.}\])])/(?:work|root|opt|mnt|Users)/"
    named = re.compile(f"{hosts}|{folders}")
    found = []
    for path in own_files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # no text
        found += [f"{path.relative_to(REPO)}: {line.strip()[:100]}" for line in text.splitlines() if named.search(line)]
    assert found == []


#: The modules, or rooms, below precision_tool/ that ask the operating system themselves, and why. All others know files
#: by the stores alone, so that data may lie on no disk of this machine.
ON_THE_SYSTEM = {
    "lib/io/": "the stores",
    "lib/messages/": "the catalogue of the package, and the locale",
    "lib/training/": "the training side has no stores",
    "cli.py": "starts in any Python",
    "lib/cli/arguments.py": "the user's shell, and how the tool was called",
    "lib/data/settings.py": "the environment",
    "lib/data/workspace.py": "the folders of the work",
    "lib/cli/app.py": "the environment of this process",
    "lib/demo/": "writes folders of its own",
    "lib/compare/scheduler.py": "processors and processes",
    "lib/view/drawing.py": "runs dot",
    "lib/cli/ascii_signs.py": "the locale",
    "lib/cli/cmd_acl_json.py": "writes on the training side",
    "lib/cli/cmd_guide.py": "where the package lies",
    "lib/cli/cmd_npu_dump.py": "the environment of a training",
    "lib/cli/cmd_tf_dump.py": "the training side has no stores",
    "lib/cli/cmd_train.py": "TensorFlow's log level",
    "lib/cli/mcp_server.py": "a folder of its own, and signals",
    "lib/cli/mcp_worker.py": "the environment of a process",
    "lib/cli/prompt.py": "looks for programs",
    "lib/cli/bisect_runner.py": "runs the user's training",
    "lib/cli/kernel_command.py": "runs the user's kernel",
    "lib/compare/toolkit.py": "runs the vendor's programs",
    "lib/view/notebook.py": "looks for programs",
}


def test_files_are_read_by_the_stores_alone() -> None:
    """No other module asks the operating system for a file; and who is named does."""
    users: set[str] = set()
    for path in (REPO / "precision_tool").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        if {name.split(".")[0] for name in names} & {"os", "shutil", "tempfile", "glob"}:
            users.add(path.relative_to(REPO / "precision_tool").as_posix())
    named = {user: [place for place in ON_THE_SYSTEM if user == place or user.startswith(place)] for user in users}
    assert [user for user, places in named.items() if not places] == []
    assert {place for places in named.values() for place in places} == set(ON_THE_SYSTEM)


def test_a_session_is_a_plain_object_with_few_names() -> None:
    """It holds settings, the data folder and caches: what grows belongs into the room that does the work."""
    assert (Session.__bases__, DataFolder.__subclasses__()) == ((object,), [])
    assert sum(not name.startswith("_") for name in vars(Session)) <= 25


def test_this_python_is_one_that_the_analysis_runs_on() -> None:
    assert sys.version_info >= max(word.min_python for word in WORDS)
