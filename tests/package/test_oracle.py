"""The package against the paper's algorithm in NumPy, updates and roots."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Tiling, jorge
from tests.helpers.oracle import JorgeOracle
from tests.helpers.oracle_cases import CASES, MAX_DIM, gradients


def run_oracle(case, interval, seed=0, **options):
    shape, row_cuts, column_cuts = CASES[case]
    oracle = JorgeOracle(shape, row_cuts, column_cuts, interval=interval, **options)
    parameter = np.random.default_rng(seed + 1).normal(size=shape)
    updates = []
    for gradient in gradients(shape, seed):
        updates.append(oracle.update(gradient, parameter))
        parameter = parameter + updates[-1]
    return updates, oracle


@functools.partial(jax.jit, static_argnames=("dtype", "grafting", "rule"))
def package_step(gradient, state, parameter, hyperparameters, dtype, grafting, rule):
    """One step; interval, momentum and decay are traced, so shapes compile once."""
    optimizer = make(dtype, grafting, rule=rule, **hyperparameters)
    if state is None:
        return optimizer.init(parameter)
    return optimizer.update(gradient, state, parameter)


def make(dtype, grafting, **hyperparameters):
    return jorge(
        0.1,
        tiling=Tiling(MAX_DIM),
        root_dtype=dtype,
        grafting="sgd" if grafting else None,
        **hyperparameters,
    )


def run_package(case, interval, dtype, seed=0, perturb=None, **options):
    shape = CASES[case][0]
    hyperparameters = {
        "update_interval": interval,
        "momentum": options.get("beta1", 0.9),
        "weight_decay": options.get("weight_decay", 0.0),
    }
    static = {
        "dtype": dtype,
        "grafting": options.get("grafting", True),
        "rule": options.get("rule"),
    }
    parameter = jnp.asarray(np.random.default_rng(seed + 1).normal(size=shape), dtype)
    state = package_step(None, None, parameter, hyperparameters, **static)
    updates = []
    for step, gradient in enumerate(gradients(shape, seed, dtype)):
        if step == perturb:
            gradient = gradient * 1.1 + 0.1
        new, state = package_step(gradient, state, parameter, hyperparameters, **static)
        updates.append(np.asarray(new))
        parameter = optax.apply_updates(parameter, new)
    return updates, state


def assert_close(actual, expected, tolerance):
    """Relative to the norm of each array."""
    for a, e in zip(actual, expected, strict=True):
        scale = np.linalg.norm(e)
        chex.assert_trees_all_close(a / scale, e / scale, rtol=0, atol=tolerance)


def oracle_roots(oracle):
    """By stack, in the order in which the package lays the tiles."""
    stacks = {}
    for _, tile in oracle.tiles:
        key = f"{len(tile.left)}x{len(tile.right)}"
        stacks.setdefault(key, []).append(tile)
    return stacks


def assert_roots_close(state, oracle, tolerance):
    roots = optax.tree.get(state, "roots")
    expected = oracle_roots(oracle)
    assert set(roots) == set(expected)
    for key, tiles in expected.items():
        assert len(tiles) == len(roots[key].left)
        for index, tile in enumerate(tiles):
            found = [np.asarray(side[index]) for side in roots[key]]
            assert_close(found, [tile.left, tile.right], tolerance)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("interval", [1, 2, 7])
@pytest.mark.parametrize("case", CASES)
def test_float64_agrees_to_1e_9(case, interval):
    options = {"weight_decay": 0.01}
    expected, oracle = run_oracle(case, interval, **options)
    actual, state = run_package(case, interval, "float64", **options)
    assert_close(actual, expected, 1e-9)
    if oracle.has_roots:
        assert_roots_close(state, oracle, 1e-9)

    # Negative controls: one gradient perturbed a little; another decay.
    perturbed, perturbed_state = run_package(
        case, interval, "float64", perturb=14, **options
    )
    with pytest.raises(AssertionError):
        assert_close(perturbed, expected, 1e-9)
    if oracle.has_roots:
        with pytest.raises(AssertionError):
            assert_roots_close(perturbed_state, oracle, 1e-9)
    with pytest.raises(AssertionError):
        assert_close(run_package(case, interval, "float64")[0], expected, 1e-9)


@pytest.mark.parametrize("interval", [1, 2, 7])
@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_to_1e_3(case, interval):
    expected, oracle = run_oracle(case, interval)
    actual, state = run_package(case, interval, "float32")
    assert_close(actual, expected, 1e-3)
    if oracle.has_roots:
        assert_roots_close(state, oracle, 1e-3)

    perturbed, _ = run_package(case, interval, "float32", perturb=14)
    with pytest.raises(AssertionError):
        assert_close(perturbed, expected, 1e-3)
    other_seed, _ = run_package(case, interval, "float32", seed=5)
    with pytest.raises(AssertionError):
        assert_close(other_seed, expected, 1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", ["tall", "tiles", "bias"])
def test_algorithm_2_without_grafting(case):
    options = {"grafting": False, "weight_decay": 0.01, "beta1": 0.8}
    expected, oracle = run_oracle(case, 2, **options)
    actual, state = run_package(case, 2, "float64", **options)
    assert_close(actual, expected, 1e-9)
    with_grafting, _ = run_package(case, 2, "float64", **{**options, "grafting": True})
    with pytest.raises(AssertionError):
        assert_close(with_grafting, expected, 1e-9)
