"""Stands in for h5py, copied to where it is found first as `h5py.py`: files are named after what they do to HDF5."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != _HERE]
del sys.modules["h5py"]
_real: Any = importlib.import_module("h5py")


def _computes(file: Any) -> None:
    while True:
        pass


def _waits(file: Any) -> None:
    signal.pause()


def _claims(file: Any) -> None:
    bytearray(3 << 30)


def _dies(file: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _aborts(file: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _prints(file: Any) -> None:
    os.write(1, b"nonsense")
    os.write(2, b"nonsense")


def _babbles(file: Any) -> None:
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"\x05\0\0\0{nono" * 9000)
        except OSError:
            continue


_HOARD: list[bytearray] = []


def _hoards(file: Any) -> None:
    _HOARD.append(bytearray(400 << 20))
    raise OSError("not that one")


_DEEDS = {
    "dies": _dies,
    "aborts": _aborts,
    "computes": _computes,
    "waits": _waits,
    "claims": _claims,
    "prints": _prints,
    "babbles": _babbles,
    "hoards": _hoards,
}


class _File(_real.File):  # type: ignore[misc]
    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        stem = Path(path).stem
        if stem in _DEEDS:
            _DEEDS[stem](self)

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str) and name.rpartition("/")[2] in _DEEDS:
            _DEEDS[name.rpartition("/")[2]](self)
        return super().__getitem__(name)


_real.File = _File
sys.modules["h5py"] = _real
