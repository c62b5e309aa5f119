"""The fusion switch files that the training helper points to: where they are, reading and editing them.

Those of the data folder are edited, the installed ones only when asked. Where neither can be written the file is a copy
below the results, which the training script must name.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import FUSION_OFF, FUSION_SWITCH, Workspace, make_writable
from precision_tool.lib.io.files import is_file, real_path
from precision_tool.lib.io.fusion_passes import (
    ALWAYS_ON_REASON,
    SHIPPED_OFF,
    SHIPPED_SWITCH,
    Switches,
    is_switchable,
    read_switches,
    text_to_write,
)
from precision_tool.lib.io.urls import is_remote, url_of
from precision_tool.lib.io.writing import is_read_only, rewrite_text, why_no_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError
from precision_tool.lib.training.switches import INSTALLED

if TYPE_CHECKING:
    from precision_tool.lib.compare.data_folder import DataFolder

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
    note: Message | None = None

    def read(self) -> Switches:
        """Return its switches; the shipped ones if it does not exist yet."""
        try:
            return read_switches(self.path)
        except DataNotFoundError:
            if posixpath.lexists(self.path):
                raise
            return self.shipped

    def write(self, switches: Switches) -> str:
        """Write it, keep the previous version beside it, and return the path.

        OutputError if that does not work, FormatError for what GE would refuse.
        """
        rewrite_text(self.target, text_to_write(switches, self.target), last=self.target + LAST)
        return self.target


def find_switch_file(
    workspace: Workspace,
    named: str | None = None,
    *,
    off: bool = False,
    installed: bool = False,
    to_write: bool = False,
) -> SwitchFile:
    """Return the file for single passes, with `off` the one that turns everything off, or the `named` one.

    It is that of the data folder, which begins as the installed one; `installed`: that itself, which all users and
    data folders share. `to_write` tries whether it can be written, which permissions alone do not tell.
    """
    shipped = SHIPPED_OFF if off else SHIPPED_SWITCH
    if named is not None:
        return SwitchFile(path=named, target=named, shipped=SHIPPED_SWITCH)
    settings = load_settings()
    if settings.fusion_switch_file and not (off or installed):
        path = settings.fusion_switch_file
        return SwitchFile(
            path=path, target=path, shipped=shipped, helper_name="FUSION_SWITCH_FILE", action="fusion_switch"
        )
    name = FUSION_OFF if off else FUSION_SWITCH
    helper, action = ("FUSION_OFF_FILE", "fusion_off") if off else ("FUSION_SWITCH_FILE", "fusion_switch")
    own, shared = str(workspace.fusion_switch_file(name)), INSTALLED[name]
    target = shared if installed else own
    current = own if not installed and is_file(own) else shared
    reason = _why_not_writable(target, to_write)
    if not reason:
        if not installed and not _is_of_scripts(workspace):
            helper = action = ""
        return SwitchFile(path=current, target=target, shipped=shipped, helper_name=helper, action=action)
    folders = (folder for folder in workspace.on_disk().result_dirs() if not is_remote(folder))
    places = [folder / _FOLDER / name for folder in folders]
    existing = next((str(place) for place in places if is_file(place)), None)
    copy = existing or str(places[0])
    note = Message("note.cli.switch_file_copy", reason=reason, path=copy)
    return SwitchFile(path=existing or current, target=copy, shipped=shipped, note=note)


def _is_of_scripts(workspace: Workspace) -> bool:
    """Return whether the training helper of a script that is started here uses this data folder."""
    return real_path(workspace.root) == real_path(load_settings().data)


def _why_not_writable(path: str, to_write: bool) -> Message | None:
    """Return why a file cannot be written or replaced; None if it can."""
    if is_remote(path):
        return Message("error.io.local_only.text", url=url_of(path))
    if reason := why_no_file(path) or (Message("note.io.no_permission") if is_read_only(path) else None):
        return Message("note.data.not_writable", folder=path, reason=reason)
    if to_write:
        try:
            make_writable(Path(path).parent)
        except OutputError as error:
            return error.full_message
    return None


def script_lines(file: SwitchFile) -> list[str]:
    """Return the lines of a training script that use the file."""
    if file.helper_name:
        return helper_lines(file.action, f"fusion_switch_file=npu_tf_config.{file.helper_name}")
    return option_lines("fusion_switch_file", posixpath.abspath(file.target))


def why_in_effect(data: DataFolder, name: str) -> tuple[Message, list[str]]:
    """Return why a pass is in effect though it was to be off, and the lines of the training script that mend it.

    The switch file is the one that the training helper points to; a report of GE tells the section of the pass.
    """
    if not is_switchable(name):
        return Message("since.switch.always_on", reason=ALWAYS_ON_REASON), []
    file = find_switch_file(data.workspace)
    try:
        switches = file.read()
    except (DataNotFoundError, FormatError) as error:
        return Message("since.switch.unread", reason=error.full_message), []
    counts = (count for report in data.fusion_reports() for count in report.passes)
    section = next((count.section for count in counts if count.name == name), None)
    if switches.refused:
        return Message("since.switch.refused", path=file.path, reason=switches.refused[0]), []
    if not switches.is_on(name, section):
        return Message("since.switch.not_given", path=file.path), script_lines(file)
    places = [where for where, pass_name, on in switches.named() if pass_name == name and not on]
    if places:
        return Message("since.switch.other_section", path=file.path, place=places[0], section=section), []
    return Message("since.switch.on", path=file.path), []


def helper_lines(action: str, argument: str) -> list[str]:
    """Return the lines for an action of the helper; `argument` is that of an Estimator's config."""
    return [
        "import precision_tool.tf_config as npu_tf_config",
        f"config = npu_tf_config.session_dump_config(config, action='{action}')  # session",
        f"npu_config = NPURunConfig({argument})  # Estimator",
        f"npu_tf_config.npu_device_dump_config(npu_device, action='{action}')  # TensorFlow 2",
    ]


def option_lines(name: str, path: str) -> list[str]:
    """Return the lines for an option that names a file."""
    return [
        f"custom_op.parameter_map[{name!r}].s = tf.compat.as_bytes({path!r})  # session",
        f"npu_config = NPURunConfig({name}={path!r})  # Estimator",
        f"npu_device.global_options().{name} = {path!r}  # TensorFlow 2",
    ]
