"""The package's docstrings are run; its source keeps to public names."""

import doctest
import importlib
import pathlib
import pkgutil
import re
import types

import pytest

import jorge_optax

MODULES = [
    importlib.import_module(f"jorge_optax.{module.name}")
    for module in pkgutil.iter_modules(jorge_optax.__path__)
]
PUBLIC = ("lengths", "tuning", "views")
# Results and states, which users do not make, and a base class.
WITHOUT_EXAMPLE = {"IntervalChoice", "JorgeState", "Length"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_doctests_pass(module):
    assert doctest.testmod(module).failed == 0


def public_objects():
    """Names and objects of the package and of its public submodules."""
    for module in (jorge_optax, *(getattr(jorge_optax, name) for name in PUBLIC)):
        for name in module.__all__:
            if not isinstance(getattr(module, name), types.ModuleType):
                yield name, getattr(module, name)


def test_public_names_are_few_and_submodules_are_found():
    modules = {m.__name__ for m in MODULES if "._" not in m.__name__}
    assert modules == {f"jorge_optax.{name}" for name in PUBLIC}
    assert len(jorge_optax.__all__) <= 22
    names = {name for name, _ in public_objects()}
    assert {"SGD", "Adam", "choose_update_interval", "jorge", "Rule"} <= names


def test_every_public_name_has_a_doctested_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    without = {
        name
        for name, found in public_objects()
        if not any(test.examples for test in finder.find(found, name))
    }
    assert without == WITHOUT_EXAMPLE


def test_the_package_imports_nothing_private():
    for source in pathlib.Path(jorge_optax.__path__[0]).glob("*.py"):
        assert not re.search(r"(optax|jax)\._src", source.read_text()), source
