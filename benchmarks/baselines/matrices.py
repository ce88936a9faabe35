"""Optimizers that treat matrices one by one, and Adam for all other leaves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

# From the state of one matrix, its gradient [m, n] and the step, counted from 1, to the
# direction and the new state.
Update = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


def by_matrix(
    init: Callable[[int, int], Any], update: Update
) -> optax.GradientTransformation:
    """Applies an update to each leaf, seen as a matrix with the outputs as columns."""

    def init_fn(params: Any) -> Any:
        count = jnp.zeros([], jnp.int32)
        return count, jax.tree.map(lambda leaf: init(*_sides(leaf)), params)

    def update_fn(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        count, states = state
        count = count + 1
        leaves, treedef = jax.tree.flatten(updates)
        results = [
            update(own, leaf.reshape(_sides(leaf)), count)
            for own, leaf in zip(treedef.flatten_up_to(states), leaves, strict=True)
        ]
        directions = [
            d.reshape(leaf.shape) for (d, _), leaf in zip(results, leaves, strict=True)
        ]
        states = treedef.unflatten([own for _, own in results])
        return treedef.unflatten(directions), (count, states)

    return optax.GradientTransformation(init_fn, update_fn)


def with_adam(
    direction: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float,
    b2: float,
    weight_decay: float = 0.0,
    leave_out: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """A direction for matrices, Adam's for the rest, at one rate with one decay."""

    def label(path: Any, leaf: Any) -> str:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        left_out = leaf.ndim < 2 or any(word in name for word in leave_out)
        return "adam" if left_out else "matrix"

    def labels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(label, params)

    return optax.chain(
        optax.partition(
            {"matrix": direction, "adam": optax.scale_by_adam(b1, b2)}, labels
        ),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def decay_after(
    decay: float,
    schedule: optax.Schedule,
    mask: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Decoupled decay, chained after an optimizer that has its learning rate already.

    The mask is a function from the parameters to a tree of what decays.
    """

    def update_fn(updates: Any, count: Any, params: Any) -> Any:
        factor = decay * schedule(count)
        decays = mask(params) if mask else jax.tree.map(lambda _: True, params)
        updates = jax.tree.map(
            lambda u, p, d: u - factor * p if d else u, updates, params, decays
        )
        return updates, count + 1

    return optax.GradientTransformation(
        lambda params: jnp.zeros([], jnp.int32), update_fn
    )


def _sides(leaf: jax.Array) -> tuple[int, int]:
    return leaf.size // leaf.shape[-1], leaf.shape[-1]
