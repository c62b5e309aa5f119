"""What tests of several folders share."""

from __future__ import annotations

import os

import pytest
from vendor import Vendor, find_vendor

# Importing `tf_config` seeds what is random. Not in this process: its other tests want their own luck.
os.environ["PRECISION_TOOL_SEED"] = "off"


@pytest.fixture(scope="session")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    """The vendor's msaccucmp, its library built once; skips the test where it was not installed."""
    return find_vendor(tmp_path_factory.mktemp("vendor"))
