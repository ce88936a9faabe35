"""Optimizers, trees, steps and comparisons for tests of Jorge under optax and JAX."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    Tiling,
    Whitening,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
)

# Two leaves that share a stack, and two without roots. Few, since most of the time of
# these tests is compilation.
SHAPES = {
    "dense": {"kernel": (6, 4), "bias": (4,)},
    "conv": (2, 3, 4),
    "scale": (),
}

TABLE = {
    "jorge": (jorge, dict(learning_rate=0.05, update_interval=2)),
    "scale_by_jorge": (scale_by_jorge, dict(update_interval=2)),
    "graft": (
        graft,
        dict(
            magnitude=optax.trace(0.9),
            direction=scale_by_jorge(update_interval=2),
        ),
    ),
    "jorge_with_all_options": (
        jorge,
        dict(
            learning_rate=0.05,
            momentum=0.8,
            weight_decay=0.01,
            eps=1e-4,
            update_interval=2,
            damping=1e-3,
            tiling=Tiling(max_dim=4),
            root_dtype="bfloat16",
            precision="high",
            refresh_precision="highest",
        ),
    ),
    "jorge_at_length_of_adam": (
        jorge,
        dict(learning_rate=0.05, update_interval=2, grafting=optax.scale_by_adam()),
    ),
    "jorge_whitening": (
        jorge,
        dict(learning_rate=0.05, update_interval=2, rule=Whitening(early_refreshes=0)),
    ),
    "jorge_whitening_at_length_of_adam": (
        jorge,
        dict(
            learning_rate=0.05,
            update_interval=2,
            rule=Whitening(),
            grafting=lengths.Adam(),
        ),
    ),
    "jorge_ungrafted": (jorge, dict(learning_rate=0.05, grafting=None)),
    "graft_tiled": (
        graft,
        dict(
            magnitude=optax.sgd(1.0, 0.9),
            direction=optax.scale_by_adam(),
            tiling=Tiling(max_dim=4),
        ),
    ),
}
OPTIMIZERS = {name: factory(**kwargs) for name, (factory, kwargs) in TABLE.items()}
KINDS = ("jorge", "scale_by_jorge", "graft")
VARIANTS = tuple(name for name in TABLE if name not in KINDS)


def each(*names):
    """Parameterizes a test by optimizers of the table."""
    return pytest.mark.parametrize("tx", [OPTIMIZERS[n] for n in names], ids=names)


def random_tree(seed: int, dtype: Any = jnp.float32, shapes: Any = SHAPES) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


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


def types_of(tree):
    """Shape, dtype and weakness of the dtype of each leaf."""
    return jax.tree.map(lambda x: (x.shape, str(x.dtype), x.aval.weak_type), tree)


def assert_same_types(tree, other):
    chex.assert_trees_all_equal_structs(tree, other)
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    assert types_of(tree) == types_of(other)


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


def nudged(tree, by=0.01):
    """The tree with the largest entry of its largest leaf off by this share."""
    leaves, treedef = jax.tree.flatten(jax.device_get(tree))
    position = max(range(len(leaves)), key=lambda i: leaves[i].size)
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
