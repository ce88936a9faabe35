"""Tiles to stacks that leaves share, and back, without padding."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import MatrixView, Tiling, _stacks, default_view, jorge
from jorge_optax._stacks import _sum_padded, from_stacks, plan_tree, to_stacks
from tests.helpers.trees import (
    EMBEDDING,
    SHAPES,
    WITHOUT_ROOTS,
    counted,
    differs,
    equal,
)

MAX_DIMS = (1, 2, 7, 64, 256, 100_000)


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


def distinct_kernels(layers: int) -> int:
    """Of all fusions of an update of equal layers on a CPU, those that differ."""
    params = [jnp.ones((6, 4))] * layers
    optimizer = jorge(0.1)
    update = jax.jit(optimizer.update)
    text = update.lower(params, optimizer.init(params), params).compile().as_text()
    bodies = re.findall(r"^%?fused_computation[^\n]*\n(.*?)^\}", text, re.M | re.S)
    plain = [re.sub(r", metadata=\{[^}]*\}|%[\w.-]+", "", body) for body in bodies]
    # What takes all layers at once takes more operands, and shapes of that length.
    return len({re.sub(rf"\b{layers}\b", "all", body) for body in plain})


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about kernels of the CPU")
def test_more_equal_layers_make_no_more_kernels(monkeypatch):
    assert distinct_kernels(23) == distinct_kernels(47)
    monkeypatch.setattr(
        _stacks,
        "_starts",
        lambda plan, _: [at for leaf in plan.leaves for _, at in leaf.places],
    )
    assert distinct_kernels(23) + 20 < distinct_kernels(47)


def test_stacks_are_joined_alike_on_a_gpu():
    """Bit for bit, with the sign of a zero and whatever is not finite."""
    rng = np.random.default_rng(4)
    parts = [rng.normal(size=(n, 3, 2)).astype(np.float32) for n in (2, 1, 3)]
    parts[0][0] = [[0.0, -0.0], [np.inf, -np.inf], [np.nan, 1e-30]]
    found = np.asarray(_sum_padded([jnp.asarray(x) for x in parts]))
    equal = found.view(np.int32) == np.concatenate(parts).view(np.int32)
    assert np.all(equal | np.isnan(found))
