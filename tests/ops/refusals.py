"""What an op says that cannot be recomputed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from precision_tool.lib.ops.base import NotComputedError
from precision_tool.lib.view.verdict_messages import reason_words


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Inside, an op is not computed, for a reason whose words have this in them."""
    with pytest.raises(NotComputedError) as caught:
        yield
    words = reason_words(caught.value.reason)
    assert re.search(match, words), words
    assert "None" not in words
