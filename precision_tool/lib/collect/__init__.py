"""What training scripts get from `precision_tool.tf_config` and `precision_tool.tf_session`, and the replay of a step.

Importing these modules imports no TensorFlow, no numpy and no npu_bridge: `packages.py` loads them when they are used.
All of this runs on Python 3.7.
"""

import os

_CONFIG_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "config")

#: Fusion switch file that turns every fusion pass off. Absolute, so it stays valid whatever the working folder.
FUSION_OFF_FILE = os.path.join(_CONFIG_FOLDER, "fusion_off.cfg")
#: Fusion switch file to edit: turns single fusion passes off.
FUSION_SWITCH_FILE = os.path.join(_CONFIG_FOLDER, "fusion_switch.cfg")
