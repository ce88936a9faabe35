"""The paper's rule against Algorithm 2 in NumPy: updates and roots, in all cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Numerics, Tiling, jorge
from tests.helpers.oracle import JorgeOracle
from tests.helpers.oracle_cases import CASES, MAX_DIM, gradients
from tests.helpers.trees import QUICK

# Tiles that are longer than the longest cut: 11 columns are padded by one.
PADDED = {"wide": (4, 12)}


def start(case, seed=0):
    return np.random.default_rng(seed + 1).normal(size=CASES[case][0])


@functools.cache
def run_oracle(case, interval, **options):
    shape, row_cuts, column_cuts = CASES[case]
    oracle = JorgeOracle(shape, row_cuts, column_cuts, interval=interval, **options)
    parameter, updates = start(case), []
    for gradient in gradients(shape, 0):
        updates.append(oracle.update(gradient, parameter))
        parameter = parameter + updates[-1]
    return updates, [(tile.left, tile.right) for _, tile in oracle.tiles]


@functools.partial(
    jax.jit, static_argnames=("dtype", "grafting"), compiler_options=QUICK
)
def train(params, grads, hyperparameters, dtype, grafting):
    """Trains all cases in one program; interval, momentum and decay are traced."""
    optimizer = jorge(
        0.1,
        tiling=Tiling(MAX_DIM),
        numerics=Numerics(roots=dtype),
        grafting=grafting,
        **hyperparameters,
    )

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), updates

    (_, state), updates = jax.lax.scan(step, (params, optimizer.init(params)), grads)
    return updates, optax.tree.get(state, "roots")


def run_package(dtype, interval, *, perturb=None, seed=0, beta1=0.9, **options):
    grads = {
        case: np.stack([*gradients(shape, seed, dtype)])
        for case, (shape, *_) in CASES.items()
    }
    if perturb is not None:
        for own in grads.values():
            own[perturb] = own[perturb] * 1.1 + 0.1
    params = {case: jnp.asarray(start(case, seed), dtype) for case in CASES}
    grafting = "sgd" if options.pop("grafting", True) else None
    options = {"weight_decay": 0.0, **options}
    given = {"update_interval": interval, "momentum": beta1, **options}
    results = train(params, grads, given, dtype, grafting)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), results)


def is_close(found, expected, tolerance):
    """Relative to the norm of the array."""
    return np.max(np.abs(found - expected)) <= tolerance * np.linalg.norm(expected)


def wrong_updates(found, interval, tolerance, **options):
    """Returns the cases in which some update is not the oracle's."""
    return {
        case
        for case in CASES
        for own, update in zip(
            found[0][case], run_oracle(case, interval, **options)[0], strict=True
        )
        if not is_close(own, update, tolerance)
    }


def wrong_roots(found, interval, tolerance, **options):
    """Returns the cases in which some root is not the oracle's.

    Tiles lie in their stacks in the order of the cases, and their padding is zero.
    """
    wrong, taken = set(), {}
    for case in sorted(CASES):
        tiles = run_oracle(case, interval, **options)[1]
        sides = [max(map(len, own)) for own in zip(*tiles, strict=True)]
        key = "x".join(map(str, PADDED.get(case, sides)))
        for pair in tiles:
            index = taken[key] = taken.get(key, -1) + 1
            for stacks, expected in zip(found[1], pair, strict=True):
                root = stacks[key]
                matrix = root.scale[index] * root.unit[index]
                padding = [(0, len(matrix) - len(expected))] * 2
                if not is_close(matrix, np.pad(expected, padding), tolerance):
                    wrong.add(case)
    assert {k: len(own.unit) for k, own in found[1].left.items()} == {
        k: last + 1 for k, last in taken.items()
    }
    return wrong


WITH_ROOTS = {case for case in CASES if run_oracle(case, 1)[1]}


@pytest.mark.parametrize("interval", [1, 2, 7])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_updates_and_roots_are_those_of_algorithm_2(
    dtype, tolerance, interval, request
):
    if dtype == "float64":
        request.getfixturevalue("x64")
    expected = {"interval": interval, "tolerance": tolerance, "weight_decay": 0.01}
    found = run_package(dtype, interval, weight_decay=0.01)
    assert wrong_updates(found, **expected) == set()
    assert wrong_roots(found, **expected) == set()

    # Negative controls: one gradient perturbed a little, other gradients, no decay.
    perturbed = run_package(dtype, interval, weight_decay=0.01, perturb=14)
    assert wrong_updates(perturbed, **expected) == set(CASES)
    other = run_package(dtype, interval, weight_decay=0.01, seed=5)
    assert wrong_updates(other, **expected) == set(CASES)
    assert wrong_roots(other, **expected) == WITH_ROOTS
    plain = run_package(dtype, interval)
    assert wrong_updates(plain, **expected) == set(CASES)


@pytest.mark.usefixtures("x64")
def test_without_grafting_steps_are_those_of_lines_14_and_15():
    options = {"grafting": False, "weight_decay": 0.01, "beta1": 0.8}
    expected = {"interval": 2, "tolerance": 1e-9, **options}
    assert wrong_updates(run_package("float64", 2, **options), **expected) == set()
    grafted = run_package("float64", 2, **{**options, "grafting": True})
    assert wrong_updates(grafted, **expected) == set(CASES)
