"""Optax's own tests of optimizers, on ours; those of shardings: on_eight_devices.py."""

import inspect
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.helpers import optax_suites

OptaxContribContract = optax_suites.contrib_suite(optax_suites.CONTRIBUTED)


class BrokenState(NamedTuple):
    scale: Any


def broken(learning_rate: optax.ScalarOrSchedule):
    """Breaks each point of the contract."""
    if not callable(learning_rate) and learning_rate > 0:  # Fails for tracers.
        rate = learning_rate
    else:
        rate = 0.0

    def init_fn(params):
        return BrokenState(jax.tree.map(lambda x: jnp.zeros(2), params))

    def update_fn(updates, state, params=None):  # Takes no extra arguments.
        narrow = jax.tree.map(lambda g: rate * g.astype(jnp.float16), updates)
        return narrow, BrokenState(jnp.zeros(3))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def test_the_contract_of_optax_can_fail():
    case = optax_suites.contrib_suite([(broken, {"learning_rate": 1e-3})])
    names, failed = optax_suites.run(case)
    assert names
    assert failed == names


def test_the_contract_of_optax_skips_nothing():
    for factory, _ in optax_suites.CONTRIBUTED:
        rate = inspect.signature(factory).parameters["learning_rate"]
        assert rate.annotation == optax.ScalarOrSchedule


# Roots are real: complex parameters need optax.contrib.split_real_and_imaginary.
COMPLEX_FAILS = {
    "optimization parabola complex64",
    "optimization rosenbrock complex64",
    "state_shape_dtype_shard_stability complex64",
    "state_shape_dtype_shard_stability complex128",
}


def short(description):
    """The test's name, the problem and the dtype."""
    (name,) = re.findall(r"\.test_([a-z_]+)", description)
    return " ".join([name, *re.findall(r"(?:_setup_|jax\.numpy\.)(\w+)", description)])


@pytest.mark.parametrize("name", [row.__name__ for row, _ in optax_suites.ALIASES])
def test_the_tests_of_optaxs_aliases_fail_for_complex_parameters_only(name):
    case = optax_suites.alias_suite(optax_suites.ALIASES)
    names, failed = optax_suites.run(case, f"opt_name='{name}'")
    assert len(names) == 4 + 1 + 1 + 2 + 6 + 2
    assert set(map(short, failed)) == COMPLEX_FAILS
