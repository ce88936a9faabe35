"""jax.grad through init and update, as for training that is itself optimized."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Whitening, jorge, lengths

RULES = {
    "series": BinomialSeries(),
    "momentum": BinomialSeries(preconditions="momentum"),
    "nesterov": BinomialSeries(preconditions="nesterov"),
    "whitening": Whitening(),
}
STEPS = 3
WEIGHTS = np.random.default_rng(0).normal(size=(STEPS, 6, 4))
GRADIENT = np.random.default_rng(1).normal(size=(6, 4))


def weighted_updates(optimizer, gradient):
    """A number that depends on all updates of a few steps, two of them refreshes."""
    state, total = optimizer.init(jnp.zeros_like(gradient)), jnp.zeros(())
    for t in range(STEPS):
        update, state = optimizer.update((1 + t) * gradient, state)
        total += jnp.sum(jnp.asarray(WEIGHTS[t], update.dtype) * update)
    return total


def derivative_of(optimizer):
    return jax.jit(jax.grad(functools.partial(weighted_updates, optimizer)))


HARD = {
    "zero": 0 * GRADIENT,
    "subnormal": 1e-40 * GRADIENT,
    **{f"{scale:.0e}": scale * GRADIENT for scale in (1e-30, 1e-20, 1e-10, 1e10, 1e18)},
    "a zero row and column": GRADIENT
    * np.outer(np.arange(6) != 2, np.arange(4) != 1).astype(float),
    "rank 1": np.outer(GRADIENT[:, 0], GRADIENT[0]),
}


def not_finite(derivative):
    found = {
        name: np.asarray(derivative(jnp.asarray(gradient, jnp.float32)))
        for name, gradient in HARD.items()
    }
    return [name for name, value in found.items() if not np.isfinite(value).all()]


@pytest.mark.parametrize("rule", RULES)
def test_derivatives_are_finite_where_sgds_are(rule):
    assert not_finite(derivative_of(optax.sgd(1.0, 0.9))) == []
    optimizer = jorge(1.0, rule=RULES[rule], update_interval=2)
    assert not_finite(derivative_of(optimizer)) == []


def test_derivatives_with_adams_length_are_finite_where_the_rule_keeps_the_momentum():
    optimizer = jorge(1.0, rule=Whitening(), grafting=lengths.Adam())
    assert not_finite(derivative_of(optimizer)) == []
    # The negative control: the square root of Adam's second moment at zero.
    assert "zero" in not_finite(derivative_of(optax.adam(1.0)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", RULES)
def test_derivatives_are_those_of_finite_differences(rule):
    optimizer = jorge(1.0, rule=RULES[rule], update_interval=2, root_dtype="float64")
    function = jax.jit(functools.partial(weighted_updates, optimizer))
    gradient, along = jnp.asarray(GRADIENT), jnp.asarray(np.roll(GRADIENT, 1, 0))
    step = 1e-6
    slope = function(gradient + step * along) - function(gradient - step * along)
    expected = slope / (2 * step)
    found = jnp.sum(derivative_of(optimizer)(gradient) * along)
    assert abs(found / expected - 1) < 1e-7
    assert abs(found / (1 + 1e-6) / expected - 1) > 1e-7
