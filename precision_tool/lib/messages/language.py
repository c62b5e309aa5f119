"""The language of the texts: what the user chose, else that of the locale. This module runs on Python 3.7."""

import contextlib
import os
from typing import Iterator, Mapping

LANGUAGES = ("en", "zh")

_chosen = [""]


def language() -> str:
    """Return the language in use: "en" or "zh"."""
    return _chosen[0] or language_of_locale(os.environ)


def chosen_language() -> str:
    """Return the language that the user asked for; "" where it is that of the locale."""
    return _chosen[0]


def choose_language(name: str) -> None:
    """Use a language from now on; "" for that of the locale."""
    _chosen[0] = name


@contextlib.contextmanager
def use_language(name: str) -> Iterator[None]:
    """Use a language within a block."""
    previous = _chosen[0]
    _chosen[0] = name
    try:
        yield
    finally:
        _chosen[0] = previous


def language_of_locale(environment: Mapping[str, str]) -> str:
    """Return the language that a locale asks for, in POSIX order: LC_ALL, LC_MESSAGES, LANG; English by default."""
    locale = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    return "zh" if locale.lower().replace("-", "_").partition(".")[0].partition("_")[0] == "zh" else "en"
