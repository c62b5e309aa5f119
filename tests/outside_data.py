"""Data too large for the project, which lies beside it where there is any: tests of it are extras."""

from __future__ import annotations

from pathlib import Path

import pytest

_OUTSIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
#: A LeNet trained on a stand-in of the device, with what the vendor's tools printed of it; and one that overflows.
LENET, LENET_OVERFLOW = _OUTSIDE / "lenet", _OUTSIDE / "lenet_overflow"
#: Graphs of larger networks.
GRAPHS = _OUTSIDE / "graphs"

needs_outside_data = pytest.mark.skipif(
    not _OUTSIDE.is_dir(), reason=f"{_OUTSIDE} is not here: it does not come with the project"
)
