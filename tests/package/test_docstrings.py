"""The package's docstrings are run; its source keeps to public names."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import jorge_optax

MODULES = [
    importlib.import_module(f"jorge_optax.{module.name}")
    for module in pkgutil.iter_modules(jorge_optax.__path__)
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_doctests_pass(module):
    assert doctest.testmod(module).failed == 0


def test_every_public_function_has_a_doctested_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in jorge_optax.__all__:
        if name[0].islower() or name in (
            "TrackedStatistics",
            "MatrixView",
            "Series",
            "Tiling",
        ):
            tests = finder.find(getattr(jorge_optax, name), name)
            assert any(test.examples for test in tests), name


def test_the_package_imports_nothing_private():
    for source in pathlib.Path(jorge_optax.__path__[0]).glob("*.py"):
        assert not re.search(r"(optax|jax)\._src", source.read_text()), source
