"""Faults that tests put into a tensor: each takes it and gives it changed, in the same shape and type."""

from __future__ import annotations

import numpy as np
from builders import Array


def negated(array: Array) -> Array:
    """The third of the innermost axis has the wrong sign."""
    changed = array.copy()
    changed[..., 2] *= -1
    return changed


def stored_transposed(array: Array) -> Array:
    """The values are right and lie as those of the transposed tensor."""
    return np.ascontiguousarray(array.T).reshape(array.shape)


def zero_tail(array: Array) -> Array:
    """The last twelve values were not written."""
    flat = array.copy().reshape(-1)
    flat[-12:] = 0
    return flat.reshape(array.shape)


def narrowed(array: Array) -> Array:
    """What bfloat16 leaves of float32 values."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def copied_tail(array: Array) -> Array:
    """The last sixteen values are those before them."""
    flat = array.copy().reshape(-1)
    flat[-16:] = flat[-32:-16]
    return flat.reshape(array.shape)


def last_digit(array: Array) -> Array:
    """Every third element is one unit in the last place away, as another order of additions gives."""
    flat = array.copy().reshape(-1)
    flat[::3] = np.nextafter(flat[::3], np.asarray(np.inf, flat.dtype))
    return flat.reshape(array.shape)
