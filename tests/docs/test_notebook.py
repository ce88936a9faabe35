"""The notebook runs, and shows its plot."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
# In a process of its own: the clients of Jupyter warn, and warnings are errors here.
EXECUTE = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
for cell in notebook.cells:
    cell.pop("outputs", None)
    if cell.cell_type == "code":
        cell.outputs = []
nbclient.NotebookClient(notebook, timeout=600, startup_timeout=300).execute()
nbformat.write(notebook, sys.argv[2])
"""


def images(path):
    """Returns how many images the outputs of a notebook have."""
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    done = tmp_path / "done.ipynb"
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(done)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert images(done) == images(NOTEBOOK) == 1
    assert "Jorge, whitening: test loss" in done.read_text()
