"""Rules of one's own: the example of the docstring, and what a rule keeps of steps."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    Rule,
    Tiling,
    Whitening,
    diagnostics,
    jorge,
    lengths,
    scale_by_jorge,
)

SHAPES = {"w": (6, 5), "v": (13, 7), "b": (4,)}
OPTIONS = {"tiling": Tiling(7)}  # the last tile of "v" is padded by one row
QUICK = {"xla_backend_optimization_level": 0}  # to compile


class DividesRows:
    """Divides each row by the root of its running mean square."""

    def adapt_init(self, tile):
        return jnp.zeros_like(tile[:, 0])

    def adapt(self, state, direction, *, count):
        state = 0.9 * state + 0.1 * jnp.mean(jnp.square(direction), 1)
        second = jnp.maximum(state / (1 - 0.9**count), 1e-30)
        return direction * jax.lax.rsqrt(second)[:, None], state


class WhitenedRows(DividesRows, Whitening):
    """The same of whitened directions."""


class Rows(DividesRows, Rule):
    """No more than that: roots are never used."""

    def init(self, real, dtype):
        return real.astype(dtype)

    def observe(self, left, right, gradient, size):
        return left, right

    def refresh(self, root, seen, real, rounding):
        return seen

    def precondition(self, left, right, matrix):
        return matrix


def gradients(steps):
    rng = np.random.default_rng(0)
    return {
        key: rng.normal(size=(steps, *shape)).astype(np.float32)
        for key, shape in SHAPES.items()
    }


def run(optimizer, grads, state=None):
    """Returns all steps, and the states after them, on the host."""
    update = jax.jit(optimizer.update, compiler_options=QUICK)
    steps = []
    for t in range(len(grads["w"])):
        gradient = jax.tree.map(lambda x, t=t: x[t], grads)
        state = optimizer.init(gradient) if state is None else state
        step, state = update(gradient, state)
        steps.append(jax.device_get((step, state)))
    return jax.tree.map(lambda *x: np.stack(x), *steps)


def test_what_a_rule_adapts_is_kept_at_every_step():
    """Not only at refreshes; compared with NumPy, in which tiles have no padding."""
    optimizer, grads = scale_by_jorge(rule=Rows(), **OPTIONS), gradients(3)
    steps, states = run(optimizer, grads)
    # The shapes of a state do not change, so that it can be saved and restored.
    params = jax.tree.map(lambda x: x[0], grads)
    for first, all_of_it in zip(
        jax.tree.leaves(optimizer.init(params)), jax.tree.leaves(states), strict=True
    ):
        assert (first.shape, first.dtype) == (all_of_it.shape[1:], all_of_it.dtype)
    variance = 0
    for key in ("w", "v"):
        variance = 0
        for t, gradient in enumerate(np.float64(grads[key])):
            variance = 0.9 * variance + 0.1 * np.mean(gradient**2, 1)
            expected = gradient / np.sqrt(variance / (1 - 0.9 ** (t + 1)))[:, None]
            np.testing.assert_allclose(steps[key][t], expected, rtol=2e-6)
            assert not np.allclose(steps[key][t], gradient, rtol=1e-2)
    kept = states.adapted["7x7"][-1].ravel()  # of two tiles
    np.testing.assert_allclose(kept, [*np.ravel(variance), 0], rtol=2e-6)


@pytest.mark.parametrize("length", ["sgd", lengths.Adam(), lengths.Shape(), None])
def test_a_rule_that_adapts_has_all_lengths_and_is_resumed(length):
    options = {"grafting": length, "update_interval": 2, **OPTIONS}
    optimizer, grads = jorge(1.0, rule=WhitenedRows(), **options), gradients(4)
    steps, states = run(optimizer, grads)
    plain, _ = run(jorge(1.0, rule=Whitening(), **options), grads)
    second = jax.tree.map(lambda x: x[1], states)
    resumed, _ = run(optimizer, jax.tree.map(lambda x: x[2:], grads), second)
    for key, step in steps.items():
        np.testing.assert_allclose(resumed[key], step[2:], rtol=1e-5, atol=1e-6)
        norms = [np.linalg.norm(own[-1]) for own in (step, plain[key])]
        assert length is None or abs(norms[0] / norms[1] - 1) < 1e-5
        assert (np.max(np.abs(step - plain[key])) > 1e-3) == (key != "b")


def test_the_rule_of_the_docstring_runs():
    names = {}
    for example in doctest.DocTestParser().get_examples(Rule.__doc__ or ""):
        exec(example.source, names)
    optimizer = jorge(0.1, rule=names["RowScaling"](decay=0.8), update_interval=1)
    grads = gradients(80)
    grads["w"] *= np.geomspace(1, 1e-3, 6, dtype=np.float32)[:, None]
    steps, states = run(optimizer, grads)
    rows = np.linalg.norm(steps["w"][-1], axis=1)
    assert rows.max() < 10 * rows.min()  # of gradients 1000 times as large
    expected = np.ones(6)
    for gradient in np.float64(grads["w"]):
        expected = 0.8 * expected + 0.2 * np.mean(gradient**2, 1)
    last = jax.tree.map(lambda x: x[-1], states)
    found = optax.tree.get(last, "roots").left["6x5"][0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    params = {key: jnp.zeros(shape) for key, shape in SHAPES.items()}
    condition = diagnostics(last, params, None, optimizer)["w/left/condition"][0]
    exact = np.sqrt(expected.max() / expected.min())
    assert condition == pytest.approx(exact, rel=0.2)
