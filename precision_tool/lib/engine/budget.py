"""How much is worked on at once: sizes of blocks, of what is kept, and of what is shared out."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes; none of them changes a result by more than the order of a sum."""

    #: Items the arithmetic works on at once: few enough to stay in the cache, enough to outweigh the calls.
    block: int = 1 << 17
    #: Items of a box of a tensor in blocked layout, which is read with fewer and longer runs.
    box: int = 1 << 19
    #: Tensors up to this many items are kept decoded between the two rounds of passes.
    kept_items: int = 1 << 22
    #: Bytes of one part of a split tensor, and from how many bytes on a tensor is split.
    part_bytes: int = 128 << 20
    split_bytes: int = 256 << 20
    #: Below this many bytes starting processes takes longer than the comparison.
    serial_bytes: int = 64 << 20
    #: Bytes compared at once when two tensors may be equal.
    compare_bytes: int = 1 << 20
    #: Bytes of tensors, as they are stored, that a worker keeps for the next pairs, and of the largest of them.
    stored_bytes: int = 24 << 20
    stored_tensor: int = 8 << 20
    #: Files that a worker keeps open.
    open_files: int = 192

    def among_threads(self, threads: int) -> Budget:
        """That of one of several threads, which together may open as many files as this process: half of them."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return self
        return replace(self, open_files=max(2, min(self.open_files, limit // (2 * threads))))


#: What is used where no other is asked for.
DEFAULT = Budget()
