"""Which step and rank a folder is of, as its name and those above it tell."""

from __future__ import annotations

import posixpath
import re
from pathlib import PurePath

_RANK_FOLDER = re.compile(r"(?:rank|device|dev|card|worker)[_-]?(\d{1,9})", re.ASCII | re.IGNORECASE)
_STEP_FOLDER = re.compile(r"(?:step|iter|iteration)[_-]?(\d{1,12})", re.ASCII | re.IGNORECASE)
#: Step and rank; None is of all.
StepAndRank = tuple[int | None, int | None]


def is_rank_folder(name: str) -> bool:
    """Whether a folder is called as that of a rank or device."""
    return _RANK_FOLDER.fullmatch(name) is not None


def placed(folder: str) -> StepAndRank:
    """Step and rank as folders called `step_3`, `rank5` or the like tell them; the innermost one counts."""
    step = rank = None
    for part in PurePath(folder).parts:
        if (match := _STEP_FOLDER.fullmatch(part)) is not None:
            step = int(match[1])
        elif (match := _RANK_FOLDER.fullmatch(part)) is not None:
            rank = int(match[1])
    return step, rank


def placed_below(root: str, folder: str) -> StepAndRank:
    """Step and rank that the folders between `root` and `folder` tell."""
    return placed(posixpath.join("/", posixpath.relpath(folder, root))) if folder != root else (None, None)
