"""Shampoo with exact roots: its rule, against NumPy in float64, and its guards."""

import os
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.shared.shampoo import Shampoo
from jorge_optax import Numerics, Tiling, diagnostics, jorge, scale_by_jorge

SHAPE = (7, 5)


def gradients(steps, shape=SHAPE):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) * np.exp(rng.normal()) for _ in range(steps)]


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
                values, vectors = np.linalg.eigh(sides[i])
                values = (values + ridge * values[-1]) ** -0.25
                roots.append((vectors * values) @ vectors.T)
        found.append(roots[0] @ g @ roots[1])
    return found


def by_rule(grads, rule, **options):
    """The directions, and the last state."""
    optimizer = scale_by_jorge(rule=rule, update_interval=2, **options)
    state, update, found = optimizer.init(grads[0]), jax.jit(optimizer.update), []
    for g in grads:
        direction, state = update(jnp.asarray(g), state)
        found.append(direction)
    return found, state


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{}, {"beta2": 0.8, "start": 0.0, "damping": 0.1}])
def test_directions_are_those_of_numpy(options):
    # Without start, the exact root of a singular statistic depends on rounding.
    options = {"ridge": 1e-2, **options}
    exact = Numerics(roots="float64")
    found, state = by_rule(gradients(7), Shampoo(**options), numerics=exact)
    expected = by_numpy(gradients(7), **options)
    chex.assert_trees_all_close(found, expected, rtol=1e-8, atol=1e-10)
    for other in ({"beta2": 0.9}, {"start": 0.29}, {"ridge": 2e-2}):
        changed = by_numpy(gradients(7), **{**options, **other})
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(found, changed, rtol=1e-4)
    # What diagnostics see is the root, not the statistic.
    optimizer = jorge(0.1, rule=Shampoo(**options))
    cosine = diagnostics(state, gradients(1)[0], gradients(7)[6], optimizer)["/cosine"]
    lengths = np.linalg.norm(expected[6]) * np.linalg.norm(gradients(7)[6])
    np.testing.assert_allclose(cosine, np.vdot(expected[6], gradients(7)[6]) / lengths)


@pytest.mark.usefixtures("x64")
def test_tiles_keep_their_own_roots_and_padding_changes_nothing():
    """Tiles of 5x5; the last ones have padded rows and columns."""
    grads = gradients(5, (9, 9))
    options = {"tiling": Tiling(5), "numerics": Numerics(roots="float64")}
    found, _ = by_rule(grads, Shampoo(ridge=1e-4), **options)
    for rows in (slice(0, 5), slice(5, 10)):
        for columns in (slice(0, 5), slice(5, 10)):
            expected = by_numpy([g[rows, columns] for g in grads], ridge=1e-4)
            tile = [direction[rows, columns] for direction in found]
            chex.assert_trees_all_close(tile, expected, rtol=1e-6)
            with pytest.raises(AssertionError):
                chex.assert_trees_all_close(tile[::-1], expected, rtol=1e-2)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_zero_or_bad_gradient_changes_neither_roots_nor_statistics(bad):
    optimizer = jorge(0.1, rule=Shampoo(), update_interval=1)
    params = jnp.zeros(SHAPE)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for g in gradients(2):
        gradient = jnp.asarray(g, jnp.float32)
        _, same = update(bad * gradient, state, params)
        old = state[0].roots
        chex.assert_trees_all_equal(same[0].roots, old)
        _, state = update(gradient, state, params)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(state[0].roots, old)


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
