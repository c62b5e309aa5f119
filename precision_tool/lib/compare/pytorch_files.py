"""PyTorch `.h5` dumps: two of them compared. Prints nothing."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from precision_tool.lib.compare.folders import (
    DEFAULT_OPTIONS,
    CompareOptions,
    LeafResult,
    add_compared,
    select_pairs,
)
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources
from precision_tool.lib.data.kinds import pair_h5_files
from precision_tool.lib.data.pytorch_pairing import match_dumps
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.hdf5 import read_h5
from precision_tool.lib.model.pytorch import H5Dump
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.wording import counted


def compare_h5(
    npu: str,
    golden: str,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
) -> list[LeafResult]:
    """Compare two `.h5` dumps, or those below two folders that belong together; a result each.

    A file that cannot be read is a result without rows, unless it is the only one: then its error is raised.
    ComparisonStoppedError has what was done when the work ended early.
    """
    files, file_notes = pair_h5_files(npu, golden)
    results: list[LeafResult] = []
    for file in files:
        result = LeafResult(
            leaf=DumpLeaf(path=file.npu, files=(), model_name=_stem(file.npu) if len(files) > 1 else ""),
            golden_root=file.golden,
            golden_is_dump=False,
            rows=(),
        )
        try:
            left, right = read_h5(file.npu), read_h5(file.golden)
            pairs, notes = match_dumps(left, right)
            _check_any(left)
            result = replace(result, notes=(*_file_notes(left, right), *notes))
            pairs, result = select_pairs(pairs, result, options)
            result = replace(result, choice=replace(result.choice, h5=True))
        except PrecisionToolError as error:
            if len(files) == 1:
                raise
            results.append(replace(result, notes=(f"not compared: {error.message}",)))
            continue
        add_compared(results, pairs, result, options, resources)
    results[0] = replace(results[0], notes=(*file_notes, *results[0].notes))
    return results


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _check_any(dump: H5Dump) -> None:
    if not any(op.tensors for op in dump.ops):
        raise DataNotFoundError.of(dump.path, "compare.no_h5_tensor")


def _file_notes(npu: H5Dump, golden: H5Dump) -> list[str]:
    """Return remarks on two files."""
    notes = []
    if (npu.device, golden.device) in (("GPU", "NPU"), ("CPU", "NPU")):
        notes.append("-lt is a dump of a GPU or CPU and -rt one of an NPU: are they swapped?")
    for side, dump in (("NPU", npu), ("benchmark", golden)):
        if dump.ignored:
            name, why = dump.ignored[0]
            notes.append(f"{side}: {counted(len(dump.ignored), 'data set')} left out, the first {name}: {why}")
    return notes
