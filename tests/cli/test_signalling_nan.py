"""NaNs whose quiet bit is not set are NaNs like others, and nobody is warned of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from command_line import tool

CODES = {
    "<f2": ("<u2", 0x7C01),
    "<f4": ("<u4", 0x7F800001),
    ">f4": (">u4", 0xFF800001),
    "<f8": ("<u8", (0x7FF << 52) + 1),
}


@pytest.mark.parametrize("dtype", CODES)
def test_nobody_is_warned(tmp_path: Path, dtype: str) -> None:
    word, code = CODES[dtype]
    raw = np.full(5, code, word).tobytes() + np.arange(1, 4).astype(dtype).tobytes()
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (8,), }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + raw)
    np.save(tmp_path / "b.npy", np.arange(8.0))
    for words in (["pt", "a.npy"], ["pt", "a.npy", "-c"], ["cp", "a.npy", "b.npy"], ["cp", "a.npy", "a.npy"]):
        assert "Warning" not in tool(*words, cwd=tmp_path, env={"PYTHONWARNINGS": "always"}).err
    (found,) = json.loads(tool("pt", "a.npy", "--json", cwd=tmp_path).out)["tensors"]
    assert (found["figures"]["nan_count"], found["figures"]["mean"]) == (5, 2.0)
