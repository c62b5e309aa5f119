"""The fusion switch files that the training helper points to: where they are, reading and editing them.

Of an installation that cannot be written the file is a copy below the results, which the training script must name.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precision_tool.lib.collect import FUSION_OFF_FILE, FUSION_SWITCH_FILE
from precision_tool.lib.errors import DataNotFoundError, OutputError
from precision_tool.lib.formats.fusion_switch import (
    SHIPPED_OFF,
    SHIPPED_SWITCH,
    Switches,
    parse_switches,
    read_switches,
    render,
)
from precision_tool.lib.storage.files import temporary_file
from precision_tool.lib.workspace import Workspace, make_writable

#: What the last version of a file is kept as, beside it.
LAST = ".last"
_FOLDER = "fusion"


@dataclass(frozen=True, kw_only=True)
class SwitchFile:
    """A switch file. `path` is where it is read, `target` where it is written; `note` says why these differ from what
    the training helper points to.
    """

    path: str
    target: str
    shipped: Switches
    #: What the training helper calls it; empty for a file it does not know.
    helper_name: str = ""
    action: str = ""
    note: str = ""

    def read(self) -> Switches:
        """What it says; of a file that is not there yet what is shipped."""
        try:
            return read_switches(self.path)
        except DataNotFoundError:
            if os.path.lexists(self.path):
                raise
            return self.shipped

    def write(self, switches: Switches) -> str:
        """Writes it, and keeps the version before beside it; returns the path. OutputError if that does not work."""
        text = render(switches)
        parse_switches(text, self.target)  # what GE would refuse is never written
        write_text(self.target, text, keep_last=True)
        return self.target


def find_switch_file(
    workspace: Workspace, named: str | None = None, *, off: bool = False, to_write: bool = False
) -> SwitchFile:
    """The file for single passes, with `off` the one that turns everything off, or one that was `named`.

    `to_write` tries whether it can be written, which permissions alone do not tell.
    """
    shipped = SHIPPED_OFF if off else SHIPPED_SWITCH
    if named is not None:
        return SwitchFile(path=named, target=named, shipped=SHIPPED_SWITCH)
    helper = FUSION_OFF_FILE if off else FUSION_SWITCH_FILE
    name, action = ("FUSION_OFF_FILE", "fusion_off") if off else ("FUSION_SWITCH_FILE", "fusion_switch")
    reason = _why_not_writable(helper, to_write)
    if not reason:
        return SwitchFile(path=helper, target=helper, shipped=shipped, helper_name=name, action=action)
    places = [folder / _FOLDER / os.path.basename(helper) for folder in workspace.result_dirs()]
    existing = next((str(place) for place in places if place.is_file()), None)
    target = existing or str(places[0])
    note = f"{reason}, so that a copy is used, which the training script must name: {target}"
    return SwitchFile(path=existing or helper, target=target, shipped=shipped, note=note)


def _why_not_writable(path: str, to_write: bool) -> str:
    """Empty for a file that can be replaced."""
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not os.access(path, os.W_OK)):
        return f"{path} cannot be written (no permission)"
    if to_write:
        try:
            make_writable(Path(folder))
        except OutputError as error:
            return error.message
    return ""


def write_text(path: str, text: str, *, keep_last: bool = False) -> None:
    """Writes a small file at once, with the permissions it had; OutputError if it cannot be written."""
    real = os.path.realpath(path)  # a link stays one
    folder = os.path.dirname(real)
    temporary = ""
    try:
        os.makedirs(folder, exist_ok=True)
        mode = 0o644
        if os.path.exists(real):
            if not os.path.isfile(real):  # a device would be replaced by the file, and copied without end
                raise OSError(errno.EINVAL, "there is something that is no file")
            mode = os.stat(real).st_mode & 0o777
            if keep_last:
                shutil.copyfile(real, path + LAST)
        handle, temporary = temporary_file(folder)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, real)
    except OSError as error:
        with suppress(OSError):
            if temporary:
                os.unlink(temporary)
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error})", "name another file with --file"
        ) from error


def script_lines(file: SwitchFile) -> list[str]:
    """What a training script has to say to use the file."""
    if file.helper_name:
        return helper_lines(file.action, f"fusion_switch_file=npu_tf_config.{file.helper_name}")
    return option_lines("fusion_switch_file", os.path.abspath(file.target))


def helper_lines(action: str, argument: str) -> list[str]:
    """A training script's lines for an action of the helper; `argument` is what an Estimator's config takes for it."""
    return [
        "import precision_tool.tf_config as npu_tf_config",
        f"config = npu_tf_config.session_dump_config(config, action='{action}')  # session",
        f"npu_config = NPURunConfig({argument})  # Estimator",
        f"npu_tf_config.npu_device_dump_config(npu_device, action='{action}')  # TensorFlow 2",
    ]


def option_lines(name: str, path: str) -> list[str]:
    """A training script's lines for an option that names a file."""
    return [
        f"custom_op.parameter_map[{name!r}].s = tf.compat.as_bytes({path!r})  # session",
        f"npu_config = NPURunConfig({name}={path!r})  # Estimator",
        f"npu_device.global_options().{name} = {path!r}  # TensorFlow 2",
    ]
