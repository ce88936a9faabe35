"""Lengths of the step: optax's optimizers measured on each tile."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Tiling,
    Whitening,
    jorge,
    lengths,
    state_size,
)
from jorge_optax._stacks import plan_tree, to_stacks
from tests.helpers.contract import assert_close, assert_differs

PARAMS = {
    "conv": jnp.ones((3, 3, 2, 4)),
    "dense": jnp.ones((6, 5)),
    "b": jnp.ones(4),
    "scale": jnp.ones(()),
}
TILINGS = [Tiling(), Tiling(4)]
INPUTS = ("gradient", "momentum", "nesterov")
B1, B2, EPS = 0.8, 0.95, 1e-3
# A length, and what optax computes.
PAIRS = {
    "sgd": (lengths.SGD(), optax.trace(B1)),
    "adam": (lengths.Adam(B2, EPS), optax.scale_by_adam(B1, B2, EPS)),
}
OTHERS = {
    "sgd": optax.trace(B1, nesterov=True),
    "adam": optax.scale_by_adam(B1, 0.9, EPS),
}


def gradients(steps=5):
    """Gradients of varying size, so that the decay rates matter."""
    rng = np.random.default_rng(0)
    for step in range(steps):
        size = 10.0 ** (step % 3)
        yield jax.tree.map(
            lambda x, size=size: jnp.asarray(size * rng.normal(size=x.shape)), PARAMS
        )


def run(optimizer):
    """The updates of all steps."""
    state, update, found = optimizer.init(PARAMS), jax.jit(optimizer.update), []
    for grads in gradients():
        updates, state = update(grads, state)
        found.append(updates)
    return found


def tile_norms(updates, tiling):
    """The norm of each tile of each parameter, by stack."""
    plan = plan_tree(PARAMS, tiling)
    return [
        {
            key: np.linalg.norm(np.asarray(tiles, np.float64), axis=(1, 2))
            for key, tiles in to_stacks(plan, jax.tree.leaves(tree)).items()
        }
        for tree in updates
    ]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("name", PAIRS)
def test_length_on_stacks_is_grafting_on_leaves(name, tiling):
    length, transformation = PAIRS[name]
    options = dict(update_interval=2, tiling=tiling)
    found = run(jorge(0.1, B1, grafting=length, **options))
    expected = run(jorge(0.1, B1, grafting=transformation, **options))
    assert_close(found, expected, tolerance=1e-6)
    other = run(jorge(0.1, B1, grafting=OTHERS[name], **options))
    assert_differs(assert_close, found, other, tolerance=1e-3)


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("preconditions", INPUTS)
@pytest.mark.parametrize("name", PAIRS)
def test_step_of_each_tile_has_the_norm_of_optax(name, preconditions, tiling):
    """Also where the momentum of the rule is shared."""
    length, transformation = PAIRS[name]
    rule = BinomialSeries(preconditions=preconditions)
    found = run(jorge(1.0, B1, rule=rule, grafting=length, tiling=tiling))
    steps = run(transformation)
    norms = tile_norms(found, tiling)
    chex.assert_trees_all_close(norms, tile_norms(steps, tiling), rtol=1e-5)
    other = tile_norms(run(OTHERS[name]), tiling)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(norms, other, rtol=1e-2)
    # Parameters without roots take the very step; the others another direction.
    for ours, theirs in zip(found, steps, strict=True):
        for key in ("b", "scale"):
            chex.assert_trees_all_close(ours[key], -theirs[key], rtol=1e-5)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(ours["dense"], -theirs["dense"], rtol=1e-2)


@pytest.mark.parametrize("preconditions", ["momentum", "nesterov"])
def test_rules_with_their_own_momentum_work_with_grafting_on_leaves(preconditions):
    transformation = PAIRS["adam"][1]
    rule = BinomialSeries(preconditions=preconditions)
    found = run(jorge(1.0, B1, rule=rule, grafting=transformation))
    norms = tile_norms(found, Tiling())
    expected = tile_norms(run(transformation), Tiling())
    chex.assert_trees_all_close(norms, expected, rtol=1e-5)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(
            norms, tile_norms(run(OTHERS["adam"]), Tiling()), rtol=1e-2
        )


def test_a_shared_momentum_is_not_kept_twice():
    matrices = sum(x.size for x in jax.tree.leaves(PARAMS) if x.ndim > 1)
    for length in (lengths.SGD(), lengths.Adam()):
        own = state_size(PARAMS, grafting=length)
        rule = BinomialSeries(preconditions="nesterov")
        shared = state_size(PARAMS, rule=rule, grafting=length)
        # Adam's own transformation also has a count.
        count = 4 if isinstance(length, lengths.Adam) else 0
        assert own - shared == 4 * matrices + count


@dataclasses.dataclass(frozen=True)
class SignLength:
    """A user's length: that of the signs of the gradients."""

    def transformation(self, momentum, accumulator_dtype):
        del momentum, accumulator_dtype
        return optax.scale_by_sign()

    def init(self, tiles):
        del tiles
        return ()

    def measure(self, state, gradients, momenta, *, momentum, count):
        del momenta, momentum, count
        return jax.tree.map(jnp.sign, gradients), state


@pytest.mark.parametrize("preconditions", INPUTS)
def test_a_users_length_plugs_in(preconditions):
    assert isinstance(SignLength(), lengths.Length)
    rule = BinomialSeries(preconditions=preconditions)
    found = run(jorge(1.0, B1, rule=rule, grafting=SignLength()))
    expected = tile_norms(run(optax.scale_by_sign()), Tiling())
    norms = tile_norms(found, Tiling())
    chex.assert_trees_all_close(norms, expected, rtol=1e-5)
    assert norms[0]["6x5"][0] == pytest.approx(np.sqrt(30), rel=1e-5)


@pytest.mark.parametrize(
    "grafting", [lengths.Adam, SignLength, "adam", object(), optax.scale_by_adam]
)
def test_what_is_no_length_is_refused(grafting):
    with pytest.raises(ValueError, match="grafting must be 'sgd', a length such as"):
        jorge(0.1, grafting=grafting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"b2": 1.0}, r"lengths.Adam.b2 must lie in \[0, 1\), got 1.0"),
        ({"b2": None}, "lengths.Adam.b2 must be a number, got None"),
        ({"eps": 0.0}, "lengths.Adam.eps must be positive and finite, got 0.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        lengths.Adam(**options)


@pytest.mark.parametrize("kind", [lengths.SGD, lengths.Adam])
def test_a_scale_stretches_the_steps_of_matrices_alone(kind):
    plain, stretched = (
        run(jorge(0.1, 0.9, rule=Whitening(), grafting=kind(scale=scale)))
        for scale in (1.0, 3.0)
    )
    for one, other in zip(plain, stretched, strict=True):
        tripled = {k: 3 * one[k] if k in ("conv", "dense") else one[k] for k in one}
        assert_close(other, tripled, 1e-6)
        assert_differs(assert_close, other, one, tolerance=0.5)


def test_a_scale_of_one_adds_no_operation():
    assert lengths.SGD().factor is None
    assert lengths.Adam().factor is None
    for kind in (lengths.SGD, lengths.Adam):
        with pytest.raises(ValueError, match=f"{kind.__name__}.scale must be positive"):
            kind(scale=0.0)


# --- by shape ------------------------------------------------------------------------


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("rule", [BinomialSeries(), Whitening()])
def test_by_shape_each_tile_has_the_size_of_the_matrix_alone(rule, tiling):
    optimizer = jorge(1.0, B1, rule=rule, grafting=lengths.Shape(), tiling=tiling)
    rows = {"conv": 3 * 3 * 2, "dense": 6}
    for updates in run(optimizer):
        for name, m in rows.items():
            size = float(jnp.sqrt(jnp.mean(jnp.square(updates[name]))))
            np.testing.assert_allclose(size, m**-0.5, rtol=1e-5)
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(size, (m + 1) ** -0.5, rtol=1e-5)
        leaves = jax.tree.leaves(updates)
        for key, tiles in to_stacks(plan_tree(PARAMS, tiling), leaves).items():
            r, c = map(int, key.split("x"))
            allowed = [(r * c / m) ** 0.5 for m in rows.values()]
            norms = np.linalg.norm(np.asarray(tiles, np.float64), axis=(1, 2))
            assert np.all(np.abs(norms[:, None] - np.array([allowed])).min(1) < 1e-5)


def test_by_shape_other_parameters_take_a_share_of_adams_step():
    shape = lengths.Shape(others=0.3, b2=B2)
    found = run(jorge(1.0, B1, rule=Whitening(), grafting=shape))
    adam = run(optax.scale_by_adam(B1, B2))
    for ours, theirs in zip(found, adam, strict=True):
        for name in ("b", "scale"):
            np.testing.assert_allclose(ours[name], -0.3 * theirs[name], rtol=1e-5)
            assert not np.allclose(ours[name], -0.1 * theirs[name], rtol=1e-5)


def test_by_shape_keeps_no_moment_of_matrices():
    matrices = {name: PARAMS[name] for name in ("conv", "dense")}
    by_shape = state_size(matrices, rule=Whitening(), grafting=lengths.Shape())
    # Adam's count, for parameters without roots, of which there are none.
    assert by_shape == state_size(matrices, rule=Whitening()) + 4


def test_by_shape_the_scale_of_the_loss_does_not_matter():
    optimizer = jorge(1.0, B1, rule=Whitening(), grafting=lengths.Shape())
    state = optimizer.init(PARAMS)
    states = [state, state]
    for grads in gradients():
        both = []
        for i, factor in enumerate((1.0, 2.0**-20)):
            scaled = jax.tree.map(lambda g, f=factor: f * g, grads)
            updates, states[i] = optimizer.update(scaled, states[i])
            both.append({name: updates[name] for name in ("conv", "dense")})
        chex.assert_trees_all_close(*both, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rule", [BinomialSeries(), Whitening()])
def test_by_shape_a_zero_gradient_moves_nothing_and_a_huge_one_descends(rule):
    optimizer = jorge(1.0, B1, rule=rule, grafting=lengths.Shape())
    first = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    update = jax.jit(optimizer.update)
    state = optimizer.init(first)
    found, state = update(0 * first, state)
    np.testing.assert_array_equal(found, 0)
    # The roots may take a gradient of this size out of range.
    huge = first / np.max(np.abs(first)) * 3e38
    found, _ = update(huge, state)
    assert np.sum(np.asarray(found, np.float64) * first) < 0
    np.testing.assert_allclose(np.linalg.norm(found), 2, rtol=1e-5)
    # As would steps along ones, which have this length as well.
    assert np.std(found) > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"others": -1.0}, "lengths.Shape.others must be"),
        ({"b2": 1.0}, "lengths.Shape.b2 must lie in"),
    ],
)
def test_bad_options_of_shape_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lengths.Shape(**options)
