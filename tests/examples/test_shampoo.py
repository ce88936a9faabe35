"""Shampoo with exact roots: its rule, against NumPy in float64, and its guards."""

import os
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples.shared.shampoo import ExactRoot, ShampooRule, exact_root, shampoo
from jorge_optax import Rule, Tiling, jorge, scale_by_jorge

SHAPE = (7, 5)


def gradients(steps, shape=SHAPE):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) * np.exp(rng.normal()) for _ in range(steps)]


def inverse_fourth_root(statistic, ridge):
    values, vectors = np.linalg.eigh(statistic)
    return (vectors * (values + ridge * values[-1]) ** -0.25) @ vectors.T


def by_numpy(grads, *, beta2=0.95, start=0.3, damping=0.0, ridge=1e-6):
    """The directions of one matrix, with a refresh at every second step."""
    sides, roots, found = [0.0, 0.0], [], []
    for t, g in enumerate(grads):
        if t % 2 == 0:
            roots = []
            for i, gram in enumerate((g @ g.T, g.T @ g)):
                share = damping + (start if t == 0 else 0)
                eye = np.trace(gram) / len(gram) * np.eye(len(gram))
                sides[i] = beta2 * sides[i] + (1 - beta2) * (gram + share * eye)
                roots.append(inverse_fourth_root(sides[i], ridge))
        found.append(roots[0] @ g @ roots[1])
    return found


def by_rule(grads, rule, **options):
    optimizer = scale_by_jorge(rule=rule, update_interval=2, **options)
    state, update, found = optimizer.init(grads[0]), jax.jit(optimizer.update), []
    for g in grads:
        direction, state = update(jnp.asarray(g), state)
        found.append(direction)
    return found


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("options", "damping"),
    [({}, 0.0), ({"beta2": 0.8}, 0.0), ({"start": 0.0}, 0.1), ({}, 0.2)],
)
def test_directions_are_those_of_numpy(options, damping):
    # Without start, the exact root of a singular statistic depends on rounding.
    ridge = 1e-2
    rule = ShampooRule(inverse_root=ExactRoot(ridge), **options)
    assert isinstance(rule, Rule)
    found = by_rule(gradients(7), rule, damping=damping, root_dtype="float64")
    expected = by_numpy(gradients(7), damping=damping, ridge=ridge, **options)
    chex.assert_trees_all_close(found, expected, rtol=1e-8, atol=1e-10)
    for other in ({"beta2": 0.9}, {"start": 0.29}, {"ridge": 2e-2}):
        changed = {"ridge": ridge, **options, **other}
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(
                found, by_numpy(gradients(7), damping=damping, **changed), rtol=1e-4
            )


@pytest.mark.usefixtures("x64")
def test_tiles_of_equal_sides_keep_their_own_roots():
    """The roots of sides of equal length are taken in one batch."""
    grads = gradients(5, (10, 10))
    found = by_rule(grads, ShampooRule(), tiling=Tiling(5), root_dtype="float64")
    for rows in (slice(0, 5), slice(5, 10)):
        for columns in (slice(0, 5), slice(5, 10)):
            expected = by_numpy([g[rows, columns] for g in grads])
            tile = [direction[rows, columns] for direction in found]
            chex.assert_trees_all_close(tile, expected, rtol=1e-6)
            with pytest.raises(AssertionError):
                chex.assert_trees_all_close(tile[::-1], expected, rtol=1e-2)


@pytest.mark.usefixtures("x64")
def test_exact_root_is_exact():
    g = np.random.default_rng(0).normal(size=(6, 9))
    statistic = g @ g.T
    root = np.asarray(exact_root(jnp.asarray(statistic)))
    np.testing.assert_allclose(
        np.linalg.matrix_power(root, 4) @ statistic, np.eye(6), atol=1e-9
    )
    ridge = np.asarray(exact_root(jnp.asarray(statistic), 0.1))
    largest = np.linalg.eigvalsh(statistic)[-1]
    shifted = statistic + 0.1 * largest * np.eye(6)
    np.testing.assert_allclose(
        np.linalg.matrix_power(ridge, 4) @ shifted, np.eye(6), atol=1e-9
    )


def test_shampoo_is_jorge_with_another_rule():
    def run(optimizer):
        state = optimizer.init(jnp.zeros(SHAPE))
        for g in gradients(3):
            updates, state = optimizer.update(jnp.asarray(g, jnp.float32), state)
        return updates

    options = dict(learning_rate=0.1, update_interval=1)
    found = run(shampoo(**options))
    chex.assert_trees_all_equal(found, run(jorge(rule=ShampooRule(), **options)))
    for other in (jorge(**options), shampoo(rule=ShampooRule(start=0.0), **options)):
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(found, run(other), rtol=1e-2)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_zero_or_bad_gradient_changes_neither_roots_nor_statistics(bad):
    optimizer = jorge(0.1, rule=ShampooRule(), update_interval=1)
    params = jnp.zeros(SHAPE)
    state = optimizer.init(params)
    for g in gradients(2):
        gradient = jnp.asarray(g, jnp.float32)
        _, before = optimizer.update(bad * gradient, state, params)
        for field in ("roots", "statistics"):
            old, new = (optax.tree.get(s, field) for s in (state, before))
            chex.assert_trees_all_equal(old, new)
        _, state = optimizer.update(gradient, state, params)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(old, optax.tree.get(state, field))


@pytest.mark.parametrize("factor", [1e-30, 1e-18, 1e18, 1e30])
def test_any_scale_of_gradients_gives_finite_roots(factor):
    optimizer = scale_by_jorge(rule=ShampooRule(), update_interval=1)
    plain, scaled = (optimizer.init(jnp.zeros(SHAPE)) for _ in range(2))
    for g in gradients(3):
        gradient = jnp.asarray(g, jnp.float32)
        expected, plain = optimizer.update(gradient, plain)
        found, scaled = optimizer.update(factor * gradient, scaled)
    chex.assert_tree_all_finite((found, scaled))
    cosine = jnp.vdot(found / jnp.max(jnp.abs(found)), expected)
    cosine /= jnp.linalg.norm(found / jnp.max(jnp.abs(found)))
    assert cosine / jnp.linalg.norm(expected) > 0.9


WATCHED = """
import importlib.abc, os, sys

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "scipy.linalg":
            print(name, os.environ.get("OPENBLAS_NUM_THREADS"))

sys.meta_path.insert(0, Watch())
"""
DECOMPOSE = "import jax.numpy as jnp; jnp.linalg.eigh(jnp.eye(3))"


@pytest.mark.parametrize(
    ("imports", "threads"),
    [("", "None"), ("import examples.segmentation.main", "1")],
)
def test_examples_decompose_in_one_thread(imports, threads):
    """More threads than free cores made Shampoo seem to hang."""
    environment = {k: v for k, v in os.environ.items() if "OPENBLAS" not in k}
    program = "\n".join([WATCHED, imports, DECOMPOSE])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines()[0] == f"scipy.linalg {threads}"
