"""Parameters to matrices to tiles, and back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import MatrixView, Rule, Tiling, describe, jorge, scale_by_jorge
from tests.helpers.trees import QUICK, counted, differs, equal, structs


@dataclasses.dataclass(frozen=True)
class Places(Rule):
    """A rule whose direction has each entry's place in its tile, or the entry."""

    places: bool = False

    def init(self, real, dtype):
        return real.astype(dtype)

    def observe(self, left, right, gradient, size):
        return left, right

    def refresh(self, root, seen, real, rounding):
        return root

    def precondition(self, left, right, matrix):
        if self.places:
            return jnp.arange(matrix.size, dtype=matrix.dtype).reshape(matrix.shape)
        return matrix


def through_tiles(tree, tiling, places=False):
    """Cuts a tree into tiles, and puts them back."""
    optimizer = scale_by_jorge(rule=Places(places), tiling=tiling)

    def update(tree):
        return optimizer.update(tree, optimizer.init(tree))[0]

    return jax.jit(update, compiler_options=QUICK)(tree)


# Shape, view (None is the default), max_dim, and what it should give.
TILES = (
    ((), None, 256, "-", "-"),
    ((1, 5, 1), None, 256, "-", "-"),
    ((17, 1), None, 256, "-", "-"),
    ((2, 1, 1, 2), None, 256, "2x2", "1 of 2x2"),
    ((13, 31), None, 5, "13x31", "21 of 5x5"),
    ((13, 31), MatrixView((1,), (0,)), 10, "31x13", "8 of 8x7"),
    ((3, 3, 64, 128), None, 256, "576x128", "3 of 192x128"),
    ((3, 3, 64, 128), MatrixView((3,), (2, 0, 1)), 256, "128x576", "3 of 128x192"),
    ((3, 3, 64, 128), MatrixView((2,), (3,)), 256, "9 of 64x128", "9 of 64x128"),
    ((512, 8, 64), MatrixView((-3,), (-2, -1)), 256, "512x512", "4 of 256x256"),
    ((3, 12, 96, 2, 20), MatrixView((2,), (4, 3)), 50, "36 of 96x40", "72 of 48x40"),
)


def places_by_hand(shape, view, height, width):
    """Each entry's place in its tile of the matrix that NumPy makes of a parameter."""
    indices = np.indices(shape)
    i, j = (
        np.ravel_multi_index([indices[x] for x in axes], [shape[x] for x in axes])
        for axes in view
    )
    return (i % height) * width + j % width


@pytest.mark.parametrize(("shape", "view", "max_dim", "matrix", "tiles"), TILES)
def test_every_entry_is_put_in_its_place_and_back(shape, view, max_dim, matrix, tiles):
    tiling = Tiling(max_dim, view=lambda *leaf: view) if view else Tiling(max_dim)
    (row,) = describe(structs(w=shape), jorge(0.1, tiling=tiling)).leaves
    assert (row.matrix, row.tiles) == (matrix, tiles)
    leaf = counted(shape, start=1)
    equal(through_tiles(leaf, tiling), leaf)
    if tiles == "-":
        return
    height, width = map(int, tiles.split(" of ")[1].split("x"))
    last = len(shape) - 1
    view = view or MatrixView(tuple(range(last)), (last,))
    places = through_tiles(leaf, tiling, places=True)
    expected = places_by_hand(shape, view, height, width).astype(np.float32)
    equal(places, jnp.asarray(expected))
    differs(equal, places, jnp.asarray(expected[..., ::-1].copy()))


def test_parameters_that_share_a_stack_are_kept_apart():
    shapes = ((6, 4), (2, 3, 4), (9, 8), (4,), (6, 4), (0, 4), (5, 31), ())
    leaves = [counted(shape, 1000 * i) for i, shape in enumerate(shapes)]
    tiling = Tiling(6)
    found = through_tiles(leaves, tiling)
    equal(found, leaves)
    differs(equal, [found[4], *found[1:]], leaves)
    tiles = [leaf.tiles for leaf in describe(leaves, jorge(0.1, tiling=tiling)).leaves]
    assert tiles.count("1 of 6x4") == 3
