"""Rules of one's own: the example of the docstring, and what a rule keeps of steps."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Rule, Tiling, Whitening, diagnostics, jorge, lengths
from tests.helpers.trees import QUICK

SHAPES = {"w": (6, 5), "v": (13, 7), "b": (4,)}
OPTIONS = {"tiling": Tiling(7)}  # the last tile of "v" is padded by one row


class WhitenedRows(Whitening):
    """Divides rows of whitened directions by the root of their running mean square."""

    def adapt_init(self, tile):
        return jnp.zeros_like(tile[:, 0])

    def adapt(self, state, direction, *, count):
        state = 0.9 * state + 0.1 * jnp.mean(jnp.square(direction), 1)
        second = jnp.maximum(state / (1 - 0.9**count), 1e-30)
        return direction * jax.lax.rsqrt(second)[:, None], state


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
    if length is None:
        # What is kept at every step, in NumPy, in which tiles have no padding.
        mean_squares = np.mean(np.square(plain["w"], dtype=np.float64), 2)
        expected = np.zeros(6)
        for t, now in enumerate(mean_squares):
            expected = 0.9 * expected + 0.1 * now
            rows = plain["w"][t] / np.sqrt(expected / (1 - 0.9 ** (t + 1)))[:, None]
            np.testing.assert_allclose(steps["w"][t], rows, rtol=1e-5)
        kept = optax.tree.get(states, "adapted")
        np.testing.assert_allclose(kept["6x5"][-1, 0], expected, rtol=1e-5)
        assert kept["7x7"][-1, 1, -1] == 0  # a row of padding


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
