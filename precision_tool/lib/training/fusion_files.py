"""Which fusion switch files the training helper points to: those of the data folder, else the installed ones.

This module runs on Python 3.7.
"""

import os

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import FUSION_OFF, FUSION_SWITCH, Workspace
from precision_tool.lib.messages.errors import DataNotFoundError

_CONFIG_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "config")

#: The installed files by name. Absolute, so they stay valid whatever the working folder.
INSTALLED = {name: os.path.join(_CONFIG_FOLDER, name) for name in (FUSION_OFF, FUSION_SWITCH)}
#: The environment variable of the setting FUSION_SWITCH_FILE: `fusion bisect` names the file of its tries in it,
#: whatever folder its command runs in.
FILE_VARIABLE = "PRECISION_TOOL_FUSION_SWITCH_FILE"


def switch_file(workspace: Workspace, name: str) -> str:
    """The absolute path of the file of this name that a training script with this data folder uses.

    For single passes that of the setting FUSION_SWITCH_FILE, as a running bisection sets it; that of the data folder
    where there is one; else the installed one. DataNotFoundError if the one of the setting is not there.
    """
    chosen = load_settings().fusion_switch_file if name == FUSION_SWITCH else ""
    if chosen:
        path = os.path.abspath(chosen)
        if not os.path.isfile(path):
            raise DataNotFoundError("training.no_switch_file", path=str(path))
        return path
    own = os.path.abspath(str(workspace.fusion_switch_file(name)))
    return own if os.path.isfile(own) else INSTALLED[name]


def file_in_use(is_off: bool) -> str:
    """The absolute path of the file that a script here uses: `fusion_off.cfg` or `fusion_switch.cfg`."""
    workspace = Workspace(os.path.abspath(str(load_settings().data)))
    return switch_file(workspace, FUSION_OFF if is_off else FUSION_SWITCH)
