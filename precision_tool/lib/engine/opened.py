"""The bytes of tensors while many pairs are compared: files stay open, small tensors are read once."""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.blocks import HeldBytes
from precision_tool.lib.engine.budget import Budget
from precision_tool.lib.formats.tensor_bytes import TensorBytes, open_bytes
from precision_tool.lib.model.tensor import Access, Tensor
from precision_tool.lib.storage.store import StoredFile
from precision_tool.lib.storage.stores import open_file

Bytes = npt.NDArray[np.uint8]


def key_of(tensor: Tensor) -> tuple[str, str, int]:
    """What tells a tensor from all others."""
    return tensor.path, tensor.dataset, tensor.offset


class OpenTensors:
    """Opens tensors for one worker. Close it, or leave its block, when the pairs are done."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._memory: Bytes | None = None
        self._next = 0
        #: Where in the memory tensors lie, in the order of their places: (start, tensor).
        self._places: OrderedDict[tuple[str, str, int], tuple[int, Tensor]] = OrderedDict()

    def open(self, tensor: Tensor) -> TensorBytes:
        """The bytes of a tensor. Closing it leaves its file open for the next one."""
        if tensor.access is not Access.BYTES:
            return open_bytes(tensor)
        return _Opened(self, tensor)

    def file(self, path: str) -> StoredFile:
        """A file, opened if it is not. It stays open until many others were asked for."""
        known = self._files.get(path)
        if known is None:
            while len(self._files) >= self._budget.open_files:
                self._files.popitem(last=False)[1].close()
            known = self._files[path] = open_file(path)
        self._files.move_to_end(path)
        return known

    def keep(self, tensor: Tensor) -> None:
        """Reads a small tensor whole, so that the next ones who want it find it in memory, for a while."""
        if tensor.access is not Access.BYTES or not 0 < tensor.nbytes <= self._budget.stored_tensor:
            return
        if self.stored(tensor) is not None:
            return
        if self._memory is None:
            self._memory = np.empty(self._budget.stored_bytes, np.uint8)
        size = -(-tensor.nbytes // 8) * 8  # tensors are compared eight bytes at a time
        if size > self._memory.size:
            return
        self._places.pop(key_of(tensor), None)  # a part of it
        if self._next + size > self._memory.size:  # what lies behind is the oldest, and is given up
            self._forget(self._next, self._memory.size)
            self._next = 0
        start, stop = self._next, self._next + size
        self._forget(start, stop)
        file = self.file(tensor.path)
        file.expect(tensor.offset, tensor.nbytes)
        file.read_into(tensor.offset, self._memory[start : start + tensor.nbytes].data)
        self._places[key_of(tensor)] = (start, tensor)
        self._next = stop

    def _forget(self, start: int, stop: int) -> None:
        """Forgets the tensors in a part of the memory, which is filled in turn: they are the oldest ones."""
        while self._places:
            place, other = next(iter(self._places.values()))
            if not (place < stop and start < place + other.nbytes):
                return
            self._places.popitem(last=False)

    def stored(self, tensor: Tensor) -> Bytes | None:
        """The bytes of a tensor that is in memory; the next one that is kept may overwrite them."""
        known = self._places.get(key_of(tensor))
        if known is None or self._memory is None or known[1].nbytes < tensor.nbytes:
            return None
        return self._memory[known[0] : known[0] + tensor.nbytes]

    def close(self) -> None:
        """Closes all files and forgets what was kept."""
        while self._files:
            self._files.popitem()[1].close()
        self._places.clear()
        self._next = 0

    def __enter__(self) -> OpenTensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Opened(HeldBytes):
    """The bytes of one tensor: from memory where they are there, else from the file."""

    def __init__(self, tensors: OpenTensors, tensor: Tensor) -> None:
        self._tensors = tensors
        self._tensor = tensor
        if tensors.stored(tensor) is None:
            # What is wrong with the file is said now.
            tensors.file(tensor.path).expect(tensor.offset, tensor.nbytes)

    def held(self) -> Bytes | None:
        """All bytes of the tensor if they are in memory; the next tensor that is kept may overwrite them."""
        return self._tensors.stored(self._tensor)

    def read_at(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        stored = self._tensors.stored(self._tensor)
        start = offset - self._tensor.offset
        if stored is None or start < 0 or start + len(buffer) > stored.size:
            self._tensors.file(self._tensor.path).read_into(offset, buffer)
        else:
            np.frombuffer(buffer, np.uint8)[...] = stored[start : start + len(buffer)]

    def close(self) -> None:
        """The file stays open."""

    def __enter__(self) -> _Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
