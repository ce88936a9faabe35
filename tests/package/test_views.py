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
from tests.helpers.trees import paths_of, structs


class Layer(NamedTuple):
    kernel: Any
    bias: Any


X = jnp.zeros((2, 2))
BY_TYPE = [("head", Layer(X, X)), ("layers", [{"kernel": X}, (X, X)])]
PATHS = (
    (
        collections.OrderedDict(BY_TYPE),
        "head/kernel head/bias layers/0/kernel layers/1/0 layers/1/1",
    ),
    ({3: X}, "3"),
    ({"attention": {"key": X, "value": X}}, "attention/key attention/value"),
    ({"value": X}, "value"),
    ({"value": {"kernel": X}}, "value/kernel"),
)


@pytest.mark.parametrize(("tree", "expected"), PATHS, ids=[x for _, x in PATHS])
def test_paths_of_trees_of_all_kinds(tree, expected):
    assert paths_of(tree) == expected.split()
    assert paths_of(X) == [""]


default, scanned = views.default_view, views.scanned("layers")
DENSE, MERGED = MatrixView((0,), (1,)), MatrixView((0, 1), (2,))
HEADS = MatrixView((0,), (1, 2))
VIEWS = (
    (default, "mlp/kernel", (768, 3072), DENSE),
    (default, "conv/kernel", (3, 3, 64, 128), MatrixView((0, 1, 2), (3,))),
    (default, "a/query/kernel", (768, 12, 64), HEADS),
    (default, "a/key", (768, 12, 64), HEADS),
    (default, "a/Value/kernel", (768, 12, 64), HEADS),
    (default, "a/q_proj/kernel", (768, 12, 64), HEADS),
    (default, "a/qkv/kernel", (768, 12, 192), HEADS),
    (default, "a/query/kernel", (768, 768), DENSE),
    (default, "a/out/kernel", (12, 64, 768), MERGED),
    (default, "monkey/kernel", (3, 64, 128), MERGED),
    (default, "a/query/bias", (12, 64), None),
    (default, "mlp/bias", (3072,), None),
    (default, "scale", (), None),
    (default, "row", (1, 17), None),
    (default, "column", (17, 1), None),
    (scanned, "layers/w", (12, 512, 512), MatrixView((1,), (2,))),
    (scanned, "layers/conv", (4, 3, 3, 64, 64), MatrixView((1, 2, 3), (4,))),
    (scanned, "layers/value/kernel", (12, 768, 12, 64), MatrixView((1,), (2, 3))),
    (scanned, "layers/b", (12, 512), None),
    (scanned, "layers/query/bias", (12, 12, 64), None),
    (scanned, "LAYERS/w", (12, 512, 512), MatrixView((1,), (2,))),
    (scanned, "head", (512, 10), DENSE),
    (
        views.scanned("w", view=lambda path, shape: MatrixView((-2,), (-1,))),
        "w",
        (5, 4, 3),
        MatrixView((-2,), (-1,)),
    ),
)


@pytest.mark.parametrize(("view", "path", "shape", "expected"), VIEWS)
def test_the_view_is_chosen_by_path_and_by_shape(view, path, shape, expected):
    assert view(path, shape) == expected
    table = describe(structs(**{path: shape}), jorge(0.1, tiling=Tiling(view=view)))
    assert (table.leaves[0].matrix == "-") == (expected is None)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((17, 1), ((0,), (1,))),
        ((1, 17), ((0,), (1,))),
        ((4, 1, 6), ((1,), (2,))),
        ((0, 4), ((0,), (1,))),
        ((0, 4, 4), ((1,), (2,))),
    ],
)
def test_a_view_with_a_side_shorter_than_two_gives_no_roots(shape, axes):
    tiling = Tiling(view=lambda path, shape: MatrixView(*axes))
    tx, params = jorge(0.1, tiling=tiling), structs(w=shape)
    assert describe(params, tx).leaves[0].matrix == "-"
    updates, _ = jax.eval_shape(tx.update, params, jax.eval_shape(tx.init, params))
    assert updates["w"].shape == shape


def test_views_are_equal_if_their_words_are():
    assert Tiling(view=views.scanned("a", "b")) == Tiling(view=views.scanned("a", "b"))
    assert Tiling(view=views.scanned("a")) != Tiling(view=views.scanned("b"))


@pytest.mark.parametrize("words", [(), (3,), ("",), (views.default_view,)])
def test_scanned_takes_words(words):
    with pytest.raises(TypeError, match="views.scanned takes the words to look for"):
        views.scanned(*words)


# Attention as flax has it, and what it costs.


def block(width, heads, library):
    """Paths and shapes of a transformer's block; tests/contracts has flax's own."""
    size = width // heads
    attention, mlp = {
        "linen": ("MultiHeadDotProductAttention_0", "Dense_{}"),
        "nnx": ("attention", "mlp/layers/{}"),
    }[library]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in ("query", "key", "value"):
        shapes[f"{attention}/{name}/kernel"] = width, heads, size
        shapes[f"{attention}/{name}/bias"] = heads, size
    shapes[f"{attention}/out/kernel"] = heads, size, width
    shapes[f"{attention}/out/bias"] = (width,)
    for i, (rows, columns) in enumerate(((width, 4 * width), (4 * width, width))):
        shapes[mlp.format(i) + "/kernel"] = rows, columns
        shapes[mlp.format(i) + "/bias"] = (columns,)
    return structs(**shapes)


@pytest.mark.parametrize("library", ["linen", "nnx"])
@pytest.mark.parametrize(("width", "heads"), [(512, 8), (768, 12), (1024, 16)])
def test_flax_attention_costs_twice_adamws_state(width, heads, library):
    params = block(width, heads, library)
    options = {"rule": Whitening(), "grafting": lengths.Adam()}
    for tx in (jorge(0.1, **options), from_adamw(0.1)):
        table = describe(params, tx)
        assert table.notes == ()
        assert "!" not in str(table)
        assert table.state_bytes <= 2.1 * table.adamw_bytes
        for leaf in table.leaves:
            is_kernel = leaf.path.endswith("kernel")
            assert leaf.preconditioned.startswith("yes" if is_kernel else "no")
            if "attention" in leaf.path.lower() and is_kernel:
                assert leaf.matrix == f"{width}x{width}"
    # All axes but the last merged: what the view is for.
    merged = Tiling(view=lambda path, shape: views.default_view("", shape))
    table = describe(params, jorge(0.1, tiling=merged, **options))
    assert table.state_bytes > 2.1 * table.adamw_bytes
