"""jax.grad through init and update, as for training that is itself optimized."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Numerics, Whitening, jorge, lengths
from tests.helpers.trees import QUICK

RULES = {"series": BinomialSeries(), "whitening": Whitening()}
STEPS = 3
WEIGHTS = np.random.default_rng(0).normal(size=(STEPS, 6, 4))
GRADIENT = np.random.default_rng(1).normal(size=(6, 4))
ZEROS = np.outer(np.arange(6) != 2, np.arange(4) != 1)
HARD = {
    "zero": 0 * GRADIENT,
    "subnormal": 1e-40 * GRADIENT,
    **{f"{scale:.0e}": scale * GRADIENT for scale in (1e-30, 1e-10, 1e18)},
    "a zero row and column": GRADIENT * ZEROS,
    "rank 1": np.outer(GRADIENT[:, 0], GRADIENT[0]),
}


def weighted_updates(optimizer, gradient):
    """A number that depends on all updates of a few steps, two of them refreshes."""

    def step(state, t):
        update, state = optimizer.update((1 + t) * gradient, state)
        return state, jnp.sum(jnp.asarray(WEIGHTS, update.dtype)[t] * update)

    state = optimizer.init(jnp.zeros_like(gradient))
    return jnp.sum(jax.lax.scan(step, state, jnp.arange(STEPS))[1])


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def derivatives(optimizer, gradients):
    """For each gradient the derivative by all its entries."""
    of_one = jax.grad(functools.partial(weighted_updates, optimizer))
    return jax.lax.map(of_one, gradients)


def not_finite(optimizer):
    found = derivatives(optimizer, jnp.asarray([*HARD.values()], jnp.float32))
    good = [np.isfinite(own).all() for own in found]
    return [name for name, own in zip(HARD, good, strict=True) if not own]


FINITE = {
    "series": jorge(1.0, rule=RULES["series"], update_interval=2),
    "series, bfloat16": jorge(1.0, numerics=Numerics("bfloat16"), update_interval=2),
    "whitening": jorge(1.0, rule=RULES["whitening"], update_interval=2),
    "whitening, Adam": jorge(1.0, rule=Whitening(), grafting=lengths.Adam()),
    "whitening, Shape": jorge(1.0, rule=Whitening(), grafting=lengths.Shape()),
}


@pytest.mark.parametrize("name", FINITE)
def test_derivatives_are_finite_where_sgds_are(name):
    assert not_finite(FINITE[name]) == []


def test_derivatives_of_adam_are_not_finite_at_zero():
    """The negative control: the square root of its second moment."""
    assert "zero" in not_finite(optax.adam(1.0))
    assert not_finite(optax.sgd(1.0, 0.9)) == []


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", RULES)
def test_derivatives_are_those_of_finite_differences(rule):
    numerics = Numerics("float64")
    optimizer = jorge(1.0, rule=RULES[rule], update_interval=2, numerics=numerics)
    function = jax.jit(functools.partial(weighted_updates, optimizer))
    gradient, along = jnp.asarray(GRADIENT), jnp.asarray(np.roll(GRADIENT, 1, 0))
    step = 1e-6
    slope = function(gradient + step * along) - function(gradient - step * along)
    expected = slope / (2 * step)
    found = jnp.sum(derivatives(optimizer, gradient[None])[0] * along)
    assert abs(found / expected - 1) < 1e-7
    assert abs(found / (1 + 1e-6) / expected - 1) > 1e-7
