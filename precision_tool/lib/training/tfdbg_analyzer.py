"""The old route: TensorFlow's own offline analyzer, driven through a terminal. Slow, but it decodes all that TF does.

    python -m tensorflow.python.debug.cli.offline_analyzer --ui_type readline --dump_dir RUN
    tfdbg> lt > FILE                  the tensors, their names last on each line
    tfdbg> pt NAME -n K -w OUT.npy    the K-th dump of a tensor
    tfdbg> exit

This module runs on Python 3.7.
"""

import filecmp
import io
import os
import re
import shutil
import sys
from collections import Counter
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type

from precision_tool.lib.io.files import open_binary, open_to_write, read_text
from precision_tool.lib.io.tfdbg_files import DumpedTensor, RunFiles, npy_header, read_event, unwritable
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.training.benchmark_folder import NpySet, Replaced
from precision_tool.lib.training.tfdbg_copy import Extracted, Progress, Row, alike, check_any, name_files

MODULE = "tensorflow.python.debug.cli.offline_analyzer"
PROMPT = "tfdbg> "

#: What its answers are written to, in the folder it runs in.
_LIST_FILE, _TENSOR_FILE = "tensors.txt", "tensor.npy"
#: Lines above the tensors: their number, an empty line, the titles of the columns.
_HEAD_LINES = 3
#: Names that its command line takes as they are: no space, no `[` (a slice), no `>` (a file).
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-/\\]+\Z")
#: Wide enough that no line is broken.
_COLUMNS = 4096


def extract_with_analyzer(
    runs: Sequence[RunFiles],
    dumps: Sequence[DumpedTensor],
    folder: str,
    log_folder: str,
    time_limit: float,
    progress: Optional[Progress] = None,
) -> Extracted:
    """Writes `dumps`, tensors of `runs`, into `folder` in place of all tensors that it holds, as `extract` does.

    A command may take `time_limit` seconds. What the analyzer prints is kept in `log_folder`.
    """
    named, skipped = name_files(dumps)
    chosen = set(named)
    damaged: List[Row] = []
    written: List[str] = []
    total, done = sum(dump.size for dump in named), 0
    with NpySet(folder) as new_set:
        new_folder = new_set.start(total)
        for run in runs:
            chosen_dumps = [dump for dump in run.tensors if dump in chosen]
            if not chosen_dumps:
                continue
            with _Analyzer(run, new_folder, log_folder, time_limit) as analyzer:
                for dump in chosen_dumps:
                    reason = _without_numbers(dump)
                    if reason:
                        skipped.append((dump.tensor, reason))
                    else:
                        reason = analyzer.save(dump, os.path.join(new_folder, dump.npy_name))
                        if reason:
                            damaged.append((dump.tensor, reason))
                        else:
                            written.append(dump.npy_name)
                    done += dump.size
                    if progress is not None:
                        progress(done, total)
        check_any(len(written), skipped, damaged)
        nbytes = sum(os.path.getsize(os.path.join(new_folder, name)) for name in written)
        has_names = sorted(written) == new_set.names()
        same = has_names and not any(filecmp.cmpfiles(new_folder, new_set.folder, written, False)[1:])
        replaced = Replaced(others=new_set.others()) if same else new_set.commit()
    notes = (*new_set.notes, *alike(dump for dump in named if dump.npy_name in set(written)))
    return Extracted(folder, len(written), nbytes, replaced, same, tuple(skipped), tuple(damaged), notes)


def _without_numbers(dump: DumpedTensor) -> Optional[Message]:
    """Why a tensor has no numbers, by its head; None also where only TensorFlow may be able to tell."""
    try:
        event = read_event(dump.path)
    except FormatError:
        return None
    return None if event.is_unknown else event.skip


class _Analyzer:
    """The analyzer of one run folder, working in `folder`."""

    def __init__(self, run: RunFiles, folder: str, log_folder: str, time_limit: float) -> None:
        self._run = run.run
        self._folder = folder
        self._limit = time_limit
        self._log_path = os.path.join(log_folder, f"offline_analyzer_{self._run.name}.log")
        self._child: Any = None
        self._log: Any = None
        by_tensor: Dict[str, List[DumpedTensor]] = {}
        for dump in run.tensors:
            by_tensor.setdefault(dump.tensor, []).append(dump)
        #: Which dump of its tensor each is: the analyzer sorts them by time too.
        self._numbers = {dump: number for dumps in by_tensor.values() for number, dump in enumerate(dumps)}
        self._in_folder = {tensor: len(dumps) for tensor, dumps in by_tensor.items()}
        self._listed: Dict[str, int] = {}

    def __enter__(self) -> "_Analyzer":
        try:
            import pexpect
        except ImportError:
            raise DataNotFoundError("training.analyzer.no_pexpect") from None
        self._log = io.TextIOWrapper(open_to_write(self._log_path), "utf-8", "backslashreplace")
        environment = dict(os.environ)
        # No colours, no GPU that training may need, no warnings that end it.
        environment.update(TERM="dumb", CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2", PYTHONWARNINGS="ignore")
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", MODULE, "--ui_type", "readline", "--dump_dir", self._run.path],
            cwd=self._folder,
            env=environment,
            encoding="utf-8",
            codec_errors="backslashreplace",
            timeout=self._limit,
            dimensions=(24, _COLUMNS),
        )
        self._child.logfile_read = self._log
        try:
            self._wait("its start")
            self._ask("lt > " + _LIST_FILE)
            self._listed = self._read_list()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            import pexpect

            self._child.sendline("exit")
            self._child.expect_exact([pexpect.EOF, pexpect.TIMEOUT])  # a busy machine takes its time
        self._close()

    def save(self, dump: DumpedTensor, path: str) -> Optional[Message]:
        """Has one dump written to `path`; why not, None if it was."""
        if _PLAIN_NAME.match(dump.tensor.replace(":", "")) is None:
            return Message("note.training.analyzer.name")
        listed, in_folder = self._listed.get(dump.tensor, 0), self._in_folder[dump.tensor]
        if listed != in_folder:
            return Message("note.training.analyzer.count", listed=listed, count=in_folder)
        answer = self._ask(f"pt {dump.tensor} -n {self._numbers[dump]} -w {_TENSOR_FILE}")
        saved = os.path.join(self._folder, _TENSOR_FILE)
        if not os.path.exists(saved):
            lines = [line.strip() for line in answer.splitlines()[1:] if line.strip()]
            return Message("note.training.analyzer.not_written", line=lines[-1] if lines else None)
        try:
            return _take(saved, path)
        except OSError as error:
            raise unwritable(path, error) from error

    def _ask(self, command: str) -> str:
        self._child.sendline(command)
        return self._wait(command)

    def _wait(self, what: str) -> str:
        """The output up to the prompt."""
        import pexpect

        matched = self._child.expect_exact([PROMPT, pexpect.EOF, pexpect.TIMEOUT])
        output = str(self._child.before or "")
        if matched == 0:
            return output
        self._log.flush()
        if matched == 2:
            raise PrecisionToolError("training.analyzer.no_prompt", limit=self._limit, command=what, log=self._log_path)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if "No module named" in last and "tensorflow" in last:
            raise DataNotFoundError("training.analyzer.no_tensorflow", python=sys.executable, last=last)
        raise PrecisionToolError(
            "training.analyzer.ended", command=what, last=last or Message("note.io.printed_nothing"), log=self._log_path
        )

    def _read_list(self) -> Dict[str, int]:
        """How many dumps of each tensor it knows."""
        path = os.path.join(self._folder, _LIST_FILE)
        try:
            lines = read_text(path, errors="backslashreplace").splitlines()[_HEAD_LINES:]
            os.unlink(path)
        except OSError as error:
            raise PrecisionToolError("training.analyzer.no_list", reason=error.strerror, log=self._log_path) from error
        return Counter(line.split()[-1] for line in lines if line.startswith("["))

    def _close(self) -> None:
        self._child.close(force=True)
        self._log.close()


def _take(saved: str, path: str) -> Optional[Message]:
    """Moves what numpy wrote to its place; why that is of no use, None if it is.

    Texts are pickled Python objects, which nobody reads. Quantized integers are records of one integer each.
    """
    import numpy as np

    with open_binary(saved) as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            os.unlink(saved)
            return Message("note.training.analyzer.objects")
        if dtype.names is not None and len(dtype.names) == 1:
            with open_to_write(path) as target:
                target.write(npy_header(dtype[0].str, tuple(map(int, shape))))
                shutil.copyfileobj(file, target)
            os.unlink(saved)
            return None
    os.rename(saved, path)
    return None
