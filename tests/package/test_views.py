"""The view of a leaf is chosen by its path and shape, once."""

import collections
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import pytest

from jorge_optax import MatrixView, Tiling, default_view, scale_by_jorge, views
from jorge_optax._stacks import from_stacks, normalise_path, plan_tree, to_stacks
from tests.helpers.trees import counted, equal, paths_of


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def test_paths_of_dicts_lists_tuples_and_named_tuples():
    x = jnp.zeros((2, 2))
    tree = {"layers": [{"kernel": x}, (x, x)], "head": Layer(kernel=x, bias=x), 3: x}
    by_type = collections.OrderedDict((key, tree[key]) for key in ("head", "layers"))
    assert paths_of(by_type) == [
        "head/kernel",
        "head/bias",
        "layers/0/kernel",
        "layers/1/0",
        "layers/1/1",
    ]
    assert paths_of({3: x}) == ["3"]
    assert paths_of(x) == [""]


def test_a_key_that_happens_to_be_value_is_kept():
    x = jnp.zeros((2, 2))
    assert paths_of({"attention": {"key": x, "query": x, "value": x}}) == [
        "attention/key",
        "attention/query",
        "attention/value",
    ]
    assert paths_of({"value": x}) == ["value"]
    assert paths_of({"value": {"kernel": x}}) == ["value/kernel"]
    attribute = jax.tree_util.GetAttrKey("value")
    key = jax.tree_util.DictKey("value")
    layer = jax.tree_util.DictKey("layer")
    assert normalise_path((layer, key)) == "layer/value"
    assert normalise_path((layer, attribute)) == "layer"
    assert normalise_path((layer, key, attribute)) == "layer/value"
    assert normalise_path((attribute, layer)) == "value/layer"
    assert normalise_path((attribute,)) == "value"


def test_the_view_is_chosen_by_path_and_by_shape():
    params = {
        "embedding": {"table": jnp.zeros((50, 4))},
        "layers": [{"kernel": jnp.zeros((4, 2, 3)), "bias": jnp.zeros((6,))}],
        "scanned": {"kernel": jnp.zeros((5, 4, 6))},
    }

    def view(path, shape):
        if path == "embedding/table":
            return None
        if path.startswith("scanned/"):
            return MatrixView((1,), (2,))
        if shape == (4, 2, 3):
            return MatrixView((0,), (1, 2))
        return default_view(shape)

    plan = plan_tree(params, Tiling(view=view))
    assert {leaf.path: leaf.view for leaf in plan.leaves} == {
        "embedding/table": None,
        "layers/0/bias": None,
        "layers/0/kernel": MatrixView((0,), (1, 2)),
        "scanned/kernel": MatrixView((1,), (2,)),
    }
    assert plan.stacks == {"4x6": (6, 4, 6)}
    assert plan_tree(params, Tiling()).stacks == {
        "50x4": (1, 50, 4),
        "8x3": (1, 8, 3),
        "20x6": (1, 20, 6),
    }
    state = scale_by_jorge(tiling=Tiling(view=view)).init(params)
    chex.assert_shape(state.roots["4x6"].left, (6, 4, 4))
    chex.assert_shape(state.roots["4x6"].right, (6, 6, 6))
    assert list(state.roots) == ["4x6"]


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((17, 1), MatrixView((0,), (1,))),
        ((1, 17), MatrixView((0,), (1,))),
        ((4, 1, 6), MatrixView((1,), (2,))),
        ((0, 4), MatrixView((0,), (1,))),
        ((0, 4, 4), MatrixView((1,), (2,))),
    ],
    ids=str,
)
def test_a_view_with_a_side_shorter_than_two_gives_no_roots(shape, view):
    leaf = counted(shape)
    plan = plan_tree([leaf], Tiling(view=lambda path, shape: view))
    assert plan.leaves[0].view is None
    assert plan.stacks == {}
    assert to_stacks(plan, [leaf]) == {}
    equal(from_stacks(plan, {}, [leaf]), [leaf])


def test_the_plan_is_made_once():
    params = {"w": jnp.zeros((6, 4)), "b": jnp.zeros((4,))}
    abstract = jax.eval_shape(lambda: params)
    plan = plan_tree(params, Tiling(3))
    assert plan_tree(params, Tiling(3)) is plan
    assert plan_tree(abstract, Tiling(3)) is plan
    assert plan_tree({**params, "w": params["w"] + 1}, Tiling(3)) is plan
    assert plan_tree(params, Tiling(4)) is not plan
    assert plan_tree({"w": params["w"]}, Tiling(3)) is not plan


# Ready-made views.

READY = [
    (views.transformer, "a/query/kernel", (768, 12, 64), MatrixView((0,), (1, 2))),
    (views.transformer, "a/key", (768, 12, 64), MatrixView((0,), (1, 2))),
    (views.transformer, "a/q_proj/kernel", (768, 12, 64), MatrixView((0,), (1, 2))),
    (views.transformer, "a/out/kernel", (12, 64, 768), MatrixView((0, 1), (2,))),
    (views.transformer, "a/query/kernel", (768, 768), MatrixView((0,), (1,))),
    (views.transformer, "monkey/kernel", (3, 64, 128), MatrixView((0, 1), (2,))),
    (views.transformer, "a/query/bias", (12, 64), None),
    (views.transformer, "Embed_0/embedding", (50257, 768), None),
    (views.transformer, "mlp/kernel", (768, 3072), MatrixView((0,), (1,))),
    (views.scanned("layers"), "layers/w", (12, 512, 512), MatrixView((1,), (2,))),
    (
        views.scanned("layers"),
        "layers/conv",
        (4, 3, 3, 64, 64),
        MatrixView((1, 2, 3), (4,)),
    ),
    (views.scanned("layers"), "layers/b", (12, 512), None),
    (views.scanned("layers"), "head", (512, 10), MatrixView((0,), (1,))),
    (
        views.scanned("layers", view=views.transformer),
        "layers/value/kernel",
        (12, 768, 12, 64),
        MatrixView((1,), (2, 3)),
    ),
    (
        views.scanned("w", view=lambda path, shape: MatrixView((-2,), (-1,))),
        "w",
        (5, 4, 3),
        MatrixView((-2,), (-1,)),
    ),
    (views.without("lora"), "dense/lora_a", (768, 4), None),
    (views.without("lora"), "dense/kernel", (768, 4), MatrixView((0,), (1,))),
    (views.without("/head/"), "head/kernel", (768, 4), None),
    (views.without("/head/"), "head", (768, 4), None),
    (views.without("/head/"), "a/multihead/kernel", (768, 4), MatrixView((0,), (1,))),
    (views.without("/head/"), "heads/kernel", (768, 4), MatrixView((0,), (1,))),
]


@pytest.mark.parametrize(
    ("view", "path", "shape", "expected"),
    READY,
    ids=[f"{i}-{path}" for i, (_, path, *_) in enumerate(READY)],
)
def test_ready_made_views(view, path, shape, expected):
    assert view(path, shape) == expected
    assert plan_tree({}, Tiling(view=view)).leaves == ()


def test_ready_made_views_are_equal_if_their_words_are():
    assert Tiling(view=views.without("a", "b")) == Tiling(view=views.without("a", "b"))
    assert Tiling(view=views.without("a")) != Tiling(view=views.without("b"))


@pytest.mark.parametrize("make", [views.scanned, views.without])
@pytest.mark.parametrize("words", [(), (3,), ("",), (views.transformer,)])
def test_ready_made_views_take_words(make, words):
    with pytest.raises(TypeError, match="takes the words to look for"):
        make(*words)


WHOLE = [
    # Shape, view, number of tiles by their shape.
    ((768, 12, 64), MatrixView((0,), (1, 2)), {"256x256": 9}),
    ((70, 14, 72), MatrixView((0,), (1, 2)), {"70x144": 7}),
    ((12, 512, 512), MatrixView((0, 1), (2,)), {"256x256": 48}),
    ((8, 300, 64), MatrixView((0, 1), (2,)), {"150x64": 16}),
    ((4, 3, 3, 64, 64), MatrixView((0, 1, 2, 3), (4,)), {"192x64": 12}),
]


@pytest.mark.parametrize(("shape", "view", "tiles"), WHOLE, ids=str)
def test_tiles_do_not_straddle_heads_or_layers(shape, view, tiles):
    struct = jax.ShapeDtypeStruct(shape, "float32")
    plan = plan_tree([struct], Tiling(view=lambda path, shape: view))
    assert {key: number for key, (number, *_) in plan.stacks.items()} == tiles
    leaf = counted(shape)
    equal(from_stacks(plan, to_stacks(plan, [leaf]), [leaf]), [leaf])


def test_kernels_of_convolutions_are_cut_as_before():
    for shape, key in ((3, 3, 64, 128), "192x128"), ((5, 5, 48, 64), "240x64"):
        plan = plan_tree([jax.ShapeDtypeStruct(shape, "float32")], Tiling())
        assert list(plan.stacks) == [key]
