"""`ac -h` fits a screen; the rest of its options is one word away."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from precision_tool.lib.cli.command import load_command
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.session import Session

EVERYDAY = {
    "-c",
    "-lt",
    "-rt",
    "-g",
    "-f",
    "--since",
    "--threshold",
    "-l",
    "--json",
    "--fail",
    "-v",
    "--report",
    "--all",
}
RARE = {"--workers", "--cluster", "--worker-for", "--engine", "--noise-floor", "--profile", "--custom"}
STUDY = {"--step", "--rank", "--world-size", "--judge", "--table", "--csv", "--watch", "--budget", "--fresh"}


def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    parser = load_command("ac").parser(Session(Settings()))
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        (["-h"], EVERYDAY, RARE | STUDY),
        (["--all", "-h"], STUDY | {"--all"}, RARE | {"-lt"}),
        (["-h", "--all"], STUDY | {"--all"}, RARE | {"-lt"}),
        (["-v", "-h"], EVERYDAY | RARE | STUDY, set()),
    ],
)
def test_what_each_help_shows(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    shown: set[str],
    hidden: set[str],
) -> None:
    text = help_of(monkeypatch, capsys, arguments)
    listed = {
        option
        for line in re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
        for option in re.findall(r"-[\w-]+", line)
    }
    assert listed >= shown
    assert not listed & hidden


def test_the_help_of_ac_fits_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(monkeypatch, capsys, ["-h"])
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    for line in ("ac -v -h", "ac --all -h"):
        assert line in text.splitlines()[-1]
    assert not re.search(r"\([^)]*$", text, re.MULTILINE), "cut within parentheses"
