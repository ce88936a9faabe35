"""Describes what Jorge does with each parameter, and diagnoses its roots.

Everything is computed from shapes or an optimizer state; nothing extra is stored.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax import _algorithm
from jorge_optax._optimizer import jorge
from jorge_optax._stacks import LeafPlan, Plan, plan_tree, to_stacks
from jorge_optax._tiling import Tiling, default_view, matrices_shape
from jorge_optax._transform import JorgeState
from jorge_optax._types import Dtype, PyTree, Shape, Sides


@dataclasses.dataclass(frozen=True)
class LeafDescription:
    """One row of :func:`describe`'s table.

    Attributes:
      path: Path of the parameter.
      shape: Shape of the parameter.
      matrix: Its matrix view, ``"576x128"``, after the batch if there is one.
      tiles: Number and shape of its tiles, ``"3 of 192x128"``.
      parameter_bytes: Bytes of the parameter.
      state_bytes: Bytes of its roots, statistics and momenta.
      preconditioned: ``"yes"``, or why not.
    """

    path: str
    shape: Shape
    matrix: str
    tiles: str
    parameter_bytes: int
    state_bytes: int
    preconditioned: str


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What :func:`describe` returns; printing it shows the table.

    Attributes:
      leaves: One row for each parameter.
      parameter_bytes: Bytes of the parameters.
      state_bytes: Bytes of Jorge's state, exact.
      sgd_bytes: Bytes of the state of SGD with momentum.
      adamw_bytes: Bytes of the state of AdamW.
    """

    leaves: tuple[LeafDescription, ...]
    parameter_bytes: int
    state_bytes: int
    sgd_bytes: int
    adamw_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers, lists and strings only, ready for JSON."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        """Returns the table."""
        header = ("parameter", "shape", "matrix", "tiles", "state", "ratio")
        header += ("preconditioned",)
        rows = [
            (
                leaf.path,
                "x".join(map(str, leaf.shape)) or "scalar",
                leaf.matrix,
                leaf.tiles,
                _size(leaf.state_bytes),
                f"{leaf.state_bytes / max(leaf.parameter_bytes, 1):.1f} x",
                leaf.preconditioned,
            )
            for leaf in self.leaves
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
            for row in (header, tuple("-" * width for width in widths), *rows)
        ]
        over = [
            f"{self.state_bytes / max(other, 1):.2f} x {name}'s {_size(other)}"
            for name, other in (("SGD", self.sgd_bytes), ("AdamW", self.adamw_bytes))
        ]
        lines += [
            "",
            f"{len(self.leaves)} parameters of {_size(self.parameter_bytes)}",
            f"state {_size(self.state_bytes)}: " + ", ".join(over),
        ]
        return "\n".join(line.rstrip() for line in lines)


def describe(
    params: PyTree, *, tiling: Tiling | None = None, **options: Any
) -> Description:
    """Describes what Jorge does with each parameter, and what it costs in memory.

    Allocates nothing: parameters may be arrays or ``jax.ShapeDtypeStruct``.

    Args:
      params: A pytree of parameters: a dict, an ``nnx`` state or module's state, an
        Equinox module (filtered to its arrays).
      tiling: As for :func:`jorge_optax.jorge`.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``root_dtype``.

    Returns:
      A :class:`Description`; print it.

    Examples:
      >>> import jax
      >>> from jorge_optax import describe
      >>> describe({
      ...   "conv": jax.ShapeDtypeStruct((3, 3, 64, 128), "float32"),
      ...   "bias": jax.ShapeDtypeStruct((128,), "float32"),
      ... })
      parameter  shape       matrix   tiles         state   ratio  preconditioned
      ---------  ----------  -------  ------------  ------  -----  ----------------
      bias       128         -        -             512 B   1.0 x  no: not a matrix
      conv       3x3x64x128  576x128  3 of 192x128  1.2 MB  4.2 x  yes
      <BLANKLINE>
      2 parameters of 295.4 kB
      state 1.2 MB: 4.16 x SGD's 295.4 kB, 2.08 x AdamW's 590.9 kB
    """
    tiling = tiling or Tiling()
    plan = plan_tree(params, tiling)
    optimizer = functools.partial(jorge, 0.0, **options)
    rows = tuple(
        LeafDescription(
            path=leaf_plan.path,
            shape=leaf_plan.shape,
            matrix=_matrix_text(leaf_plan),
            tiles=_tiles_text(leaf_plan),
            parameter_bytes=_bytes(leaf),
            state_bytes=_leaf_bytes(leaf_plan, leaf.dtype, tiling.max_dim, optimizer),
            preconditioned=_reason(leaf_plan),
        )
        for leaf_plan, leaf in zip(plan.leaves, jax.tree.leaves(params), strict=True)
    )
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return Description(
        leaves=rows,
        parameter_bytes=_bytes(structs),
        state_bytes=state_size(params, tiling=tiling, **options),
        sgd_bytes=_bytes(jax.eval_shape(optax.sgd(1.0, 0.9).init, structs)),
        adamw_bytes=_bytes(jax.eval_shape(optax.adamw(1.0).init, structs)),
    )


def state_size(params: PyTree, *, tiling: Tiling | None = None, **options: Any) -> int:
    """Computes the bytes of Jorge's state for these parameters; allocates nothing.

    Args:
      params: A pytree of arrays or ``jax.ShapeDtypeStruct``.
      tiling: As for :func:`jorge_optax.jorge`.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``root_dtype``.

    Returns:
      The number of bytes that all arrays of the state take.

    Examples:
      >>> import jax
      >>> from jorge_optax import state_size
      >>> params = {"w": jax.ShapeDtypeStruct((512, 512), "float32")}
      >>> state_size(params) - 4 * (512 * 512 * 4)  # two roots, two momenta, a count
      4
    """
    optimizer = jorge(0.0, tiling=tiling, **options)
    return _bytes(jax.eval_shape(optimizer.init, params))


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
    by_stack: dict[str, dict[str, jax.Array]] = {}
    for key, sides in roots.items():
        numbers = by_stack[key] = {}
        for side, stack in sides._asdict().items():
            for name, values in jax.vmap(_measure_root)(stack).items():
                numbers[f"{side}/{name}"] = values
    _check_plan(plan, roots)
    if grads is not None:
        _check_plan(plan_tree(grads, tiling or Tiling()), roots)
        functions = [_cosine]
        if type(found.statistics) is tuple:  # of the paper's rule, empty
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


def _leaf_bytes(
    leaf: LeafPlan,
    dtype: Dtype,
    max_dim: int,
    optimizer: Callable[..., optax.GradientTransformation],
) -> int:
    """Computes the bytes of a parameter's own part of the state, counts left out."""

    def floats(params: PyTree) -> int:
        tiling = Tiling(max_dim, view=lambda *_: leaf.view)
        state = jax.eval_shape(optimizer(tiling=tiling).init, params)
        leaves = jax.tree.leaves(state)
        return _bytes([x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)])

    alone = floats(jax.ShapeDtypeStruct(leaf.shape, dtype))
    # Scalars stand for the stacks where there are none; they belong to no parameter.
    return alone if leaf.view else alone - floats({})


def _matrix_text(leaf: LeafPlan) -> str:
    if leaf.view is None:
        return "-"
    batch, rows, columns = matrices_shape(leaf.shape, leaf.view)
    return (f"{batch} of " if batch > 1 else "") + f"{rows}x{columns}"


def _tiles_text(leaf: LeafPlan) -> str:
    if leaf.view is None:
        return "-"
    return ", ".join(
        f"{size} of {panel.rows}x{panel.columns}"
        for size, panel in zip(leaf.sizes, leaf.panels, strict=True)
    )


def _reason(leaf: LeafPlan) -> str:
    if leaf.view is not None:
        return "yes"
    if len(leaf.shape) < 2:
        return "no: not a matrix"
    if default_view(leaf.shape) is None:
        return "no: a side shorter than 2"
    return "no: left out by Tiling.view"


def _bytes(tree: PyTree) -> int:
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _size(count: int) -> str:
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"


def _measure_root(root: jax.Array) -> dict[str, jax.Array]:
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
    """Estimates it from below, by the power method from the row sums."""
    vector = jnp.sum(jnp.abs(matrix), axis=1) + jnp.finfo(matrix.dtype).tiny
    for _ in range(products):
        vector = vector / jnp.linalg.norm(vector)
        vector = matrix @ vector
    return jnp.linalg.norm(vector)


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
