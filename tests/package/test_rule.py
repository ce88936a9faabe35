"""The protocol of rules: a user's own rule plugs in, and what is none is refused."""

import dataclasses
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import (
    BinomialSeries,
    Preconditioner,
    Rule,
    Sides,
    Whitening,
    describe,
    jorge,
    scale_by_jorge,
)

PARAMS = {"a": jnp.ones((7, 5)), "b": jnp.ones((4, 3)), "c": jnp.ones(3)}


def gradients(steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), PARAMS)


def run(optimizer, steps=4):
    state, update, found = optimizer.init(PARAMS), jax.jit(optimizer.update), []
    for grads in gradients(steps):
        updates, state = update(grads, state, PARAMS)
        found.append(updates)
    return found


# --- rules of one's own, of no base class ------------------------------------------


@dataclasses.dataclass(frozen=True)
class RowScaling:
    """The example of the docstring of Rule."""

    preconditions: str = "nesterov"

    def init(self, tiles, *, eps, dtype):
        del eps
        ones = {
            key: Sides(jnp.ones(tile.shape[:2], dtype), jnp.ones(0, dtype))
            for key, tile in tiles.items()
        }
        return Preconditioner(ones, ())

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        del momenta, damping, precision
        roots = {
            key: Sides(jax.lax.rsqrt(jnp.mean(g * g, 2) + 1e-12), kept.roots[key].right)
            for key, g in gradients.items()
        }
        return Preconditioner(roots, ())

    def precondition(self, kept, matrices, *, precision):
        del precision
        return {
            key: kept.roots[key].left[:, :, None] * tiles
            for key, tiles in matrices.items()
        }


@pytest.mark.parametrize("preconditions", ["gradient", "momentum", "nesterov"])
def test_row_scaling_is_that_of_numpy(preconditions):
    rule = RowScaling(preconditions)
    found = run(scale_by_jorge(rule=rule, momentum=0.9, update_interval=1))
    average, total = np.zeros((7, 5)), np.zeros((7, 5))
    for ours, grads in zip(found, gradients(4), strict=True):
        g = np.asarray(grads["a"], np.float64)
        scale = 1 / np.sqrt(np.mean(g**2, 1, keepdims=True))
        average = 0.9 * average + 0.1 * scale * g
        total = g + 0.9 * total
        expected = {
            "gradient": average,
            "momentum": 0.1 * scale * total,
            "nesterov": 0.1 * scale * (g + 0.9 * total),
        }
        chex.assert_trees_all_close(ours["a"], expected.pop(preconditions), rtol=1e-4)
    for other in expected.values():
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(ours["a"], other, rtol=1e-2)


def test_any_object_with_the_members_is_a_rule():
    rule = RowScaling()
    names = ("preconditions", "init", "refresh", "precondition")
    members = {name: getattr(rule, name) for name in names}
    same = types.SimpleNamespace(**members)
    assert isinstance(same, Rule)
    chex.assert_trees_all_equal(run(jorge(0.1, rule=same)), run(jorge(0.1, rule=rule)))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(run(jorge(0.1, rule=same)), run(jorge(0.1)))
    table = describe(PARAMS, rule=rule)
    rows = {row.path: row.state_bytes for row in table.leaves}
    # The momentum, and one number a row.
    assert rows == {"a": 4 * (35 + 7), "b": 4 * (12 + 4), "c": 4 * 3}


# --- what a rule is given ----------------------------------------------------------


class Recorder(RowScaling):
    """Notes what refresh gets; without jit these are arrays."""

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        calls.append((gradients, momenta, damping, precision))
        return super().refresh(
            kept, gradients, momenta, damping=damping, precision=precision
        )


calls = []


@pytest.mark.parametrize("preconditions", ["gradient", "momentum", "nesterov"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rule_gets_gradients_momenta_and_options(preconditions, momentum):
    optimizer = scale_by_jorge(
        rule=Recorder(preconditions),
        momentum=momentum,
        damping=0.125,
        precision="high",
        update_interval=1,
    )
    total, state = jnp.zeros((4, 3)), optimizer.init(PARAMS)
    with jax.disable_jit():
        for grads in gradients(3):
            calls.clear()
            _, state = optimizer.update(grads, state)
            total = grads["b"] + momentum * total
            ((given, momenta, damping, precision),) = calls
            chex.assert_trees_all_equal(given["4x3"][0], grads["b"])
            assert damping == 0.125
            assert precision == jax.lax.Precision.HIGH
            if preconditions == "gradient":
                assert momenta is None
            else:
                chex.assert_trees_all_close(momenta["4x3"][0], total, rtol=1e-6)
    if momentum:
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(grads["b"], total, rtol=1e-2)


# --- what is no rule ---------------------------------------------------------------


def lacking(member):
    names = {"preconditions", "init", "refresh", "precondition"} - {member}
    members = {name: getattr(RowScaling(), name) for name in names}
    return types.SimpleNamespace(**members)


@pytest.mark.parametrize("make", [lambda **o: jorge(0.1, **o), scale_by_jorge])
@pytest.mark.parametrize(
    "rule",
    [
        BinomialSeries,
        Whitening,
        RowScaling,
        "whitening",
        0.95,
        *map(lacking, ("preconditions", "init", "refresh", "precondition")),
    ],
)
def test_what_is_no_rule_is_refused(make, rule):
    with pytest.raises(TypeError, match=r"rule must be BinomialSeries\(\), which is"):
        make(rule=rule)


def test_a_rule_must_say_what_it_preconditions():
    rule = BinomialSeries()
    object.__setattr__(rule, "preconditions", "weights")  # as a user's own rule may
    message = "BinomialSeries.preconditions must be one of gradient, momentum, nesterov"
    with pytest.raises(ValueError, match=message):
        jorge(0.1, rule=rule)
    jorge(0.1, rule=BinomialSeries())
