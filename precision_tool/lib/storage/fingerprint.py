"""What tells the files of a folder from what lay there before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from precision_tool.lib.storage.stores import store_of

#: Of files that a server has to be asked of one by one so many are, of a folder, spread evenly.
_LOOKED_AT = 256


def looked_at(folder: str, file_names: Sequence[str]) -> tuple[int, str]:
    """How many bytes the files have, and what changes when they do: names of all, and their contents as far
    as the store tells (sizes, times, tags).

    Where each would be a request of its own (HTTP), only some are asked for: what is put in the place of a file under
    the same name may then go unnoticed, and the bytes are an estimate.
    """
    digest = hashlib.sha256("\0".join(file_names).encode("utf-8", "surrogateescape"))
    store = store_of(folder)
    chosen = file_names if store.lists_sizes else file_names[:: -(-len(file_names) // _LOOKED_AT) or 1]
    known = list(store.contents_of(folder, chosen))
    digest.update(repr(known).encode())
    return sum(contents[0] for contents in known) * len(file_names) // max(len(chosen), 1), digest.hexdigest()
