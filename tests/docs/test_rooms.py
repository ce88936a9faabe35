"""Tests import what CONTRIBUTING.md lets them import."""

import ast
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).parents[1]
# The package, what it depends on, and what the extra `test` installs.
OF_THE_TEST_EXTRA = {"chex", "hypothesis", "jax", "jorge_optax", "numpy", "optax"}
OF_THE_TEST_EXTRA |= {"pytest"}


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
    return {n for n in names if any(p.startswith("test_") for p in n.split("."))}


@pytest.mark.parametrize("room", ["package", "helpers"])
def test_the_packages_own_tests_need_the_test_extra_alone(room):
    for path in (TESTS / room).glob("*.py"):
        assert not foreign(imports(path.read_text())), path


def test_no_test_module_imports_a_test_module():
    for path in TESTS.rglob("*.py"):
        assert not of_tests(imports(path.read_text())), path


def test_such_imports_are_found():
    found = imports("def f():\n  from tests.package.test_a import b\nimport flax.nnx")
    assert of_tests(found) == {"tests.package.test_a.b"}
    assert foreign(found) == {"tests.package.test_a.b", "flax.nnx"}
