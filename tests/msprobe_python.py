"""The Python of an environment with torch (CPU) and mindstudio-probe: what it writes is what is read here."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from command_line import ToolServer, ToolServerError
from vendor import VARIABLE

_SECONDS = 300


#: What takes most of the time of a script under msprobe; not msprobe itself, before whose import some scripts change
#: torch.
_LOADED = ("torch", "torch._dynamo.convert_frame", "matplotlib.pyplot", "tensorboard.compat.tensorflow_stub", "pandas")


@cache
def _torch_server(python: str) -> ToolServer | None:
    """A process that has loaded torch, None where that does not work."""
    try:
        # Threads of torch's own would not survive a fork.
        return ToolServer(python, _LOADED, _environment() | {"OMP_NUM_THREADS": "1"})
    except ToolServerError:
        return None


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def run_torch(script: str | Path, folder: Path, *arguments: str, forked: bool = True) -> str:
    """Run a script, or its text, with torch and msprobe in a folder and return what it prints; skips without them.

    It is a process of its own, forked from one that has loaded torch, whose frames are at the bottom of its stacks;
    not so where it is not `forked`.
    """
    python = os.environ.get(VARIABLE)
    server = _torch_server(python) if python else None
    if not python or server is None:
        reason = f"{VARIABLE} names no Python that has torch and mindstudio-probe: real dumps of msprobe are NOT tested"
        pytest.skip(reason)
    if isinstance(script, str):
        path = folder / "script.py"  # msprobe records the source lines of files
        path.write_text(script)
    else:
        path = script
    if forked:
        run = server.run(arguments, folder, _environment(), script=str(path), seconds=_SECONDS)
        assert run.code == 0, run.out + run.err
        return run.out
    done = subprocess.run(
        [python, path, *arguments],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: Two steps of a small network under msprobe: OUT TASK LEVEL SUMMARY; tensors go to OUT, the names of APIs are printed.
NETWORK = """
import json, os, sys, torch
from torch import nn
import torch.nn.functional as F
out, task, level, summary = sys.argv[1:]
from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(seed=7, mode=True)
common = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
os.makedirs(out, exist_ok=True)
with open(os.path.join(out, "config.json"), "w") as file:
    json.dump({"task": task, "dump_path": out, "rank": [], "step": [0, 1], "level": level, "async_dump": False,
               "extra_info": True, "statistics": {**common, "tensor_list": []}, "tensor": common}, file)
debugger = PrecisionDebugger(config_path=os.path.join(out, "config.json"))

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.fc = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, ids):
        x = self.norm(self.embed(ids)).to(dtype=torch.bfloat16)[:, 1:3]
        mask = torch.ones(x.shape, dtype=torch.bool, device="cpu").tril()
        x = torch.where(mask, x, torch.zeros_like(x)).contiguous(memory_format=torch.contiguous_format)
        return self.fc(F.gelu(x.float(), approximate="tanh")).reshape(torch.Size([-1, 4]))

model = Network()
for _ in range(2):
    debugger.start(model=model)
    loss = F.cross_entropy(model(torch.arange(12).reshape(3, 4) % 9), torch.arange(6) % 4, label_smoothing=0.1)
    loss.backward()
    debugger.stop()
    debugger.step()
"""


def dump_with_msprobe(folder: Path, task: str = "tensor", level: str = "mix", summary: str = "statistics") -> Path:
    """The dump path of a small network's two steps, written by msprobe itself."""
    run_torch(NETWORK, folder, str(folder / "npu"), task, level, summary)
    return folder / "npu"
