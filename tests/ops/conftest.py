"""Fixtures of the tests of what operators compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tensorflow_oracle import TensorFlow


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[TensorFlow]:
    """TensorFlow 2.15, asked op by op."""
    with TensorFlow("2.15") as oracle:
        yield oracle


@pytest.fixture(scope="session")
def tensorflow_115() -> Iterator[TensorFlow]:
    """TensorFlow 1.15, asked op by op."""
    with TensorFlow("1.15") as oracle:
        yield oracle
