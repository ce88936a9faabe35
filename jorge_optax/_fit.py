"""Checks that gradients fit the parameters and the state, which name what does not."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jorge_optax._stacks import Plan, normalise_path
from jorge_optax._types import PyTree, Shape

OTHER_GRADIENTS = (
    "Pass gradients of the same tree and shapes as the parameters given to init, and "
    "restore a state only under the Tiling and the rule it was made with; otherwise "
    "call init again."
)
OTHER_RULE = (
    "Restore a state only with the rule and grafting it was made with; otherwise call "
    "init again."
)


def check_gradients(gradients: PyTree, params: PyTree | None) -> None:
    """Raises ValueError for a gradient of another shape than its parameter, or None.

    Trees of another structure are left to the comparison with the state.
    """
    (wanted, structure), (found, other) = (
        jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
        for tree in (params, gradients)
    )
    if params is None or structure != other:
        return
    for (path, parameter), (_, gradient) in zip(wanted, found, strict=True):
        shape, own = (getattr(x, "shape", None) for x in (parameter, gradient))
        if parameter is None or shape == own:
            continue
        text = "is None" if gradient is None else f"has shape {own}"
        raise ValueError(
            f"The gradient of the parameter {normalise_path(path)!r} {text}, but the "
            f"parameter has shape {shape}. Pass gradients as jax.grad of the loss "
            "returns them, with zeros for a parameter that the loss does not use, or "
            "leave the parameter out with optax.masked or optax.partition."
        )


def check_tiles(plan: Plan, gradients: PyTree, expected: PyTree, state: PyTree) -> None:
    """Raises ValueError if a state was made for other tiles, or by another rule.

    Args:
      plan: The plan of the gradients.
      gradients: The gradients.
      expected: The state that ``init`` makes for tiles like the gradients'.
      state: The state that was passed.
    """
    wanted, found = _shapes(expected), _shapes(state)
    if wanted == found and _kind(expected) == _kind(state):
        _check_dtypes(expected, state)
        return
    if _shapes(getattr(state, "roots", None)) == _shapes(expected.roots):
        raise ValueError(_other_rule(wanted, found))
    place = _first_difference(wanted, found)
    key = next((key for key in plan.stacks if f"'{key}'" in place), None)
    culprits = [
        f"{leaf.path!r} of shape {leaf.shape}"
        for leaf in plan.leaves
        if any(stack == key for stack, _ in leaf.places)
    ]
    raise ValueError(
        "The gradients do not fit the optimizer's state: the state has "
        f"{_shape_text(found.get(place))} at {place}, the gradients need "
        f"{_shape_text(wanted.get(place))}"
        + (f", where the tiles of {', '.join(culprits[:3])} lie" if culprits else "")
        + f". {_nones(gradients)}{OTHER_GRADIENTS}"
        + _resharding_text(wanted.get(place), found.get(place))
    )


def _resharding_text(wanted: Shape | None, found: Shape | None) -> str:
    """Returns the remedy for stacks that may differ in their idle tiles alone."""
    if not wanted or not found or wanted[1:] != found[1:]:
        return ""
    return (
        " A state that was saved on another number of devices first goes through "
        "jorge_optax.reshard_state."
    )


def check_others(gradients: PyTree, expected: PyTree, state: PyTree) -> None:
    """Raises ValueError if the state of parameters without roots does not fit.

    Args:
      gradients: The gradients of these parameters.
      expected: The state that ``init`` makes for them.
      state: The state that was passed.
    """
    wanted, found = (_shapes(tree, normalise_path) for tree in (expected, state))
    if wanted == found:
        return
    missing = dict(found)
    for path, leaf in _shapes(gradients, normalise_path).items():
        own = {p: s for p, s in found.items() if f"/{p}".endswith(f"/{path}")}
        if any(shape != leaf for shape in own.values()) or not own:
            kept = next(iter(own.values()), None)
            raise ValueError(
                f"The gradients do not fit the optimizer's state: for {path!r} of "
                f"shape {leaf} the state has {_shape_text(kept, 'nothing')}. "
                f"{OTHER_GRADIENTS}"
            )
        missing = {p: shape for p, shape in missing.items() if p not in own}
    for place, shape in missing.items():
        if shape:  # counts are scalars
            raise ValueError(
                "The gradients do not fit the optimizer's state: the state has "
                f"{_shape_text(shape)} at {place!r}, the gradients have nothing there. "
                f"{OTHER_GRADIENTS}"
            )
    raise ValueError(_other_rule(wanted, found))


def _other_rule(wanted: dict[str, Shape], found: dict[str, Shape]) -> str:
    text = "The optimizer's state was made with another rule or grafting"
    if wanted != found:
        place = _first_difference(wanted, found)
        has, keeps = (_shape_text(x.get(place), "nothing") for x in (found, wanted))
        text += f": it has {has} at {place}, where this optimizer keeps {keeps}"
    return f"{text}. {OTHER_RULE}"


def _check_dtypes(expected: PyTree, state: PyTree) -> None:
    """Raises ValueError if count, roots or statistics were cast to another dtype.

    Momenta may be narrower than these gradients ask for: they keep their dtype.
    """
    for name in ("count", "roots", "statistics"):
        pairs = zip(
            jax.tree_util.tree_flatten_with_path(getattr(expected, name, ()))[0],
            jax.tree.leaves(getattr(state, name, ())),
            strict=True,
        )
        for (path, wanted), found in pairs:
            if wanted.dtype != jnp.result_type(found):
                raise ValueError(
                    f"The optimizer's state has dtype {jnp.result_type(found)} at "
                    f"{name}{jax.tree_util.keystr(path)}, but the optimizer keeps "
                    f"{wanted.dtype} there. Restore a state with the root_dtype it was "
                    "made with, or cast it to this one; otherwise call init again."
                )


def _shapes(
    tree: PyTree, name: Callable[..., str] = jax.tree_util.keystr
) -> dict[str, Shape]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name(path): tuple(jnp.shape(leaf)) for path, leaf in leaves}


def _kind(state: PyTree) -> PyTree:
    """Returns what tells rules apart that keep arrays of the same shapes."""
    return jax.tree.structure(getattr(state, "statistics", None))


def _first_difference(wanted: dict[str, Shape], found: dict[str, Shape]) -> str:
    # A place that the state lacks names the culprit best.
    places = [p for p in wanted if p not in found] + [*wanted, *found]
    return next(p for p in places if wanted.get(p) != found.get(p))


def _nones(gradients: PyTree) -> str:
    leaves = jax.tree_util.tree_flatten_with_path(
        gradients, is_leaf=lambda x: x is None
    )[0]
    paths = [repr(normalise_path(path)) for path, leaf in leaves if leaf is None]
    return f"The gradients have None at {', '.join(paths[:3])}. " if paths else ""


def _shape_text(shape: Shape | None, nothing: str = "no tiles") -> str:
    return nothing if shape is None else f"an array of shape {shape}"
