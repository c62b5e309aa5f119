"""`import precision_tool.tf_config` in the parent of the clone, as the old tool's manual says. Python 3.7 and newer.

There `precision_tool` is the clone itself, which is no package; from now on it is the package in it.
"""

import importlib
import os
import sys

if __name__ == "precision_tool.tf_config":
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    for _name in ("precision_tool", __name__):
        del sys.modules[_name]
    importlib.import_module(__name__)
