"""Importing `tf_config` seeds what is random. Not in this process: its other tests want their own luck."""

import os

os.environ["PRECISION_TOOL_SEED"] = "off"
