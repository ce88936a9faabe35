"""An example's folder and `examples/shared` are all that a copy of it needs."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import jorge_optax

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/main.py"))
OWN = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # packages in here


def imported_modules(source):
    """Returns the names of all modules that a program imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def forbidden(source, folder):
    """Returns the imports from this repository that a copy would not have."""
    allowed = (f"examples.{folder}.", "examples.shared.", "jorge_optax.")
    return {
        name
        for name in imported_modules(source)
        if name.partition(".")[0] in OWN and not f"{name}.".startswith(allowed)
    }


def test_there_are_examples():
    assert NAMES == ["classification", "detection", "language_model", "segmentation"]
    assert OWN == {"benchmarks", "examples", "jorge_optax", "tests"}


@pytest.mark.parametrize("folder", [*NAMES, "shared"])
def test_an_example_imports_itself_and_shared_alone(folder):
    files = sorted((EXAMPLES / folder).rglob("*.py"))
    assert len(files) >= 4
    for path in files:
        text = path.read_text()
        assert not forbidden(text, folder), path
        assert "import_module" not in text, path  # hides an import from this test


def test_imports_of_another_example_or_of_benchmarks_are_found():
    source = (
        "import benchmarks.results\n"
        "from examples import classification\n"
        "from examples.shared import loop\n"
        "def later():\n"
        "    from examples.segmentation.configs import CONFIGS\n"
    )
    assert forbidden(source, "classification") == {
        "benchmarks.results",
        "examples.segmentation.configs.CONFIGS",
    }


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
