"""Tests import what CONTRIBUTING.md lets them import."""

import ast
import pathlib
import sys

TESTS = pathlib.Path(__file__).parents[1]
# The package, what it depends on, and what the extra `test` installs.
OF_THE_TEST_EXTRA = set("chex hypothesis jax jorge_optax numpy optax pytest".split())


def imports(source: str) -> set[str]:
    """Modules, and names from them, that the source imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def foreign(names: set[str]) -> set[str]:
    """Those that the package's own tests may not import."""
    return {
        name
        for name in names
        if name.split(".")[0] not in OF_THE_TEST_EXTRA | sys.stdlib_module_names
        and not name.startswith("tests.helpers.")
    }


def of_tests(names: set[str]) -> set[str]:
    """Those that are test modules, or in one."""
    return {name for name in names if ".test_" in name}


def test_tests_import_what_they_may():
    for path in TESTS.rglob("*.py"):
        names = imports(path.read_text())
        assert not of_tests(names), path
        if path.parent.name in ("package", "helpers"):  # what the extra `test` runs
            assert not foreign(names), path


def test_such_imports_are_found():
    found = imports("def f():\n  from tests.package.test_a import b\nimport flax.nnx")
    assert of_tests(found) == {"tests.package.test_a.b"}
    assert foreign(found) == {"tests.package.test_a.b", "flax.nnx"}
