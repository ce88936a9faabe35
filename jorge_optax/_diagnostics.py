"""Diagnoses the roots of an optimizer state; nothing extra is stored for it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax

from jorge_optax import _algorithm
from jorge_optax._stacks import Plan, plan_tree, to_stacks
from jorge_optax._tiling import Tiling
from jorge_optax._transform import JorgeState
from jorge_optax._types import PyTree, Sides

# A root is at risk if its least eigenvalue is below so many rounding errors of its
# largest one: on the streams on which roots in bfloat16 fail, thousands of refreshes
# before they do. The guard of _guards.is_lost acts at half of it.
RISK = 4.0


def diagnostics(
    state: optax.OptState,
    params: PyTree,
    grads: PyTree | None = None,
    *,
    tiling: Tiling | None = None,
) -> dict[str, jax.Array]:
    """Computes norms, condition numbers and more from the roots of each parameter.

    Finds the :class:`JorgeState` wherever it is: in a chain, under
    ``optax.inject_hyperparams``, in ``nnx.Optimizer.opt_state``. Changes nothing, and
    works inside ``jit``.

    For each parameter with roots and each side (``left``, ``right``), one number for
    each of the parameter's tiles:

    - ``norm``: Frobenius norm of the root;
    - ``largest``: lower estimate of the largest eigenvalue of its symmetric part;
    - ``condition``: lower estimate of the condition number, by a few products of the
      root with a vector;
    - ``asymmetry``: norm of ``root - root.T`` over that of the root;
    - ``at_risk``: whether the root may soon turn a gradient into an ascent direction:
      the least eigenvalue of its symmetric part is zero or less, or, for
      :class:`BinomialSeries`, whose roots accumulate rounding errors, close to the
      rounding error of the largest one in the dtype of the roots;
    - ``unexcited``: number of rows that no gradient has ever excited (dead units): the
      root still has nothing but its diagonal there.

    With gradients also, for each tile, the ``cosine`` between the gradient and the
    preconditioned gradient, and, for :class:`BinomialSeries`, for each side, the
    ``beta2`` and ``growth`` (``beta2**(-1/4)``) of a refresh with these gradients.

    Args:
      state: The optimizer's state, or any tree that holds it.
      params: The parameters, or arrays with the same tree and shapes.
      grads: Gradients, with the tree of the parameters.
      tiling: The :class:`Tiling` that the optimizer was made with.

    Returns:
      A flat dict, such as ``"dense/kernel/left/norm"`` to an array with one number for
      each tile of that parameter. ``{k: float(v.max()) for k, v in ...}`` is ready for
      TensorBoard or JSONL.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jorge_optax import diagnostics, jorge
      >>> optimizer = jorge(0.1, update_interval=1)
      >>> params = {"w": jnp.zeros((3, 2))}
      >>> state = optimizer.init(params)
      >>> grads = {"w": jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])}
      >>> _, state = optimizer.update(grads, state, params)
      >>> report = diagnostics(state, params, grads)
      >>> [int(report[f"w/{side}/unexcited"][0]) for side in ("left", "right")]
      [1, 0]
      >>> bool(report["w/cosine"][0] > 0.9)
      True
    """
    found = _find_state(state)
    roots = jax.tree.map(jnp.asarray, found.roots)
    if not isinstance(roots, dict):
        return {}
    plan = plan_tree(params, tiling or Tiling())
    accumulates = type(found.statistics) is tuple  # of the paper's rule, empty
    margin = RISK * accumulates
    by_stack: dict[str, dict[str, jax.Array]] = {}
    for key, sides in roots.items():
        numbers = by_stack[key] = {}
        for side, stack in sides._asdict().items():
            measured = jax.vmap(functools.partial(_measure_root, margin=margin))(stack)
            for name, values in measured.items():
                numbers[f"{side}/{name}"] = values
    _check_plan(plan, roots)
    if grads is not None:
        _check_plan(plan_tree(grads, tiling or Tiling()), roots)
        functions = [_cosine]
        if accumulates:
            functions.append(_dynamic_beta2)
        for key, gradients in to_stacks(plan, jax.tree.leaves(grads)).items():
            for function in functions:
                by_stack[key] |= jax.vmap(function)(roots[key], gradients)
    return _by_parameter(plan, by_stack)


def _find_state(state: optax.OptState) -> JorgeState:
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
    return found[0]


def _check_plan(plan: Plan, roots: dict[str, Sides]) -> None:
    shapes = {key: (*r.left.shape[:2], r.right.shape[2]) for key, r in roots.items()}
    if plan.stacks != shapes:
        raise ValueError(
            f"The tree makes tiles {list(plan.stacks.items())}, the state has "
            f"{list(shapes.items())}. Pass trees like the parameters given to init, "
            "and the optimizer's Tiling."
        )


def _by_parameter(
    plan: Plan, by_stack: dict[str, dict[str, jax.Array]]
) -> dict[str, jax.Array]:
    """Takes each parameter's tiles out of the numbers of the stacks."""
    report = {}
    for leaf in plan.leaves:
        if leaf.view is None:
            continue
        parts: dict[str, list[jax.Array]] = {}
        for size, (key, start) in zip(leaf.sizes, leaf.places, strict=True):
            own = slice(start, start + size)
            for name, values in by_stack[key].items():
                parts.setdefault(name, []).append(values[own])
        for name, values in parts.items():
            report[f"{leaf.path}/{name}"] = jnp.concatenate(values)
    return report


def _measure_root(root: jax.Array, margin: float) -> dict[str, jax.Array]:
    rounding = float(jnp.finfo(root.dtype).eps)
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
        "at_risk": smallest <= margin * rounding * largest,
        "unexcited": jnp.sum(~touched),
    }


def _largest_eigenvalue(matrix: jax.Array, products: int = 32) -> jax.Array:
    """Estimates it from below, by the power method from the row sums."""
    vector = jnp.sum(jnp.abs(matrix), axis=1) + jnp.finfo(matrix.dtype).tiny

    def multiply(_: jax.Array, vector: jax.Array) -> jax.Array:
        return matrix @ (vector / jnp.linalg.norm(vector))

    return jnp.linalg.norm(jax.lax.fori_loop(0, products, multiply, vector))


def _dynamic_beta2(roots: Sides, gradient: jax.Array) -> dict[str, jax.Array]:
    report = {}
    sides = {"left": (roots.left, gradient), "right": (roots.right, gradient.T)}
    for side, (root, g) in sides.items():
        root, g = root.astype(jnp.float32), g.astype(jnp.float32)
        norm = jnp.linalg.norm(_algorithm.excitation(root, g @ g.T, jnp.matmul))
        ratio = _algorithm.ratio(jnp.where(norm > 0, norm, jnp.inf))
        report[f"{side}/beta2"] = norm / (norm + 1)
        report[f"{side}/growth"] = _algorithm.growth(ratio)
    return report


def _cosine(roots: Sides, gradient: jax.Array) -> dict[str, jax.Array]:
    gradient = gradient.astype(jnp.float32)
    left, right = (root.astype(jnp.float32) for root in roots)
    direction = _algorithm.precondition(left, gradient, right, jnp.matmul)
    lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(gradient)
    product = jnp.sum(direction * gradient)
    return {"cosine": product / jnp.where(lengths > 0, lengths, 1)}
