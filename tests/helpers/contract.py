"""Optimizers, trees, steps and comparisons for tests of Jorge under other libraries."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Numerics, Tiling, from_adamw, graft, jorge, scale_by_jorge

# Two leaves that share a stack, and two without roots. Few, since most of the time of
# these tests is compilation.
SHAPES = {
    "dense": {"kernel": (6, 4), "bias": (4,)},
    "conv": (2, 3, 4),
    "scale": (),
}

TABLE = {
    "jorge": (jorge, dict(learning_rate=0.05, update_interval=2)),
    "from_adamw": (from_adamw, dict(learning_rate=0.05, update_interval=2)),
    "scale_by_jorge": (scale_by_jorge, dict(update_interval=2)),
    "graft": (
        graft,
        dict(magnitude=optax.trace(0.9), direction=scale_by_jorge(update_interval=2)),
    ),
    "all_options": (
        jorge,
        dict(
            learning_rate=0.05,
            momentum=0.8,
            weight_decay=0.01,
            grafting=None,
            update_interval=2,
            tiling=Tiling(max_dim=4),
            others=optax.adamw(0.01),
            numerics=Numerics(roots="bfloat16", momenta="bfloat16", apply="high"),
        ),
    ),
}
OPTIMIZERS = {name: factory(**kwargs) for name, (factory, kwargs) in TABLE.items()}


def each(*names):
    """Parameterizes a test by optimizers of the table, or by all of them."""
    names = names or tuple(TABLE)
    return pytest.mark.parametrize("tx", [OPTIMIZERS[n] for n in names], ids=names)


def random_tree(seed: int, dtype: Any = jnp.float32, shapes: Any = SHAPES) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def random_trees(count: int, dtype: Any = jnp.float32, shapes: Any = SHAPES) -> Any:
    """Parameters, and then gradients."""
    return [random_tree(seed, dtype, shapes) for seed in range(count)]


def stacked(trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@functools.cache
def step_of(tx: Any) -> Any:
    """A jitted step of training with given gradients."""

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, updates

    return step


def train(tx: Any, params: Any, gradients: Any) -> Any:
    """Parameters and state after a step for each gradient."""
    state = tx.init(params)
    for grads in gradients:
        params, state, _ = step_of(tx)(params, state, grads)
    return params, state


def assert_same_types(tree, other):
    """Equality of structure, shapes and dtypes, weak or not."""
    chex.assert_trees_all_equal_structs(tree, other)
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    weak = [[x.aval.weak_type for x in jax.tree.leaves(t)] for t in (tree, other)]
    assert weak[0] == weak[1]


def assert_differs(assertion, *args, **kwargs):
    """The negative control of an equality: it must fail, and for unequal values."""
    with pytest.raises(AssertionError, match="Values not"):
        assertion(*args, **kwargs)


def assert_close(tree, other, tolerance=1e-5):
    """Equality up to this share of the largest entry of each leaf."""
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    tree, other = jax.device_get((tree, other))
    scales = jax.tree.map(lambda x: max(np.max(np.abs(x)), 1e-30), other)
    tree, other = (jax.tree.map(np.divide, side, scales) for side in (tree, other))
    chex.assert_trees_all_close(tree, other, rtol=0, atol=tolerance)


def assert_agrees(tree, other, tolerance=1e-5):
    """Equality up to a tolerance, and its negative control."""
    assert_close(tree, other, tolerance)
    by = 10 * tolerance
    assert_differs(assert_close, nudged(tree, by), other, tolerance)


def nudged(tree, by=0.01):
    """The tree with the largest entry of its largest wide leaf off by this share."""
    leaves, treedef = jax.tree.flatten(jax.device_get(tree))
    wide = [(leaf.dtype.itemsize, leaf.size) for leaf in leaves]
    position = max(range(len(leaves)), key=wide.__getitem__)
    leaf = leaves[position] = leaves[position].copy()
    index = np.unravel_index(np.argmax(np.abs(leaf)), leaf.shape)
    leaf[index] = leaf[index] * (1 + by) if leaf[index] else by
    return treedef.unflatten(leaves)


def assert_steps_keep_types(tx, params, gradients):
    """Updates are typed as gradients, and the state's types stay."""
    state = start = tx.init(params)
    for grads in gradients:
        params, state, updates = step_of(tx)(params, state, grads)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)
        chex.assert_tree_all_finite((updates, state))
        assert_same_types(state, start)
