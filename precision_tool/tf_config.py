"""What training scripts import: `import precision_tool.tf_config as npu_tf_config`. Python 3.7 and newer."""

import os

_CONFIG_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "config")

#: Fusion switch file that turns every fusion pass off. Absolute, so it stays valid whatever the working folder.
FUSION_OFF_FILE = os.path.join(_CONFIG_FOLDER, "fusion_off.cfg")
#: Fusion switch file to edit: turns single fusion passes off.
FUSION_SWITCH_FILE = os.path.join(_CONFIG_FOLDER, "fusion_switch.cfg")
