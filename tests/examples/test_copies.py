"""An example's folder and `examples/shared` are all that a copy of it needs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import jorge_optax

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/main.py"))
OWN = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # packages in here


def forbidden(source, folder):
    """Returns the modules from this repository that a copy would not have."""
    allowed = (f"examples.{folder}.", "examples.shared.", "jorge_optax.")
    assert "import_module" not in source  # hides an import from this test
    return {
        name
        for name in re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE)
        if name.partition(".")[0] in {"", *OWN} and not f"{name}.".startswith(allowed)
    }


def test_there_are_examples():
    assert NAMES == ["classification", "detection", "language_model", "segmentation"]
    assert OWN == {"benchmarks", "examples", "jorge_optax", "tests"}


@pytest.mark.parametrize("folder", [*NAMES, "shared"])
def test_an_example_imports_itself_and_shared_alone(folder):
    files = sorted((EXAMPLES / folder).rglob("*.py"))
    assert len(files) >= 4
    for path in files:
        assert not forbidden(path.read_text(), folder), path


def test_imports_of_another_example_or_of_benchmarks_are_found():
    source = """
import benchmarks.results
from examples import detection
from .. import detection
from examples.shared import loop
def later():
    from examples.segmentation.configs import CONFIGS
"""
    found = {"benchmarks.results", "examples", "..", "examples.segmentation.configs"}
    assert forbidden(source, "classification") == found


def copy(folder, place):
    """Copies an example and what it shares, and nothing else."""
    for part in ("__init__.py", "shared", folder):
        target = place / "examples" / part
        target.parent.mkdir(exist_ok=True)
        source = EXAMPLES / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return place


@pytest.mark.slow
def test_a_copy_runs_elsewhere(tmp_path):
    copied = copy("classification", tmp_path)
    library = tmp_path / "library"  # the package alone, as if installed
    library.mkdir()
    flags = "--optimizer sgd --seeds 0 --steps 3"
    package = pathlib.Path(jorge_optax.__file__).parent
    (library / "jorge_optax").symlink_to(package, target_is_directory=True)
    process = subprocess.run(
        [sys.executable, "-m", "examples.classification.main", *flags.split()],
        cwd=copied,
        env={**os.environ, "PYTHONPATH": str(library), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert " after 3 steps" in process.stdout
    assert (copied / "runs" / "digits" / "sgd-0" / "metrics.jsonl").exists()
