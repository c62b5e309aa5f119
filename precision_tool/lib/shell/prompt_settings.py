"""What `set` shows and changes at the prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precision_tool.lib.messages.language import choose_language

if TYPE_CHECKING:
    from precision_tool.lib.shell.prompt import Prompt

#: cmd2's own settings that are worth showing.
KEPT_SETTABLES = ("echo",)


class Knobs:
    """The settings that `set` shows and changes; a change is checked as in any other place."""

    def __init__(self, prompt: Prompt) -> None:
        object.__setattr__(self, "_prompt", prompt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompt.session.settings, name)

    def __setattr__(self, name: str, value: object) -> None:
        session = self._prompt.session
        session.settings = replace(session.settings, **{name: value})
        choose_language(session.settings.language)


KNOBS = {
    "threshold": "cosine similarity below which a tensor counts as wrong",
    "limit": "how many ops are listed",
    "atol": "absolute tolerance of cp",
    "rtol": "relative tolerance of cp",
    "print_count": "how many values of a tensor are shown",
    "workers": "threads or processes that share the work, 0 = one per core",
    "width": "columns of the output, 0 = as wide as the terminal",
    "language": "en, zh, or '' for that of the locale",
    "theme": "colours: dark, light or plain",
}


def on_or_off(text: str) -> bool:
    """A setting that is on or off."""
    known = {"on": True, "true": True, "off": False, "false": False}
    if text.lower() not in known:
        raise ValueError(f"must be on or off but is {text!r}")
    return known[text.lower()]
