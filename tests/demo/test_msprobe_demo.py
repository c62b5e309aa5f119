"""The demo of msprobe's dumps against msprobe itself: its program is run, and records the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import tool
from msprobe_python import run_torch

from precision_tool.lib.demo.msprobe_demo import SCRIPT, generate_msprobe
from precision_tool.lib.demo.msprobe_writer import torch_bytes
from precision_tool.lib.io.layouts import copy_box, plan
from precision_tool.lib.io.msprobe_dump import read_calls, read_construct, read_index, read_stacks
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.msprobe import RecordedCall
from precision_tool.lib.ops.torch_apis import torch_call

Array = npt.NDArray[Any]
LEAF = Path("step0", "rank0")
FILES = ("dump", "stack", "construct")
SIDES = {"npu": "bfloat16", "gpu": "float32"}
