"""The notebook of the guide: its committed outputs are what its cells show now."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
NOTEBOOK = REPO / "precision_tool" / "notebook.ipynb"

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook, executed in an empty folder, as a kernel does whose path has `precision-tool`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "precision-tool").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    folder = tmp_path / "work"
    folder.mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(folder))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def is_progress(output: Any) -> bool:
    """Whether an output is what a bar leaves behind on a slow machine."""
    return output.output_type == "display_data" and not output.data.get("text/plain")


@pytest.mark.slow
def test_the_outputs_of_the_notebook_are_up_to_date(executed: Any) -> None:
    if os.environ.get("PRECISION_TOOL_REWRITE_GOLDEN"):
        NOTEBOOK.write_text(nbformat.writes(executed) + "\n", encoding="utf-8")
    committed = nbformat.read(NOTEBOOK, as_version=4)
    now, then = (
        [cell.get("outputs", []) for cell in notebook.cells if cell.cell_type == "code"]
        for notebook in (executed, committed)
    )
    assert all(cells for cells in now[1:])
    for outputs, before in zip(now, then, strict=True):
        assert texts_of(outputs) == texts_of(before)


def texts_of(outputs: Sequence[Any]) -> list[str]:
    """The texts of a cell's outputs; what comes out of a stream may come in pieces."""
    return ["".join(map(text_of, group)) for _, group in groupby(outputs, lambda one: one.get("name", id(one)))]


def text_of(output: Any) -> str:
    """The text of an output, and of its table, without what is left of sums that cancel: each processor has its own."""
    data = output.get("data", {})
    shown = output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")
    assert output.get("name") != "stderr", shown
    shown = re.sub(r"<style.*?</style>", "", shown, flags=re.DOTALL)
    return re.sub(r" *-?\d(?:\.\d+)?e-(?:09|[1-9]\d)\b", " ~0", shown)


def test_the_notebook_has_no_paths_and_times_of_a_machine() -> None:
    outputs = [cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    text = json.dumps(outputs)
    assert not re.search(r'[ "]/(home|tmp|root|work|usr)/', text)
    assert not re.search(r"result_20\d{12}", text)
