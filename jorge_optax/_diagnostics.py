"""What Jorge's roots look like, read off a state; pure, and nothing is kept for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jorge_optax._roots import Roots, apply_roots
from jorge_optax._stacks import plan_tree, to_stacks
from jorge_optax._tiling import Tiling
from jorge_optax._transform import JorgeState


def diagnostics(
    state: Any, grads: Any = None, *, tiling: Tiling | None = None
) -> dict[str, jax.Array]:
    """Norms, conditions and the like of all roots in an optimizer's state.

    Finds the :class:`JorgeState` wherever it is: in a chain, under
    ``optax.inject_hyperparams``, in ``nnx.Optimizer.opt_state``. Reading changes
    nothing, and may be done inside ``jit``; a step that does not read pays nothing.

    For each stack ``"RxC"`` and each side (``left``, ``right``), one number a tile:

    - ``norm``: Frobenius norm of the root;
    - ``largest``: estimate, from below, of the largest eigenvalue (symmetric part);
    - ``condition``: estimate, from below, of the condition number, by a few products
      of the root with a vector;
    - ``asymmetry``: norm of ``root - root.T`` over that of the root;
    - ``unexcited``: how many rows no gradient has ever excited (dead units): the root
      still has nothing but its diagonal there.

    With gradients also, for the tile, ``cosine`` between the gradient and the direction
    that the roots make of it, and, by side, ``beta2`` and ``growth``
    (``beta2**(-1/4)``), those that a refresh with these gradients would have. (The last
    two not for :class:`Composite`, whose ``beta2`` is a constant.)

    Args:
      state: the optimizer's state, or any tree that holds it.
      grads: gradients, a tree like that of the parameters.
      tiling: the optimizer's :class:`Tiling`; used with ``grads`` only.

    Returns:
      A flat dict, ``"256x128/left/norm"`` to an array with a number for each tile.
      ``{k: float(v.max()) for k, v in ...}`` is ready for TensorBoard or JSONL.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jorge_optax import diagnostics, jorge
      >>> optimizer = jorge(0.1, update_interval=1)
      >>> params = {"w": jnp.zeros((3, 2))}
      >>> state = optimizer.init(params)
      >>> grads = {"w": jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])}
      >>> _, state = optimizer.update(grads, state, params)
      >>> report = diagnostics(state, grads)
      >>> [int(report[f"3x2/{side}/unexcited"][0]) for side in ("left", "right")]
      [1, 0]
      >>> bool(report["3x2/cosine"][0] > 0.9)
      True
    """
    found = [
        node
        for node in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, JorgeState))
        if isinstance(node, JorgeState)
    ]
    if len(found) != 1:
        raise ValueError(
            f"diagnostics needs a state with one JorgeState in it, found {len(found)}. "
            "Pass the state of one optimizer made by jorge or scale_by_jorge (for an "
            "nnx.Optimizer, its opt_state)."
        )
    roots = jax.tree.map(jnp.asarray, found[0].roots)
    if not isinstance(roots, dict):
        return {}
    report = {}
    for key, pair in roots.items():
        for side, stack in pair._asdict().items():
            for name, values in jax.vmap(_of_root)(stack).items():
                report[f"{key}/{side}/{name}"] = values
    if grads is not None:
        plan = plan_tree(grads, tiling or Tiling())
        stacks = to_stacks(plan, jax.tree.leaves(grads))
        if {key: s.shape for key, s in stacks.items()} != {
            key: (*r.left.shape[:2], r.right.shape[2]) for key, r in roots.items()
        }:
            raise ValueError(
                f"The gradients make stacks {list(plan.stacks.items())}, the state has "
                f"{list(roots)}. Pass gradients like the parameters given to init, and "
                "the optimizer's Tiling."
            )
        functions = [_cosine]
        if not jax.tree.leaves(found[0].statistics):
            functions.append(_dynamic_beta2)
        for key, gradients in stacks.items():
            for function in functions:
                for name, values in jax.vmap(function)(roots[key], gradients).items():
                    report[f"{key}/{name}"] = values
    return report


def _of_root(root: jax.Array) -> dict[str, jax.Array]:
    root = root.astype(jnp.promote_types(root.dtype, jnp.float32))
    scale = jnp.max(jnp.abs(root))
    unit = root / scale
    symmetric = (unit + unit.T) / 2
    largest = _largest_eigenvalue(symmetric)
    smallest = largest - _largest_eigenvalue(
        largest * jnp.eye(len(unit), dtype=unit.dtype) - symmetric
    )
    smallest = jnp.minimum(smallest, jnp.min(jnp.diag(symmetric)))
    off_diagonal = jnp.abs(unit) * (1 - jnp.eye(len(unit), dtype=unit.dtype))
    touched = (jnp.sum(off_diagonal, 0) + jnp.sum(off_diagonal, 1)) > 0
    norm = jnp.linalg.norm(unit)
    return {
        "norm": scale * norm,
        "largest": scale * largest,
        "condition": jnp.where(smallest > 0, largest / smallest, jnp.inf),
        "asymmetry": jnp.linalg.norm(unit - unit.T) / norm,
        "unexcited": jnp.sum(~touched),
    }


def _largest_eigenvalue(matrix: jax.Array, products: int = 8) -> jax.Array:
    """By the power method from the row sums; an estimate from below."""
    vector = jnp.sum(jnp.abs(matrix), axis=1) + jnp.finfo(matrix.dtype).tiny
    for _ in range(products):
        vector = vector / jnp.linalg.norm(vector)
        vector = matrix @ vector
    return jnp.linalg.norm(vector)


def _dynamic_beta2(roots: Roots, gradient: jax.Array) -> dict[str, jax.Array]:
    report = {}
    sides = {"left": (roots.left, gradient), "right": (roots.right, gradient.T)}
    for side, (root, g) in sides.items():
        root, g = root.astype(jnp.float32), g.astype(jnp.float32)
        powered = root @ (root @ (root @ (root @ g)))
        norm = jnp.linalg.norm(powered @ g.T)
        report[f"{side}/beta2"] = norm / (norm + 1)
        report[f"{side}/growth"] = jnp.where(
            norm > 0, (1 + 1 / jnp.where(norm > 0, norm, 1)) ** 0.25, 1.0
        )
    return report


def _cosine(roots: Roots, gradient: jax.Array) -> dict[str, jax.Array]:
    gradient = gradient.astype(jnp.float32)
    direction = apply_roots(roots, gradient, precision="highest")
    lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(gradient)
    product = jnp.sum(direction * gradient)
    return {"cosine": product / jnp.where(lengths > 0, lengths, 1)}
