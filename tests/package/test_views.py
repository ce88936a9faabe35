"""The view of a parameter follows from its path and shape, alike in all libraries."""

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jorge_optax import (
    MatrixView,
    Tiling,
    Whitening,
    describe,
    from_adamw,
    jorge,
    lengths,
    views,
)
from tests.helpers.trees import structs


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def test_paths_of_trees_of_all_kinds():
    x = jnp.zeros((2, 2))
    tree = {"head": Layer(x, x), "layers": [{"kernel": x}, (x, x)], "value": {3: x}}
    expected = "head/kernel head/bias layers/0/kernel layers/1/0 layers/1/1 value/3"
    leaves = describe(collections.OrderedDict(tree)).leaves
    assert [leaf.path for leaf in leaves] == expected.split()
    assert describe(x).leaves[0].path == ""


default, scanned = views.default_view, views.scanned("layers")
DENSE, MERGED = MatrixView((0,), (1,)), MatrixView((0, 1), (2,))
HEADS = MatrixView((0,), (1, 2))
VIEWS = (
    (default, "mlp/kernel", (768, 3072), DENSE),
    (default, "conv/kernel", (3, 3, 64, 128), MatrixView((0, 1, 2), (3,))),
    (default, "a/query/kernel", (768, 12, 64), HEADS),
    (default, "a/q_proj/kernel", (768, 12, 64), HEADS),
    (default, "a/out/kernel", (12, 64, 768), MERGED),
    (default, "monkey/kernel", (3, 64, 128), MERGED),
    (default, "a/query/bias", (12, 64), None),
    (default, "scale", (), None),
    (default, "column", (17, 1), None),
    (scanned, "layers/w", (12, 512, 512), MatrixView((1,), (2,))),
    (scanned, "layers/value/kernel", (12, 768, 12, 64), MatrixView((1,), (2, 3))),
    (scanned, "layers/b", (12, 512), None),
    (scanned, "layers/query/bias", (12, 12, 64), None),
    (scanned, "head", (512, 10), DENSE),
)


@pytest.mark.parametrize(("view", "path", "shape", "expected"), VIEWS)
def test_the_view_is_chosen_by_path_and_by_shape(view, path, shape, expected):
    assert view(path, shape) == expected
    table = describe(structs(**{path: shape}), jorge(0.1, tiling=Tiling(view=view)))
    assert (table.leaves[0].matrix == "-") == (expected is None)


SHORT = (((1, 17), (0,), (1,)), ((4, 1, 6), (1,), (2,)), ((0, 4), (0,), (1,)))


@pytest.mark.parametrize(("shape", "rows", "columns"), SHORT)
def test_a_view_with_a_side_shorter_than_two_gives_no_roots(shape, rows, columns):
    tiling = Tiling(view=lambda path, shape: MatrixView(rows, columns))
    tx, params = jorge(0.1, tiling=tiling), structs(w=shape)
    assert describe(params, tx).leaves[0].matrix == "-"
    updates, _ = jax.eval_shape(tx.update, params, jax.eval_shape(tx.init, params))
    assert updates["w"].shape == shape


def test_views_are_equal_if_their_words_are():
    assert Tiling(view=views.scanned("a", "b")) == Tiling(view=views.scanned("a", "b"))
    assert Tiling(view=views.scanned("a")) != Tiling(view=views.scanned("b"))
    for words in ((), (3,), ("",), (views.default_view,)):
        with pytest.raises(TypeError, match="views.scanned takes the words to look"):
            views.scanned(*words)


# Attention as flax has it, and what it costs; tests/contracts has flax's own modules.

WIDTH, COUNT, SIZE = 768, 12, 64
QKV = "query", "key", "value"
BLOCK = {
    **{f"attention/{x}/kernel": (WIDTH, COUNT, SIZE) for x in QKV},
    **{f"attention/{x}/bias": (COUNT, SIZE) for x in QKV},
    "attention/out/kernel": (COUNT, SIZE, WIDTH),
    "mlp/layers/0/kernel": (WIDTH, 4 * WIDTH),
    "mlp/layers/1/kernel": (4 * WIDTH, WIDTH),
    "mlp/layers/1/bias": (WIDTH,),
}


def test_flax_attention_costs_twice_adamws_state():
    params = structs(**BLOCK)
    options = {"rule": Whitening(), "grafting": lengths.Adam()}
    for tx in (jorge(0.1, **options), from_adamw(0.1)):
        table = describe(params, tx)
        assert table.notes == ()
        assert table.state_bytes <= 2.1 * table.adamw_bytes
        for leaf in table.leaves:
            is_kernel = leaf.path.endswith("kernel")
            assert leaf.preconditioned.startswith("yes" if is_kernel else "no")
            if "attention" in leaf.path and is_kernel:
                assert leaf.matrix == f"{WIDTH}x{WIDTH}"
    # All axes but the last merged: what the view is for.
    merged = Tiling(view=lambda path, shape: views.default_view("", shape))
    table = describe(params, jorge(0.1, tiling=merged, **options))
    assert table.state_bytes > 2.1 * table.adamw_bytes
