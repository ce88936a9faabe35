"""Imports the package of the tag lab-0.1 (commit c40e72a) beside the present one."""

import importlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

TAG, PACKAGE = "lab-0.1", "jorge_optax"
ROOT = pathlib.Path(__file__).parents[2]


def load(path: str | None = None) -> list[Any]:
    """Returns the old package, from a checkout or else from the tag, and the new one.

    Both have the same name. No function of the old one imports later, so it works
    although its modules are no longer listed under their names.
    """
    if path is None:
        command = ["git", "archive", TAG, PACKAGE]
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        path = tempfile.mkdtemp()
        tarfile.open(fileobj=io.BytesIO(run.stdout)).extractall(path, filter="data")
    importlib.import_module(PACKAGE)
    new = _put_away()
    sys.path.insert(0, path)
    try:
        old = importlib.import_module(PACKAGE)
    finally:
        sys.path.remove(path)
        _put_away()
        sys.modules.update(new)
    if not hasattr(old, "JorgeConfig"):
        raise ValueError(f"{path} does not have the package of {TAG}.")
    return [old, new[PACKAGE]]


def _put_away() -> dict[str, Any]:
    """Removes the package from the imported modules; returns what was there."""
    names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}
