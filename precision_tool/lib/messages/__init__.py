"""Every text that a person reads, in English and Chinese: `en.json`, `zh.json`, and what renders them.

What the tool finds is a `Message`: a kind and its fields. Only this package knows the words; `view` renders, and errors
do at the edge.
This package runs on Python 3.7.
"""

from precision_tool.lib.messages.catalogue import Message, Part, parts, render, text
from precision_tool.lib.messages.language import LANGUAGES, language, use_language

__all__ = ["LANGUAGES", "Message", "Part", "language", "parts", "render", "text", "use_language"]
