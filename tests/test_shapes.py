"""Leaves to matrices to tiles to stacks, and back: three steps, each invertible."""

import collections
import itertools
import math
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jorge_optax import MatrixView, Tiling, default_view, jorge, scale_by_jorge
from jorge_optax._matrices import (
    as_matrices,
    from_matrices,
    matrices_shape,
    normalise_view,
)
from jorge_optax._stacks import (
    from_stacks,
    normalise_path,
    plan_stacks,
    plan_tree,
    to_stacks,
)
from jorge_optax._tiling import cut_panels, cut_side, cut_tiles, join_tiles

EMBEDDING = (32000, 512)
SHAPES = (
    (),
    (1,),
    (5,),
    (1, 5, 1),
    (1, 17),
    (17, 1),
    (2, 2),
    (13, 31),
    (2, 1, 1, 2),
    (3, 3, 64, 128),
    (7, 7, 3, 64),
    (3, 3, 1, 256),
    (512, 8, 64),
    (12, 96, 40),
    EMBEDDING,
)
WITHOUT_ROOTS = ((), (1,), (5,), (1, 5, 1), (1, 17), (17, 1))
MAX_DIMS = (1, 2, 7, 64, 256, 100_000)

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


def counted(shape: tuple[int, ...], start: int = 0) -> jax.Array:
    """An array of which no two entries are equal (exact in float32 up to 2**24)."""
    count = math.prod(shape)
    assert start + count <= 2**24
    return jnp.asarray(np.arange(start, start + count, dtype=np.float32).reshape(shape))


def normal(seed: int, shape: tuple[int, ...]) -> jax.Array:
    entries = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(entries.astype(np.float32))


def differs(assertion: Any, *trees: Any) -> None:
    """The negative control: the assertion does fail on what is not equal."""
    with pytest.raises(AssertionError):
        assertion(*trees)


def equal(actual: Any, expected: Any) -> None:
    """Equality of every entry, shape and dtype; quick to fail on large arrays."""
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(x, y)


def close(actual: Any, expected: Any) -> None:
    chex.assert_trees_all_close(actual, expected, rtol=2e-5, atol=1e-6)


def trainer(optimizer: Any) -> Any:
    """Training from params by gradients of all steps; returns all updates."""

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), updates

    def train(params, gradients):
        return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[1]

    # Quick to compile rather than quick to run.
    return jax.jit(train, compiler_options={"xla_backend_optimization_level": 0})


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


# Stacks.


def leaves_of(shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    starts = itertools.accumulate((math.prod(shape) for shape in shapes), initial=0)
    return [counted(shape, start) for shape, start in zip(shapes, starts, strict=False)]


def check_stacks(leaves: list[jax.Array], tiling: Tiling) -> dict[str, jax.Array]:
    """Stacks are as planned, hold each entry of the matrices once, and go back."""
    plan = plan_tree(leaves, tiling)
    stacks = jax.jit(lambda leaves: to_stacks(plan, leaves))(leaves)
    assert {key: stack.shape for key, stack in stacks.items()} == plan.stacks
    for key, (_, rows, columns) in plan.stacks.items():
        assert key == f"{rows}x{columns}"
        assert max(rows, columns) <= tiling.max_dim
    in_leaves = [
        np.ravel(leaf)
        for leaf, leaf_plan in zip(leaves, plan.leaves, strict=True)
        if leaf_plan.view
    ]
    in_stacks = [np.ravel(stack) for stack in stacks.values()]
    assert sum(map(len, in_stacks)) == sum(map(len, in_leaves))
    equal(np.sort(np.concatenate(in_stacks)), np.sort(np.concatenate(in_leaves)))
    back = jax.jit(lambda stacks: from_stacks(plan, stacks, leaves))
    equal(back(stacks), leaves)
    turned = {key: stack[::-1, ::-1] for key, stack in stacks.items()}
    if tiling.max_dim > 1:
        differs(equal, back(turned), leaves)
    return stacks


@pytest.mark.parametrize("max_dim", MAX_DIMS)
def test_stacks_of_many_leaves_are_inverted_without_padding(max_dim):
    shapes = tuple(shape for shape in SHAPES if shape != EMBEDDING)
    leaves = leaves_of(shapes)
    tiling = Tiling(max_dim)
    check_stacks(leaves, tiling)
    plan = plan_tree(leaves, tiling)
    without = tuple(leaf.shape for leaf in plan.leaves if leaf.view is None)
    assert without == WITHOUT_ROOTS


@pytest.mark.parametrize("max_dim", [1, 256, 511])
def test_stacks_of_an_embedding_are_inverted_without_padding(max_dim):
    leaves = [counted(EMBEDDING)]
    plan = plan_tree(leaves, Tiling(max_dim))
    stacks = jax.jit(lambda leaves: to_stacks(plan, leaves))(leaves)
    assert sum(stack.size for stack in stacks.values()) == math.prod(EMBEDDING)
    back = jax.jit(lambda stacks: from_stacks(plan, stacks, leaves))
    equal(back(stacks), leaves)
    turned = {key: stack[::-1] for key, stack in stacks.items()}
    differs(equal, back(turned), leaves)


def test_leaves_share_stacks():
    shapes = ((4, 6), (3,), (2, 2, 6), (8, 6), (3, 4, 6))
    leaves = leaves_of(shapes)

    def view(path, shape):
        return MatrixView((1,), (2,)) if path == "4" else default_view(shape)

    tiling = Tiling(6, view)
    plan = plan_tree(leaves, tiling)
    assert plan.stacks == {"4x6": (1 + 1 + 2 + 3, 4, 6)}
    assert [leaf.places for leaf in plan.leaves] == [
        (("4x6", 0),),
        (),
        (("4x6", 1),),
        (("4x6", 2),),
        (("4x6", 4),),
    ]
    (stack,) = check_stacks(leaves, tiling).values()
    parts = [leaves[i].reshape(-1, 4, 6) for i in (0, 2, 3, 4)]
    by_hand = jnp.concatenate(parts)
    equal(stack, by_hand)
    differs(equal, stack, by_hand[::-1])


def test_panels_of_two_lengths_share_stacks_over_leaves():
    # 7 is cut into 3 + 2 + 2 and 5 into 3 + 2.
    leaves = leaves_of(((7, 5), (2, 7, 3), (3, 2)))
    view = {3: MatrixView((1,), (2,)), 2: MatrixView((0,), (1,))}
    tiling = Tiling(3, lambda path, shape: view[len(shape)])
    stacks = check_stacks(leaves, tiling)
    counts = {key: len(stack) for key, stack in stacks.items()}
    assert counts == {"3x3": 1 + 2, "3x2": 1 + 1, "2x3": 2 + 4, "2x2": 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip_keeps_every_bit(dtype):
    info = jnp.finfo(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.tiny, info.tiny / 4]
    values = np.random.default_rng(0).normal(size=(7, 5))
    values.ravel()[: len(special)] = special
    leaf = jnp.asarray(values.astype(jnp.dtype(dtype)))
    plan = plan_tree([leaf], Tiling(3))
    round_trip = jax.jit(lambda x: from_stacks(plan, to_stacks(plan, [x]), [x]))
    (back,) = round_trip(leaf)
    assert back.dtype == leaf.dtype
    assert np.asarray(back).tobytes() == np.asarray(leaf).tobytes()
    positive_zero = leaf.at[0, 1].set(0.0)
    assert np.asarray(positive_zero).tobytes() != np.asarray(leaf).tobytes()


def test_resnet50_needs_few_stacks_and_no_padding():
    shapes = pytest.importorskip("benchmarks.shapes")
    params = shapes.resnet(50)
    plan = plan_tree(params, Tiling())
    total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    matrices = [leaf for leaf in plan.leaves if leaf.view]
    vectors = [leaf for leaf in plan.leaves if not leaf.view]
    assert total == 25_557_032
    assert len(matrices) == 53 + 1
    assert all(len(leaf.shape) == 1 for leaf in vectors)
    in_matrices = sum(math.prod(leaf.shape) for leaf in matrices)
    assert in_matrices == total - 2 * 26_560 - 1000
    assert sum(map(math.prod, plan.stacks.values())) == in_matrices
    assert len(plan.stacks) <= 16
    assert max(max(shape[1:]) for shape in plan.stacks.values()) <= 256
    assert len(plan_tree(params, Tiling(1000)).stacks) > len(plan.stacks)


# The view of a leaf, by path and shape.


class Layer(NamedTuple):
    kernel: Any
    bias: Any


class Module(eqx.Module):
    weight: jax.Array
    layers: list[eqx.nn.Linear]
    name: str = eqx.field(static=True, default="module")


def paths_of(tree: Any) -> list[str]:
    return [leaf.path for leaf in plan_tree(tree, Tiling()).leaves]


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


def test_paths_of_an_equinox_module():
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    module = Module(jnp.zeros((2, 2)), [linear])
    assert paths_of(eqx.filter(module, eqx.is_array)) == [
        "weight",
        "layers/0/weight",
        "layers/0/bias",
    ]


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(6, 4, rngs=rngs)
        self.value = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, tokens):
        return self.value(self.embedding(tokens))


def test_paths_of_nnx_are_alike_in_init_and_update():
    model = Network(nnx.Rngs(0))
    in_init = jax.tree_util.tree_flatten_with_path(nnx.state(model, nnx.Param))[0]
    assert jax.tree_util.keystr(in_init[0][0]).endswith(".value")

    seen = []

    def view(path, shape):
        seen.append(path)
        return None if path.startswith("embedding") else default_view(shape)

    optimizer = nnx.Optimizer(
        model, scale_by_jorge(tiling=Tiling(view=view)), wrt=nnx.Param
    )
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))

    def loss(model):
        return jnp.sum(model(jnp.arange(6)) ** 2)

    optimizer.update(model, nnx.grad(loss)(model))
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    # Called once a leaf: the plan of `update` is the plan of `init`.
    assert seen == ["embedding/embedding", "value/bias", "value/kernel"]
    differs(equal, before, after)


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
