"""What is computed from a state: diagnostics, and the state for other devices."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from jorge_optax._describe import Diagnostics, find_state
from jorge_optax._errors import by_path
from jorge_optax._rule import Rule, split_size
from jorge_optax._step import JorgeState, Settings, Sides, required_settings
from jorge_optax._tiles import (
    OneDevice,
    Plan,
    PyTree,
    Stacks,
    Tiling,
    fill_idle,
    from_tiles,
)


def diagnostics(
    state: optax.OptState,
    params: PyTree,
    grads: PyTree | None,
    tx: optax.GradientTransformation,
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
      the least eigenvalue of its symmetric part is zero or less or, for
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
      grads: Gradients, with the tree of the parameters, or ``None``.
      tx: What :func:`jorge_optax.jorge` or a recipe returned.

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
      >>> report = diagnostics(state, params, grads, optimizer)
      >>> [int(report[f"w/{side}/unexcited"][0]) for side in ("left", "right")]
      [1, 0]
      >>> report.verdicts()
      {'w': 'roots have barely moved: refresh more often'}
    """
    settings = required_settings("diagnostics", tx)
    roots = jax.tree.map(jnp.asarray, find_state("diagnostics", state).roots)
    plan = settings.layout.plan(params, settings.tiling)
    if not plan.shapes or not isinstance(roots.left, dict):
        return Diagnostics()
    places = settings.layout.places(plan)
    wanted = dict.fromkeys(plan.stacks, 0)
    for key, own in places.values():
        wanted[key] = max(wanted[key], 1 + int(own.max()))
    _check_stacks(roots, wanted, settings)
    gradients = None
    if grads is not None:
        if settings.layout.plan(grads, settings.tiling) != plan:
            raise ValueError(
                "diagnostics: the gradients have another tree or other shapes than the "
                "parameters. Pass gradients as jax.grad of the loss returns them."
            )
        leaves = [
            x if own.grid else None
            for own, x in zip(plan.leaves, jax.tree.leaves(grads), strict=True)
        ]
        gradients = settings.layout.stack(plan, leaves)
    numbers = _measure(settings.rule, roots, gradients)
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves(numbers)):
        numbers = jax.device_get(numbers)  # one program and one copy
    return Diagnostics(
        {
            f"{path}/{name}": values[own]
            for path, (key, own) in places.items()
            for name, values in numbers[key].items()
        }
    )


def _check_stacks(roots: Sides, wanted: dict[str, int], settings: Settings) -> None:
    """Raises ValueError unless a state has so many tiles, or idle ones beside them."""
    found = {key: len(jax.tree.leaves(own)[0]) for key, own in roots.left.items()}
    if wanted.keys() != found.keys() or any(found[k] < wanted[k] for k in wanted):
        raise ValueError(
            f"The parameters make stacks of {wanted} tiles, the state has {found}. "
            "Pass the parameters given to init, and the optimizer that the state is of "
            f"(here one with {settings.tiling}); to reshard_state, as saved_by, if it "
            "has jorge_optax.Sharded."
        )


@functools.partial(jax.jit, static_argnums=0)
def _measure(rule: Rule, roots: Sides, gradients: Stacks | None) -> dict[str, Any]:
    """Computes all numbers of all stacks, in one program."""
    measure = jax.vmap(functools.partial(_measure_root, rule))
    numbers: dict[str, Any] = {}
    for key in roots.left:
        numbers[key] = {
            f"{name}/{quantity}": values
            for name, side in roots._asdict().items()
            for quantity, values in measure(side[key]).items()
        }
        if gradients is not None:
            against = jax.vmap(functools.partial(_measure_gradient, rule))
            left, right = roots.left[key], roots.right[key]
            idle = len(jax.tree.leaves(left)[0]) - len(gradients[key])
            padded = jnp.pad(gradients[key], ((0, idle), (0, 0), (0, 0)))
            numbers[key] |= against(left, right, padded)
    return numbers


def _measure_root(rule: Rule, root: PyTree) -> dict[str, jax.Array]:
    leaf = jax.tree.leaves(root)[0]
    rounding = float(jnp.finfo(leaf.dtype).eps)
    wide = optax.tree_utils.tree_cast(root, jnp.promote_types(leaf.dtype, jnp.float32))
    matrix = rule.matrix(wide)
    unit, size, _ = split_size(matrix)
    eye = jnp.eye(len(unit), dtype=unit.dtype)
    # Padded rows are zero: they take part in nothing.
    real = jnp.diag(unit) != 0
    symmetric = (unit + unit.T) / 2
    largest = _largest_eigenvalue(symmetric)
    shifted = largest * jnp.diag(real.astype(unit.dtype)) - symmetric
    smallest = largest - _largest_eigenvalue(shifted)
    smallest = jnp.minimum(smallest, jnp.min(jnp.where(real, jnp.diag(unit), jnp.inf)))
    off_diagonal = jnp.abs(unit) * (1 - eye)
    touched = (jnp.sum(off_diagonal, 0) + jnp.sum(off_diagonal, 1)) > 0
    norm = _norm(unit)
    return {
        "norm": size * norm,
        "largest": size * largest,
        "condition": jnp.where(smallest > 0, largest / smallest, jnp.inf),
        "asymmetry": _norm(unit - unit.T) / norm,
        "at_risk": smallest <= rule.risk * rounding * largest,
        "unexcited": jnp.sum(~touched & real),
    }


def _measure_gradient(
    rule: Rule, left: PyTree, right: PyTree, gradient: jax.Array
) -> dict[str, jax.Array]:
    wide = jnp.promote_types(gradient.dtype, jnp.float32)
    left, right = (optax.tree_utils.tree_cast(root, wide) for root in (left, right))
    unit, size, _ = split_size(gradient.astype(wide))
    direction, _, _ = split_size(rule.precondition(left, right, size * unit))
    lengths = _norm(direction) * _norm(unit)
    cosine = jnp.sum(direction * unit) / jnp.where(lengths > 0, lengths, 1)
    report = {"cosine": cosine}
    sides = zip(
        ("left", "right"),
        (left, right),
        rule.observe(left, right, unit, size),
        strict=True,
    )
    for name, root, seen in sides:
        report |= {f"{name}/{key}": x for key, x in rule.report(root, seen).items()}
    return report


def _norm(x: jax.Array) -> jax.Array:
    # Not jnp.linalg.norm, which over-counts some sharded arrays.
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _largest_eigenvalue(matrix: jax.Array, products: int = 32) -> jax.Array:
    """Estimates it from below, by the power method from the row sums."""
    tiny = jnp.finfo(matrix.dtype).tiny
    vector = jnp.sum(jnp.abs(matrix), axis=1) + tiny

    def multiply(_: jax.Array, vector: jax.Array) -> jax.Array:
        # The norm is zero if the matrix is, as for a multiple of the identity, shifted.
        return matrix @ (vector / jnp.maximum(_norm(vector), tiny))

    return _norm(jax.lax.fori_loop(0, products, multiply, vector))


def reshard_state(
    state: optax.OptState,
    tx: optax.GradientTransformation,
    params: PyTree,
    *,
    saved_by: optax.GradientTransformation | None = None,
) -> optax.OptState:
    """Fits a state that was saved on other devices to an optimizer.

    Replicated parameters: from any number of devices to any other. Divided parameters
    (:class:`jorge_optax.Sharded`): where shards are whole tiles of the parameter.

    Args:
      state: A state with the structure of ``tx.init(params)``.
      tx: The optimizer that will use it.
      params: The parameters, or arrays with the same tree and shapes.
      saved_by: The optimizer that made the state, if it has
        :class:`jorge_optax.Sharded`; its mesh may be a ``jax.sharding.AbstractMesh``.

    Returns:
      The state, with the shapes, dtypes and shardings of ``tx.init(params)``.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.sharding import NamedSharding, PartitionSpec as P
      >>> from jorge_optax import jorge, reshard_state
      >>> params = {"w": jnp.ones((3, 2))}
      >>> saved = jax.device_get(jorge(0.1).init(params))  # on one device
      >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
      >>> optimizer = jorge(0.1, sharding=NamedSharding(mesh, P("data")))
      >>> state = reshard_state(saved, optimizer, params)
    """
    settings = required_settings("reshard_state", tx)
    before = settings if saved_by is None else required_settings("saved_by", saved_by)
    new = tx.init(params)
    old, like = find_state("reshard_state", state), find_state("reshard_state", new)
    fitted = jax.tree.map(np.asarray, old)
    if isinstance(old.roots.left, dict):
        kept = _number_tiles(*_saved_plan(old, before, params), before.tiling, params)
        plan = settings.layout.plan(params, settings.tiling)
        wanted = _number_tiles(settings.layout, plan, settings.tiling, params)
        counts = {key: len(own) for key, own in kept.items()}
        _check_stacks(old.roots, counts, before)
        for field in (fitted.average, fitted.trace):
            idle = [own[counts[key] :] for key, own in field.items() if len(own)]
            if any(np.any(own) for own in idle):
                raise ValueError(
                    f"reshard_state: beyond the {counts} tiles of the parameters the "
                    "state has momenta: it is a state of other parameters."
                )
        left, right, average, trace, length, adapted = (
            {key: _collect(own, kept, one[key], wanted[key]) for key in wanted}
            for own, one in zip(_by_stack(fitted), _by_stack(like), strict=True)
        )
        roots, rest = Sides(left, right), fitted.others
        fitted = JorgeState(fitted.count, roots, average, trace, length, adapted, rest)

    def is_ours(node: PyTree) -> bool:
        return isinstance(node, JorgeState)

    def place(x: Any, like: Any) -> Any:
        return jax.device_put(x, like.sharding) if isinstance(like, jax.Array) else x

    fitted = jax.tree.map(lambda x: fitted if is_ours(x) else x, state, is_leaf=is_ours)
    _check_fit(fitted, new)
    return jax.tree.map(place, fitted, new)


def _saved_plan(
    state: JorgeState, before: Settings, params: PyTree
) -> tuple[OneDevice, Plan]:
    """Returns the layout and the plan that a state was saved with."""
    if any("@" in key for key in state.roots.left):  # beside shards
        return before.layout, before.layout.plan(params, before.tiling)
    plan = OneDevice().plan(params, before.tiling)
    for key in state.roots.left:
        devices = key.partition("~")[2]
        if devices:
            return OneDevice(), fill_idle(plan, int(devices))
    return OneDevice(), plan


def _by_stack(state: JorgeState) -> list[dict[str, PyTree]]:
    return [*state.roots, state.average, state.trace, state.length, state.adapted]


def _number_tiles(
    layout: OneDevice, plan: Plan, tiling: Tiling, params: PyTree
) -> dict[str, np.ndarray]:
    """Numbers the tiles of undivided parameters, and puts them where a layout has them.

    Returns:
      For each stack of the layout the numbers of its tiles.
    """
    whole = OneDevice().plan(params, tiling)
    leaves, first = [], 1
    for own in whole.leaves:
        if own.grid is None or own.view is None:
            leaves.append(None)
            continue
        numbers = np.arange(first, first + own.grid.count, dtype=np.int32)
        tile = (own.grid.count, own.grid.height, own.grid.width)
        tiles = jnp.asarray(np.broadcast_to(numbers[:, None, None], tile))
        leaves.append(from_tiles(tiles, own.shape, own.view, own.grid))
        first += own.grid.count
    stacks = jax.tree.map(np.asarray, layout.stack(plan, leaves))
    places = layout.places(plan)
    for own in whole.leaves:
        if own.grid is None:
            continue
        key, indices = places[own.path]
        tiles = stacks[key][indices]
        mixed = (tiles != tiles[:, :1, :1]) & (tiles != 0)
        if len(indices) != own.grid.count or mixed.any():
            raise ValueError(
                f"reshard_state: the shards of {own.path!r} of shape {own.shape} are "
                f"no multiples of its tiles, {own.grid.height}x{own.grid.width}, so "
                "that its roots are other ones. Start them again by tx.init, or keep "
                "the division that the state was saved with."
            )
    return {key: stack[:, 0, 0] for key, stack in stacks.items()}


def _collect(
    field: dict[str, PyTree],
    numbers: dict[str, np.ndarray],
    like: PyTree,
    wanted: np.ndarray,
) -> PyTree:
    """Collects what is kept of the tiles of one stack; idle ones remain as they are.

    Args:
      field: What a state has by stack.
      numbers: The numbers of the tiles there.
      like: The stack in a new state.
      wanted: The numbers of the tiles in it.
    """
    new = jax.tree.map(np.array, like)
    for key, own in numbers.items():
        old = field[key]
        dtypes = [[str(x.dtype) for x in jax.tree.leaves(x)] for x in (old, new)]
        if jax.tree.structure(old) != jax.tree.structure(new) or dtypes[0] != dtypes[1]:
            found, needed = (" ".join(own) or "nothing" for own in dtypes)
            raise ValueError(
                f"reshard_state: the state has another structure in the stack {key}: "
                f"{found} against {needed}. Only the devices may differ: make the "
                "optimizer with the rule, grafting and numerics of the state."
            )
        _, old_index, new_index = np.intersect1d(own, wanted, return_indices=True)

        def fill(
            new: np.ndarray, old: np.ndarray, i: Any = old_index, j: Any = new_index
        ) -> None:
            # Tiles that are padded to another size have zeros beyond their real rows.
            common = [
                slice(min(m, n))
                for m, n in zip(new.shape[1:], old.shape[1:], strict=True)
            ]
            part = np.zeros((len(i), *new.shape[1:]), new.dtype)
            part[(slice(None), *common)] = old[(i, *common)]
            new[j] = part

        if len(old_index):
            jax.tree.map(fill, new, field[key])
    return new


def _check_fit(state: PyTree, like: PyTree) -> None:
    """Raises ValueError unless two states have the same shapes and dtypes."""
    found, wanted = by_path(state), by_path(like)
    for path in (*wanted, *found):
        has, needs = (
            f"{jnp.result_type(own[path])}{list(jnp.shape(own[path]))}"
            if path in own
            else "nothing"
            for own in (found, wanted)
        )
        if has != needs:
            raise ValueError(
                f"The state does not fit the optimizer: it has {has} at {path}, where "
                f"the optimizer keeps {needs}. Only the devices may differ: make the "
                "optimizer with the same parameters, Tiling, rule, grafting, numerics "
                "and learning rate schedule."
            )
