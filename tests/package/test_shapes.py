"""Leaves to matrices to tiles, and back; and training that shows them to be alike."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import MatrixView, Tiling, default_view, jorge
from jorge_optax._stacks import from_stacks, plan_stacks, to_stacks
from jorge_optax._tiling import (
    as_matrices,
    cut_panels,
    cut_side,
    cut_tiles,
    from_matrices,
    join_tiles,
    matrices_shape,
    normalise_view,
)
from tests.helpers.trees import (
    EMBEDDING,
    SHAPES,
    WITHOUT_ROOTS,
    close,
    counted,
    differs,
    equal,
    normal,
    trainer,
)

# Shape of the leaf, its view, and the matrices that it should make.
VIEWS = (
    ((1, 5, 1), MatrixView((1,), (2,)), (1, 5, 1)),
    ((17, 1), MatrixView((0,), (1,)), (1, 17, 1)),
    ((13, 31), MatrixView((0,), (1,)), (1, 13, 31)),
    ((13, 31), MatrixView((1,), (0,)), (1, 31, 13)),
    ((3, 3, 64, 128), MatrixView((0, 1, 2), (3,)), (1, 576, 128)),
    ((3, 3, 64, 128), MatrixView((2, 1, 0), (3,)), (1, 576, 128)),
    ((3, 3, 64, 128), MatrixView((3,), (2, 0, 1)), (1, 128, 576)),
    ((3, 3, 64, 128), MatrixView((2,), (3,)), (9, 64, 128)),
    ((7, 7, 3, 64), MatrixView((0, 1, 2), (3,)), (1, 147, 64)),
    ((3, 3, 1, 256), MatrixView((0, 1, 2), (3,)), (1, 9, 256)),
    ((512, 8, 64), MatrixView((0, 1), (2,)), (1, 4096, 64)),
    ((512, 8, 64), MatrixView((0,), (1, 2)), (1, 512, 512)),
    ((512, 8, 64), MatrixView((0,), (2,)), (8, 512, 64)),
    ((12, 96, 40), MatrixView((1,), (2,)), (12, 96, 40)),
    ((3, 12, 96, 2, 20), MatrixView((2,), (4, 3)), (36, 96, 40)),
    (EMBEDDING, MatrixView((0,), (1,)), (1, *EMBEDDING)),
)


# Leaves and matrices.


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_default_view_merges_all_axes_but_the_last(shape):
    view = default_view(shape)
    if shape in WITHOUT_ROOTS:
        assert view is None
        return
    assert view is not None
    expected = (1, math.prod(shape[:-1]), shape[-1])
    assert matrices_shape(shape, view) == expected
    leaf = counted(shape)
    matrices = as_matrices(leaf, view)
    by_hand = leaf.reshape(expected)
    equal(matrices, by_hand)
    equal(from_matrices(matrices, shape, view), leaf)
    differs(equal, matrices[:, ::-1], by_hand)


@pytest.mark.parametrize(("shape", "view", "expected"), VIEWS, ids=str)
def test_matrices_are_inverted(shape, view, expected):
    leaf = counted(shape)
    assert normalise_view(shape, view) == view
    assert matrices_shape(shape, view) == expected
    matrices = as_matrices(leaf, view)
    chex.assert_shape(matrices, expected)
    equal(from_matrices(matrices, shape, view), leaf)
    differs(equal, from_matrices(matrices[:, ::-1], shape, view), leaf)


def test_every_view_of_three_axes_puts_every_entry_in_its_place():
    shape = (2, 3, 4)
    leaf = counted(shape)
    entries = np.asarray(leaf)
    seen = 0
    for order in itertools.permutations(range(3)):
        for first, last in ((1, 2), (1, 3), (2, 3)):
            view = MatrixView(order[:first], order[first:last])
            batch = sorted(set(range(3)) - {*view.rows, *view.columns})
            groups = (tuple(batch), view.rows, view.columns)
            sizes = [[shape[axis] for axis in axes] for axes in groups]
            matrices = np.asarray(as_matrices(leaf, view))
            for index in np.ndindex(*shape):
                place = tuple(
                    np.ravel_multi_index([index[axis] for axis in axes], size)
                    if axes
                    else 0
                    for axes, size in zip(groups, sizes, strict=True)
                )
                assert matrices[place] == entries[index]
            back = from_matrices(jnp.asarray(matrices), shape, view)
            equal(back, leaf)
            other = MatrixView(view.columns, view.rows)
            differs(
                equal,
                from_matrices(jnp.asarray(matrices), shape, other),
                leaf,
            )
            seen += 1
    assert seen == 18


def test_axes_given_in_another_order_give_another_matrix():
    leaf = counted((3, 3, 4, 5))
    default = as_matrices(leaf, MatrixView((0, 1, 2), (3,)))
    permuted = as_matrices(leaf, MatrixView((2, 0, 1), (3,)))
    by_hand = leaf.transpose(2, 0, 1, 3).reshape(1, 36, 5)
    equal(permuted, by_hand)
    differs(equal, default, by_hand)


@pytest.mark.parametrize(
    ("shape", "view", "expected"),
    [
        ((512, 8, 64), MatrixView((-3,), (-2, -1)), MatrixView((0,), (1, 2))),
        ((12, 96, 40), MatrixView((-2,), (2,)), MatrixView((1,), (2,))),
        ((3, 3, 64, 128), MatrixView((0, -3, 2), (-1,)), MatrixView((0, 1, 2), (3,))),
    ],
    ids=str,
)
def test_negative_axes_count_from_the_end(shape, view, expected):
    assert normalise_view(shape, view) == expected
    assert view != expected
    by_sign = Tiling(view=lambda path, shape: view)
    by_number = Tiling(view=lambda path, shape: expected)
    leaves = (("w", shape),)
    plan = plan_stacks(leaves, by_sign)
    assert plan == plan_stacks(leaves, by_number)
    assert plan != plan_stacks(leaves, Tiling(max_dim=2))
    leaf = counted(shape)
    equal(from_stacks(plan, to_stacks(plan, [leaf]), [leaf]), [leaf])


# Sides, panels and tiles.


def check_cuts(length: int, max_dim: int, cuts: list[tuple[int, int]]) -> None:
    lengths = [part for _, part in cuts]
    assert all(number >= 1 and part >= 1 for number, part in cuts)
    assert sum(number * part for number, part in cuts) == length
    assert max(lengths) <= max_dim
    assert len(set(lengths)) == len(cuts) <= 2
    assert max(lengths) - min(lengths) <= 1
    equal_parts = [
        parts
        for parts in range(1, length + 1)
        if length % parts == 0 and max_dim <= 2 * (length // parts) <= 2 * max_dim
    ]
    if equal_parts:
        assert cuts == [(equal_parts[0], length // equal_parts[0])]
    else:
        assert sum(number for number, _ in cuts) == math.ceil(length / max_dim)


@pytest.mark.parametrize("max_dim", [1, 2, 3, 7, 10, 64, 127, 128, 1000])
def test_a_side_is_cut_in_the_fewest_fitting_parts(max_dim):
    for length in (*range(1, 300), 1000, 2048, 4608, 4609):
        check_cuts(length, max_dim, cut_side(length, max_dim))


@pytest.mark.parametrize(
    ("length", "max_dim", "bad_cuts"),
    [
        (300, 128, [(3, 128)]),
        (300, 128, [(2, 128), (1, 44)]),
        (300, 128, [(2, 150)]),
        (300, 128, [(5, 60)]),
        (31, 10, [(1, 7), (2, 12)]),
        (31, 10, [(1, 7), (4, 6)]),
        (100, 128, [(2, 50)]),
    ],
)
def test_the_check_of_cuts_sees_bad_cuts(length, max_dim, bad_cuts):
    check_cuts(length, max_dim, cut_side(length, max_dim))
    differs(check_cuts, length, max_dim, bad_cuts)


@pytest.mark.parametrize("max_dim", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 6, 4), (3, 7, 5), (2, 1, 11), (2, 13, 8)], ids=str
)
def test_tiles_are_slices_and_are_joined_again(shape, max_dim):
    matrices = counted(shape)
    entries = np.asarray(matrices)
    panels = cut_panels(*shape[1:], max_dim)
    assert len(panels) <= 4
    stacks = jax.jit(lambda x: [cut_tiles(x, panel) for panel in panels])(matrices)
    join = jax.jit(lambda tiles: join_tiles(tiles, panels))
    for panel, stack in zip(panels, stacks, strict=True):
        top, left, down, across, rows, columns = panel
        slices = [
            matrix[i : i + rows, j : j + columns]
            for matrix in entries
            for i in range(top, top + down * rows, rows)
            for j in range(left, left + across * columns, columns)
        ]
        equal(stack, jnp.asarray(np.stack(slices)))
    equal(join(stacks), matrices)
    assert sum(stack.size for stack in stacks) == matrices.size
    if matrices.size > 1:
        turned = [np.flip(stack) for stack in stacks]
        differs(equal, join(turned), matrices)


# The same training, written in two ways.

STEPS = 5


def test_a_leaf_with_batch_axes_equals_separate_leaves():
    params, gradients = normal(0, (3, 6, 4)), normal(1, (STEPS, 3, 6, 4))
    tiling = Tiling(view=lambda path, shape: MatrixView((-2,), (-1,)))
    train = trainer(jorge(0.1, weight_decay=0.1, update_interval=2, tiling=tiling))
    together = train(params, gradients)
    together = list(np.swapaxes(together, 0, 1))
    layers, their_gradients = list(params), list(np.swapaxes(gradients, 0, 1))
    close(together, train(layers, their_gradients))
    differs(close, together, train(layers, their_gradients[::-1]))


def test_a_convolution_kernel_equals_its_matrix():
    params, gradients = normal(0, (3, 3, 4, 8)), normal(1, (STEPS, 3, 3, 4, 8))
    train = trainer(jorge(0.1, weight_decay=0.1, update_interval=2))
    kernel = train(params, gradients).reshape(STEPS, 36, 8)
    matrix = train(params.reshape(36, 8), gradients.reshape(STEPS, 36, 8))
    close(kernel, matrix)
    turned = gradients.swapaxes(-2, -3).reshape(STEPS, 36, 8)
    differs(close, kernel, train(params.reshape(36, 8), turned))


@pytest.mark.parametrize("grafting", ["sgd", None])
def test_tiles_equal_parameters_of_their_own(grafting):
    shapes = {"even": (6, 4), "uneven": (5, 4)}
    params = {key: normal(0, shape) for key, shape in shapes.items()}
    gradients = {key: normal(1, (STEPS, *shape)) for key, shape in shapes.items()}

    def tiles(tree):
        return {
            key: [
                np.asarray(tree[key])[..., i : i + panel.rows, j : j + panel.columns]
                for panel in cut_panels(*shape, 3)
                for i in np.arange(panel.down) * panel.rows + panel.top
                for j in np.arange(panel.across) * panel.columns + panel.left
            ]
            for key, shape in shapes.items()
        }

    def optimizer(tiling):
        return jorge(
            0.1,
            weight_decay=0.1,
            update_interval=2,
            grafting=grafting,
            tiling=tiling,
        )

    assert {key: len(parts) for key, parts in tiles(params).items()} == {
        "even": 2 * 2,
        "uneven": 2 * 2,
    }
    tiled = trainer(optimizer(Tiling(3)))(params, gradients)
    apart = trainer(optimizer(None))(tiles(params), tiles(gradients))
    close(tiles(tiled), apart)
    large = trainer(optimizer(Tiling(6)))(params, gradients)
    differs(close, tiles(large), apart)


def test_large_enough_tiles_equal_no_tiles():
    params, gradients = normal(0, (7, 5)), normal(1, (STEPS, 7, 5))

    def train(max_dim):
        optimizer = jorge(0.1, update_interval=2, tiling=Tiling(max_dim))
        return trainer(optimizer)(params, gradients)

    untiled = train(10**9)
    close(train(7), untiled)
    differs(close, train(6), untiled)
