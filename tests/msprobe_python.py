"""The Python of an environment with torch (CPU) and mindstudio-probe: what it writes is what is read here."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from vendor import VARIABLE

_SECONDS = 300


@cache
def _has_torch(python: str) -> bool:
    run = subprocess.run([python, "-c", "import torch, msprobe"], capture_output=True, timeout=_SECONDS, check=False)
    return run.returncode == 0


def run_torch(script: str, folder: Path, *arguments: str) -> str:
    """Run a script with torch and msprobe in a folder and return what it prints; skips the test without them."""
    python = os.environ.get(VARIABLE)
    if not python or not _has_torch(python):
        reason = f"{VARIABLE} names no Python that has torch and mindstudio-probe: real dumps of msprobe are NOT tested"
        pytest.skip(reason)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    path = folder / "script.py"  # msprobe records the source lines of files
    path.write_text(script)
    run = subprocess.run(
        [python, path, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


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
