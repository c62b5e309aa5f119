"""The help of commands: English stands in the code, Chinese in `help.zh.json`. This module runs on Python 3.7."""

import json
import os
from functools import lru_cache
from typing import Any, Dict

from precision_tool.lib.messages.language import language

_CHINESE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "help.zh.json")


@lru_cache(maxsize=None)
def chinese_help() -> Dict[str, str]:
    """Return the Chinese of every text of the help, and of argparse, by its English."""
    with open(_CHINESE, encoding="utf-8") as file:
        texts: Dict[str, str] = json.load(file)
    return texts


def help_text(english: str, **fields: Any) -> str:
    """Return a text of the help in the language in use.

    Parameters
    ----------
    english : str
        The text, which is also the key of its Chinese; a text without one stays English.
    **fields : object
        What `{name}` in the text stands for: settings in force, which no key can name.
    """
    shown = chinese_help().get(english, english) if language() == "zh" else english
    return shown.format(**fields) if fields else shown
