"""Diagnoses the roots of an optimizer state; nothing extra is stored for it."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.sharding import NamedSharding

from jorge_optax import _algorithm
from jorge_optax._distributed import Spread, spread_of
from jorge_optax._stacks import Plan, plan_tree, to_stacks
from jorge_optax._tiling import Tiling
from jorge_optax._transform import JorgeState
from jorge_optax._types import PyTree, Sides, Stacks

# A root is at risk if its least eigenvalue is below so many rounding errors of its
# largest one: on the streams on which roots in bfloat16 fail, thousands of refreshes
# before they do. The guard of _guards.is_lost acts at half of it.
RISK = 4.0
# Roots whose eigenvalues are all within this factor hardly turn a gradient: in
# docs/diagnostics.md, by a cosine above 0.98.
BARELY_MOVED = 1.5
# Beyond it a root is close to singular in float32.
LARGEST_CONDITION = 1e5
# A direction with a smaller cosine has little in common with the gradient.
LEAST_COSINE = 0.02


class Diagnostics(dict[str, Any]):
    """What :func:`diagnostics` returns; printing it shows a table and a verdict.

    A dict from ``"dense/kernel/left/norm"`` to an array with one number for each tile
    of that parameter. It is a pytree, and so may leave a jitted function.
    """

    def scalars(self) -> dict[str, float]:
        """Returns one number for each parameter and quantity, for TensorBoard or JSON.

        It is the one to worry about: over tiles and sides the least ``cosine`` and
        ``beta2``, the sum of ``unexcited`` and ``at_risk``, and the largest of others.
        """
        groups: dict[str, list[np.ndarray]] = {}
        for key, value in self.items():
            path, name = key.rsplit("/", 1)
            if name != "cosine":  # the others are of one side
                path = path.rsplit("/", 1)[0]
            numbers = np.asarray(value, np.float64).ravel()
            groups.setdefault(f"{path}/{name}".lstrip("/"), []).append(numbers)
        kinds = {"cosine": np.min, "beta2": np.min}
        kinds |= {"unexcited": np.sum, "at_risk": np.sum}
        return {
            key: float(kinds.get(key.rsplit("/", 1)[-1], np.max)(np.concatenate(parts)))
            for key, parts in groups.items()
        }

    def verdicts(self) -> dict[str, str]:
        """Returns a verdict in words for each parameter with roots."""
        by_path: dict[str, dict[str, float]] = {}
        for key, value in self.scalars().items():
            path, _, name = key.rpartition("/")
            by_path.setdefault(path, {})[name] = value
        return {path: _verdict(numbers) for path, numbers in by_path.items()}

    def __str__(self) -> str:
        """Returns a row for each parameter, and how many have which verdict."""
        scalars, verdicts = self.scalars(), self.verdicts()
        names = ("condition", "asymmetry", "unexcited", "cosine")
        rows: list[tuple[str, ...]] = [("parameter", *names, "verdict")]
        for path, verdict in verdicts.items():
            numbers = (scalars.get(f"{path}/{name}".lstrip("/")) for name in names)
            cells = ("-" if number is None else f"{number:.3g}" for number in numbers)
            rows.append((path, *cells, verdict))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(map(str.ljust, row, widths)).rstrip()
            for row in (rows[0], ["-" * width for width in widths], *rows[1:])
        ]
        texts = list(verdicts.values())
        counts = {text: texts.count(text) for text in texts}
        lines += ["", f"{len(texts)} parameters with roots"]
        lines += [
            f"{number} of {len(texts)}: {text}"
            for text, number in sorted(counts.items(), key=lambda item: -item[1])
        ]
        return "\n".join(lines)


def _flatten_report(report: Diagnostics) -> tuple[list[Any], tuple[str, ...]]:
    return list(report.values()), tuple(report)


jax.tree_util.register_pytree_node(
    Diagnostics,
    _flatten_report,
    lambda keys, values: Diagnostics(zip(keys, values, strict=True)),
)


def _verdict(numbers: dict[str, float]) -> str:
    """Returns what the numbers of one parameter mean."""
    condition = numbers["condition"]
    if any(math.isnan(number) for number in numbers.values()):
        return "not finite: find the step at which training broke"
    if numbers["at_risk"]:
        return "roots at risk of ascent: keep them in float32, or add damping"
    if condition > LARGEST_CONDITION:
        return "roots close to singular: add damping"
    if condition < BARELY_MOVED:
        return "roots have barely moved: refresh more often"
    if numbers.get("cosine", 1) < LEAST_COSINE:
        return "direction almost at right angles to this gradient: check the loss"
    if numbers["unexcited"]:
        return "healthy, with rows that no gradient has excited (dead units)"
    return "healthy"


def diagnostics(
    state: optax.OptState,
    params: PyTree,
    grads: PyTree | None = None,
    *,
    tiling: Tiling | None = None,
    sharding: NamedSharding | Spread | None = None,
) -> Diagnostics:
    """Computes norms, condition numbers and more from the roots of each parameter.

    Finds the :class:`JorgeState` wherever it is: in a chain, under
    ``optax.inject_hyperparams``, in ``nnx.Optimizer.opt_state``. Changes nothing, and
    works inside ``jit``. ``print(diagnostics(...))`` shows a row and a verdict in words
    for each parameter; ``docs/diagnostics.md`` has the ranges behind the verdicts.

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
      sharding: The ``sharding`` that the optimizer was made with.

    Returns:
      :class:`Diagnostics`, a flat dict: ``"dense/kernel/left/norm"`` to an array with
      one number for each tile of that parameter. Its method ``scalars`` returns one
      number for each parameter and quantity, for TensorBoard or JSONL.

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
      >>> report.verdicts()
      {'w': 'roots have barely moved: refresh more often'}
    """
    found = _find_state(state)
    roots = jax.tree.map(jnp.asarray, found.roots)
    if not isinstance(roots, dict):
        return Diagnostics()
    plan = plan_tree(params, tiling or Tiling())
    _check_plan(plan, roots, spread_of(sharding))
    roots = _without_idle(plan, roots)
    if grads is not None:
        plan = plan_tree(grads, tiling or Tiling())
        _check_plan(plan, roots)
    leaves = None if grads is None else jax.tree.leaves(grads)
    accumulates = type(found.statistics) is tuple  # of the paper's rule, empty
    by_stack = _measure(roots, leaves, _Static(plan), accumulates)
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves(by_stack)):
        by_stack = jax.device_get(by_stack)  # one program and one copy
    return _by_parameter(plan, by_stack)


class _Static:
    """A plan as a static argument of jit; plans are cached, and so are identical."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def __hash__(self) -> int:
        return hash(self.plan.leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.plan == other.plan


@functools.partial(jax.jit, static_argnums=(2, 3))
def _measure(
    roots: dict[str, Sides],
    leaves: list[jax.Array] | None,
    static: _Static,
    accumulates: bool,
) -> dict[str, Stacks]:
    """Computes all numbers of all stacks, in one program."""
    by_stack: dict[str, dict[str, jax.Array]] = {key: {} for key in roots}
    # Roots of one length, of all stacks, at once: compilation takes most of the time.
    places: dict[int, list[tuple[str, str, jax.Array]]] = {}
    for key, sides in roots.items():
        for side, stack in sides._asdict().items():
            places.setdefault(stack.shape[-1], []).append((key, side, stack))
    measure = functools.partial(_measure_root, margin=RISK * accumulates)
    for group in places.values():
        measured = jax.vmap(measure)(jnp.concatenate([stack for *_, stack in group]))
        start = 0
        for key, side, stack in group:
            end = start + len(stack)
            by_stack[key] |= {
                f"{side}/{name}": values[start:end] for name, values in measured.items()
            }
            start = end
    if leaves is not None:
        functions = [_cosine, _dynamic_beta2] if accumulates else [_cosine]
        for key, gradients in to_stacks(static.plan, leaves).items():
            for function in functions:
                by_stack[key] |= jax.vmap(function)(roots[key], gradients)
    return by_stack


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


def _check_plan(
    plan: Plan, roots: dict[str, Sides], spread: Spread | None = None
) -> None:
    shapes = {key: (*r.left.shape[:2], r.right.shape[2]) for key, r in roots.items()}
    stacks = spread.pad(plan.stacks) if spread else plan.stacks
    if stacks != shapes:
        raise ValueError(
            f"The tree makes tiles {list(stacks.items())}, the state has "
            f"{list(shapes.items())}. Pass trees like the parameters given to init, "
            "and the optimizer's Tiling and sharding."
        )


def _without_idle(plan: Plan, roots: dict[str, Sides]) -> dict[str, Sides]:
    """Cuts off the idle tiles that make stacks a multiple of the devices."""
    counts = {key: shape[0] for key, shape in plan.stacks.items()}
    return {
        key: Sides(*(root[: counts[key]] for root in sides))
        for key, sides in roots.items()
    }


def _by_parameter(plan: Plan, by_stack: dict[str, Stacks]) -> Diagnostics:
    """Takes each parameter's tiles out of the numbers of the stacks."""
    report = Diagnostics()
    for leaf in plan.leaves:
        if leaf.view is None:
            continue
        parts: dict[str, list[jax.Array]] = {}
        for size, (key, start) in zip(leaf.sizes, leaf.places, strict=True):
            own = slice(start, start + size)
            for name, values in by_stack[key].items():
                parts.setdefault(name, []).append(values[own])
        for name, values in parts.items():
            join = jnp if isinstance(values[0], jax.Array) else np
            report[f"{leaf.path}/{name}"] = join.concatenate(values)
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
    tiny = jnp.finfo(matrix.dtype).tiny
    vector = jnp.sum(jnp.abs(matrix), axis=1) + tiny

    def multiply(_: jax.Array, vector: jax.Array) -> jax.Array:
        # The norm is zero if the matrix is, as for a multiple of the identity, shifted.
        return matrix @ (vector / jnp.maximum(jnp.linalg.norm(vector), tiny))

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
