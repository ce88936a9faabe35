"""Rules of one's own: the example of the docstring, and what a rule keeps of steps."""

import dataclasses
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
QUICK = {"xla_backend_optimization_level": 0}  # to compile
TILING = Tiling(7)  # "v" is padded by one row


def documented():
    """Returns the rule of the docstring."""
    names = {}
    for example in doctest.DocTestParser().get_examples(Rule.__doc__ or ""):
        exec(example.source, names)
    return names["RowScaling"]


@dataclasses.dataclass(frozen=True)
class RowVariance(Rule):
    """Divides each row by the root of its running mean square; has no roots."""

    decay: float = 0.9

    def init(self, real, dtype):
        return real.astype(dtype)

    def observe(self, left, right, gradient, size):
        return left, right

    def refresh(self, root, seen, real, rounding):
        return seen

    def precondition(self, left, right, matrix):
        return matrix

    def adapt_init(self, tile):
        return jnp.zeros_like(tile[:, 0])

    def adapt(self, state, direction, *, count):
        mean = jnp.mean(jnp.square(direction), 1)
        state = self.decay * state + (1 - self.decay) * mean
        second = jnp.maximum(state / (1 - self.decay**count), 1e-30)
        return direction * jax.lax.rsqrt(second)[:, None], state


class WhitenedRows(RowVariance, Whitening):
    """The same of whitened directions, with all that whitening does."""

    init, observe = Whitening.init, Whitening.observe
    refresh, precondition = Whitening.refresh, Whitening.precondition


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
    optimizer = scale_by_jorge(rule=RowVariance(), update_interval=10, tiling=TILING)
    grads = gradients(3)
    steps, states = run(optimizer, grads)
    shapes = {key: own.shape for key, own in states.adapted.items()}
    assert shapes == {"6x5": (3, 1, 6), "7x7": (3, 2, 7)}
    # The shapes of a state do not change, so that it can be saved and restored.
    params = jax.tree.map(lambda x: x[0], grads)
    last = jax.tree.map(lambda x: x[-1], states)
    jax.tree.map(
        np.testing.assert_array_equal,
        *(
            jax.tree.map(lambda x: (x.shape, str(x.dtype)), state)
            for state in (last, optimizer.init(params))
        ),
    )
    for key in ("w", "v"):
        variance = 0
        for t, gradient in enumerate(np.float64(grads[key]), start=1):
            variance = 0.9 * variance + 0.1 * np.mean(gradient**2, 1)
            expected = gradient / np.sqrt(variance / (1 - 0.9**t))[:, None]
            np.testing.assert_allclose(steps[key][t - 1], expected, rtol=2e-6)
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(steps[key][t - 1], gradient, rtol=2e-6)
    kept = np.concatenate([*states.adapted["7x7"][-1]])
    np.testing.assert_allclose(kept[:13], variance, rtol=2e-6)
    assert kept[13] == 0


@pytest.mark.parametrize("length", ["sgd", lengths.Adam(), lengths.Shape(), None])
def test_a_rule_that_adapts_has_all_lengths_and_is_resumed(length):
    options = {"grafting": length, "update_interval": 2, "tiling": TILING}
    optimizer, grads = jorge(1.0, rule=WhitenedRows(), **options), gradients(4)
    steps, states = run(optimizer, grads)
    plain, _ = run(jorge(1.0, rule=Whitening(), **options), grads)
    for key, step in steps.items():
        norms = [np.linalg.norm(own[-1]) for own in (step, plain[key])]
        assert length is None or abs(norms[0] / norms[1] - 1) < 1e-5
        assert (np.max(np.abs(step - plain[key])) > 1e-3) == (key != "b")
    second = jax.tree.map(lambda x: x[1], states)
    resumed, _ = run(optimizer, jax.tree.map(lambda x: x[2:], grads), second)
    for key, step in steps.items():
        np.testing.assert_allclose(resumed[key], step[2:], rtol=1e-5, atol=1e-6)


def test_the_rule_of_the_docstring_runs():
    """It has no roots of a matrix each; it trains, and diagnostics know it."""
    optimizer = jorge(0.1, rule=documented()(decay=0.8), update_interval=1)
    params = {key: jnp.zeros(shape) for key, shape in SHAPES.items()}
    grads = gradients(80)
    grads["w"] *= np.geomspace(1, 1e-3, 6, dtype=np.float32)[:, None]
    steps, states = run(optimizer, grads)
    rows = np.linalg.norm(steps["w"][-1], axis=1)
    assert rows.max() < 10 * rows.min()  # of gradients 1000 times as large
    roots = optax.tree.get(states, "roots")
    expected = np.ones(6)
    for gradient in np.float64(grads["w"]):
        expected = 0.8 * expected + 0.2 * np.mean(gradient**2, 1)
    np.testing.assert_allclose(roots.left["6x5"][-1, 0], expected, rtol=1e-5)
    last = jax.tree.map(lambda x: x[-1], states)
    report = diagnostics(last, params, None, optimizer)
    condition = np.sqrt(expected.max() / expected.min())
    assert report["w/left/condition"][0] == pytest.approx(condition, rel=0.2)
