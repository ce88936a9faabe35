"""Grafting: the length of one step, the direction of another."""

import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import GraftState, Tiling, graft, jorge
from tests.helpers.trees import TREE, close, differs, normal, tree

EXTREMES = (1e-30, 1e30, 1e18, 1e-20)


def length(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64).ravel()))


def grafted_by_hand(magnitude: Any, direction: Any) -> np.ndarray:
    direction = np.asarray(direction, np.float64)
    return length(magnitude) / length(direction) * direction


def one_update(optimizer: Any, gradients: Any, **extra_args: Any) -> Any:
    """The first update; also from parameters that are the gradients."""

    def update(gradients):
        state = optimizer.init(gradients)
        return optimizer.update(gradients, state, gradients, **extra_args)[0]

    return jax.jit(update)(gradients)


def constant(value: Any) -> optax.GradientTransformation:
    """A transformation whose updates are always these."""
    return optax.stateless(lambda updates, params: value)


@functools.partial(jax.jit, static_argnames="tiling")
def at_length(magnitudes: Any, directions: Any, tiling: Tiling | None = None) -> Any:
    """By graft, and with neither of the two known to the compiler."""
    optimizer = graft(constant(magnitudes), constant(directions), tiling=tiling)
    return one_update(optimizer, directions)


@pytest.mark.parametrize(
    ("magnitude", "direction"),
    [
        (optax.trace(0.9), optax.scale_by_adam()),
        (optax.scale_by_adam(), optax.trace(0.9)),
        (optax.scale_by_rms(), optax.scale_by_sign()),
        (optax.sgd(0.3), optax.chain(optax.clip(0.1), optax.scale(-2.0))),
    ],
    ids=["adam at sgd", "sgd at adam", "sign at rms", "chain at sgd"],
)
def test_length_of_one_and_direction_of_the_other(magnitude, direction):
    optimizer = graft(magnitude, direction)
    state = optimizer.init(tree(0))
    states = magnitude.init(tree(0)), direction.init(tree(0))
    chex.assert_trees_all_equal(state, GraftState(*states))
    update = jax.jit(optimizer.update)
    for seed in (10, 20, 30):
        gradients = tree(seed)
        updates, state = update(gradients, state)
        lengths, first = magnitude.update(gradients, states[0])
        directions, second = direction.update(gradients, states[1])
        states = first, second
        expected = jax.tree.map(grafted_by_hand, lengths, directions)
        close(updates, expected)
        differs(close, updates, jax.tree.map(grafted_by_hand, directions, lengths))
        close(state, GraftState(*states))


by_leaves_and_by_tiles = pytest.mark.parametrize(
    "tiling", [None, Tiling(3)], ids=["leaves", "tiles"]
)


@by_leaves_and_by_tiles
def test_zero_direction_gives_zero(tiling):
    some = tree(0)
    zero = jax.tree.map(jnp.zeros_like, some)
    for pair in ((some, zero), (zero, some), (zero, zero)):
        chex.assert_trees_all_equal(at_length(*pair, tiling=tiling), zero)
    differs(chex.assert_trees_all_equal, at_length(some, some, tiling=tiling), zero)


def test_a_zero_tile_stays_zero_beside_others():
    directions = normal(0, (6, 4)).at[:3, :2].set(0)
    gradients = normal(1, (6, 4))
    updates = at_length(gradients, directions, tiling=Tiling(3))
    chex.assert_trees_all_equal(updates[:3, :2], jnp.zeros((3, 2)))
    expected = grafted_by_hand(gradients[3:, :2], directions[3:, :2])
    close(updates[3:, :2], expected)
    differs(close, updates[3:, 2:], expected)


def test_zero_direction_gives_zero_whatever_the_length():
    updates = at_length(jnp.full((3, 4), 3e38), jnp.zeros((3, 4)))
    chex.assert_trees_all_equal(updates, jnp.zeros((3, 4)))


@pytest.mark.parametrize("entry", [1e-30, 1e30, 1e-20])
def test_constants_known_to_the_compiler_are_grafted_alike(entry):
    directions = jnp.asarray([entry, 2 * entry, 0.0])
    optimizer = graft(constant(jnp.ones(3)), constant(directions))
    expected = grafted_by_hand(jnp.ones(3), directions)
    updates = one_update(optimizer, jnp.ones(3))
    close(updates, expected)
    differs(close, updates, -expected)


def test_a_parameter_that_the_loss_ignores_stays_as_it_is():
    # Under jit its gradient is a constant zero; here of 2 tiles.
    params = {"ignored": normal(0, (6, 2)), "used": normal(1, (3, 3))}
    optimizer = graft(optax.trace(0.9), optax.scale(-0.1), tiling=Tiling(3))

    @jax.jit
    def step(params, state):
        gradients = jax.grad(lambda params: jnp.sum(params["used"] ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates)

    new_params = step(params, optimizer.init(params))
    differs(close, new_params["used"], params["used"])
    chex.assert_trees_all_equal(new_params["ignored"], params["ignored"])


@by_leaves_and_by_tiles
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_kept_at_the_cost_of_its_own_rounding(dtype, tiling):
    gradients = tree(0, dtype=jnp.dtype(dtype))
    wide = tree(10)
    updates = at_length(wide, gradients, tiling=tiling)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, gradients)
    rounding = float(jnp.finfo(dtype).eps)
    for key, update in updates.items():
        np.testing.assert_allclose(length(update), length(wide[key]), rtol=rounding)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(length(update), length(gradients[key]), rounding)


def test_dtypes_of_leaves_that_share_a_stack_are_kept():
    gradients = {
        dtype: jnp.ones((4, 4), dtype) for dtype in ("bfloat16", "float16", "float32")
    }
    optimizer = graft(optax.identity(), optax.identity(), tiling=Tiling())
    updates = one_update(optimizer, gradients)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, gradients)


def scale_by_argument(name: str, seen: list[Any]) -> Any:
    """Multiplies by the extra argument of this name, and notes all of them."""

    def update(updates, state, params=None, **extra_args):
        del params
        seen.append(extra_args)
        return optax.tree.scale(extra_args[name], updates), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


@by_leaves_and_by_tiles
def test_extra_arguments_go_to_both(tiling):
    gradients = tree(0)
    by_magnitude, by_direction = [], []
    optimizer = graft(
        scale_by_argument("loss", by_magnitude),
        scale_by_argument("sign", by_direction),
        tiling=tiling,
    )
    updates = one_update(optimizer, gradients, loss=3.0, sign=-0.5)
    assert by_magnitude == by_direction == [{"loss": 3.0, "sign": -0.5}]
    close(updates, optax.tree.scale(-3.0, gradients))
    differs(close, updates, optax.tree.scale(3.0, gradients))
    plain = graft(optax.identity(), scale_by_argument("sign", []), tiling=tiling)
    updates = one_update(plain, gradients, sign=-2.0, loss=3.0)
    close(updates, optax.tree.scale(-1.0, gradients))


def test_extra_arguments_reach_what_jorge_is_grafted_on():
    gradients = {"w": normal(0, (3, 2))}
    seen = []
    once = one_update(jorge(0.1, grafting=optax.identity()), gradients)
    optimizer = jorge(0.1, grafting=scale_by_argument("loss", seen))
    thrice = one_update(optimizer, gradients, loss=3.0, unknown=1)
    assert seen == [{"loss": 3.0, "unknown": 1}]
    close(thrice, optax.tree.scale(3.0, once))
    differs(close, thrice, once)


@pytest.mark.parametrize("tiling", [None, Tiling(3), Tiling()])
def test_identity_grafted_on_identity_is_the_identity(tiling):
    gradients = tree(0)
    optimizer = graft(optax.identity(), optax.identity(), tiling=tiling)
    updates = one_update(optimizer, gradients)
    chex.assert_trees_all_close(updates, gradients, rtol=1e-6)
    differs(chex.assert_trees_all_close, updates, tree(1))
    sgd = graft(optax.sgd(0.1, 0.9), optax.sgd(0.1, 0.9), tiling=tiling)
    chex.assert_trees_all_close(
        one_update(sgd, gradients), optax.tree.scale(-0.1, gradients), rtol=1e-6
    )


def test_identity_grafted_on_identity_is_the_identity_of_complex_leaves():
    gradients = {"w": jnp.array([1.0, 1.0j])}
    updates = one_update(graft(optax.identity(), optax.identity()), gradients)
    chex.assert_trees_all_close(updates, gradients, rtol=1e-6)
    conjugate = jax.tree.map(jnp.conj, gradients)
    differs(chex.assert_trees_all_close, updates, conjugate)


@by_leaves_and_by_tiles
def test_neither_huge_nor_tiny_entries_break_the_length(tiling):
    def check(update, gradient, direction):
        np.testing.assert_allclose(length(update), length(gradient), rtol=1e-5)
        unit = np.asarray(direction, np.float64) / length(direction)
        cosine = np.vdot(np.asarray(update, np.float64) / length(update), unit)
        np.testing.assert_allclose(cosine, 1, rtol=1e-5)

    for size, other_size in itertools.product(EXTREMES, repeat=2):
        gradients = optax.tree.scale(np.float32(size), tree(0))
        directions = optax.tree.scale(np.float32(other_size), tree(0))
        # Alike leaf by leaf, these directions are alike tile by tile, too.
        updates = at_length(gradients, directions, tiling=tiling)
        for key in TREE:
            check(updates[key], gradients[key], directions[key])
            differs(check, updates[key], gradients[key] * 1.001, directions[key])
            differs(check, updates[key], gradients[key], -directions[key])


def test_entries_of_all_sizes_in_one_leaf():
    gradients = jnp.asarray(EXTREMES, jnp.float32)
    for direction in (gradients, gradients[::-1], jnp.ones(4), 1e-20 * jnp.ones(4)):
        updates = at_length(gradients, direction)
        np.testing.assert_allclose(length(updates), length(gradients), rtol=1e-5)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(length(updates), length(direction / 3), rtol=0.1)


def tiles_of(matrix: Any) -> list[Any]:
    """The tiles of a 6 x 4 matrix under Tiling(3)."""
    matrix = np.asarray(matrix)
    return [matrix[i : i + 3, j : j + 2] for i in (0, 3) for j in (0, 2)]


def test_tiling_takes_a_norm_for_each_tile():
    gradients, directions = tree(0), tree(10)

    def lengths(matrix):
        return np.asarray([length(tile) for tile in tiles_of(matrix)])

    by_tile = at_length(gradients, directions, tiling=Tiling(3))
    by_leaf = at_length(gradients, directions)
    close(
        tiles_of(by_tile["matrix"]),
        [
            grafted_by_hand(*pair)
            for pair in zip(
                tiles_of(gradients["matrix"]),
                tiles_of(directions["matrix"]),
                strict=True,
            )
        ],
    )
    close(lengths(by_tile["matrix"]), lengths(gradients["matrix"]))
    differs(close, lengths(by_leaf["matrix"]), lengths(gradients["matrix"]))
    for updates in (by_tile, by_leaf):
        for key, update in updates.items():
            np.testing.assert_allclose(
                length(update), length(gradients[key]), rtol=1e-5
            )
    # What has no tiles has a norm by leaf.
    for key in ("bias", "scale"):
        close(by_tile[key], by_leaf[key])
    differs(close, by_tile["kernel"], by_leaf["kernel"])
