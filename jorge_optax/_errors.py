"""Refusals: each names the parameter or option, what it is, the rule and the remedy.

Options are checked at construction, where traced values pass; trees at ``init`` and
``update``, by shapes and dtypes alone.
"""

from __future__ import annotations

import difflib
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from jorge_optax.views import has_word

P = ParamSpec("P")
R = TypeVar("R")
# Numbers that optax.inject_hyperparams can make a schedule of.
INJECTED = ("momentum", "weight_decay")
# Beyond it, sums with the identity would round the gradient away.
LARGEST_SHARE = 1e6
CHOOSE_DTYPE = "Choose 'float32', 'bfloat16' or 'float64'."

REMEDIES = {
    "momentum": "A value of 0.9 is usual.",
    "BinomialSeries.eps": (
        "Every root starts as eps**(-1/4) times the identity; the default is 1e-6."
    ),
    "learning_rate": (
        "Pass that of a tuned SGD run: jorge subtracts its steps, as optax.sgd does."
    ),
    "interval": (
        "The roots are refreshed every update_interval steps: pass 1 to refresh them "
        "at every step, a large number to refresh them rarely."
    ),
    "interval schedule": (
        "It counts the steps between refreshes and is not a learning-rate schedule: "
        "pass a number, or a schedule such as tuning.growing_interval_schedule(50)."
    ),
    "share": (
        f"With more than {LARGEST_SHARE:g} times the identity, nothing of the gradient "
        "would be left in float32."
    ),
    "leave out": "leave it out with optax.masked or optax.partition",
    "gradients": (
        "Pass gradients as jax.grad of the loss returns them, with zeros for a "
        "parameter that the loss does not use, or leave the parameter out with "
        "optax.masked or optax.partition."
    ),
    "state": (
        "Pass gradients of the same tree and shapes as the parameters given to init, "
        "and restore a state only under the Tiling and the rule it was made with; "
        "otherwise call init again."
    ),
    "devices": (
        "A state that was saved on another number of devices first goes through "
        "jorge_optax.reshard_state."
    ),
    "rule": (
        "Restore a state only with the rule and grafting it was made with; otherwise "
        "call init again."
    ),
    "mask": (
        "To decay matrices and kernels only, pass lambda params: "
        "jax.tree.map(lambda p: p.ndim > 1, params)."
    ),
}


def check_number(
    name: str,
    value: float | jax.Array | None,
    rule: str,
    holds: Callable[[float], bool],
    remedy: str = "",
) -> None:
    """Raises unless a value is a number that obeys a rule, "must be ...".

    Arrays, traced or not, pass. Booleans do not.
    """
    remedy = remedy or REMEDIES.get(name, "")
    if callable(value):
        inject = f"optax.inject_hyperparams(jorge)(..., {name}=schedule)"
        raise TypeError(
            f"{name} must be a number, got a function, {value!r}. Pass a number"
            + (f"; for a schedule of it, {inject}." if name in INJECTED else ".")
        )
    if not (isinstance(value, numbers.Real) or hasattr(value, "dtype")):
        raise TypeError(f"{name} must be a number, got {value!r}. {remedy}".rstrip())
    is_bool = isinstance(value, bool | np.bool_)
    if is_bool or (isinstance(value, numbers.Real) and not holds(float(value))):
        raise ValueError(f"{name} {rule}, got {value}. {remedy}".rstrip())


def check_below_one(name: str, value: float | jax.Array, remedy: str = "") -> None:
    """Raises unless a decay rate lies in [0, 1)."""
    check_number(name, value, "must lie in [0, 1)", lambda x: 0 <= x < 1, remedy)


def check_not_negative(name: str, value: float | jax.Array) -> None:
    """Raises unless a value is finite and at least 0."""
    rule = "must be finite and at least 0"
    check_number(name, value, rule, lambda x: 0 <= x < math.inf)


def check_positive(name: str, value: float | jax.Array, remedy: str = "") -> None:
    """Raises unless a value is positive and finite."""
    rule = "must be positive and finite"
    check_number(name, value, rule, lambda x: 0 < x < math.inf, remedy)


def check_share(name: str, value: float | jax.Array) -> None:
    """Raises unless a value is a reasonable multiple of a matrix's mean diagonal."""
    rule = f"must be finite and at least 0, and at most {LARGEST_SHARE:g}"
    holds = lambda x: 0 <= x <= LARGEST_SHARE  # noqa: E731
    check_number(name, value, rule, holds, REMEDIES["share"])


def check_count(
    name: str, value: float | jax.Array, at_least: int, also: str = "", remedy: str = ""
) -> None:
    """Raises unless a value is an integer that int32 holds, as counts of steps are."""
    rule = f"must be an integer of at least {at_least} and below 2**31{also}"

    def holds(x: float) -> bool:
        return at_least <= x < 2**31 and x == int(x)

    check_number(name, value, rule, holds, remedy)


def check_static_count(name: str, value: Any, at_least: int, remedy: str = "") -> None:
    """Raises unless a value is such a count, and known before tracing."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} counts steps and must be known before tracing, got a traced "
            f"value. Under optax.inject_hyperparams pass static_args=({name!r},)."
        )
    check_count(name, value, at_least, remedy=remedy)


def refuses_mask(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function that is called with ``mask``, optax's word, name ours."""

    @functools.wraps(function)
    def refuse(*args: P.args, **kwargs: P.kwargs) -> R:
        if "mask" in kwargs:
            raise TypeError(
                f"{function.__name__} has no argument mask: write weight_decay_mask=..."
            )
        return function(*args, **kwargs)

    return refuse


def check_learning_rate(value: optax.ScalarOrSchedule | None) -> None:
    """Raises unless a learning rate is a number or a schedule, and not negative."""
    name, kinds = "learning_rate", "must be a number or a schedule"
    if isinstance(value, optax.GradientTransformation):
        raise TypeError(
            f"{name} {kinds}, got an optax transformation. Pass the arguments that it "
            "was made with: for optax.sgd(0.1, momentum=0.9), from_sgd(0.1, "
            "momentum=0.9, weight_decay=...); for optax.adamw(1e-3), from_adamw(1e-3)."
        )
    if isinstance(value, bool) or not (
        callable(value) or isinstance(value, numbers.Real) or hasattr(value, "dtype")
    ):
        raise TypeError(f"{name} {kinds}, got {value!r}. Pass that of a tuned SGD run.")
    rule = "must be finite and at least 0"
    _check_at(name, value, (0,), rule, lambda x: 0 <= x < math.inf, REMEDIES[name])


def check_interval(value: optax.ScalarOrSchedule) -> None:
    """Raises unless an interval is a count of steps, or a schedule of such counts."""
    name = "update_interval"
    if not callable(value):
        check_count(name, value, 1, ", or a schedule of the step", REMEDIES["interval"])
        return
    rule, remedy = "must be at least 1 at every step", REMEDIES["interval schedule"]
    _check_at(name, value, (0, 1000, 10**6), rule, lambda x: 1 <= x < 2**31, remedy)


def _check_at(
    name: str,
    value: optax.ScalarOrSchedule | None,
    steps: tuple[int, ...],
    rule: str,
    holds: Callable[[float], bool],
    remedy: str,
) -> None:
    """Raises unless a number, or a schedule at these steps, obeys a rule."""
    if not callable(value):
        check_number(name, value, rule, holds, remedy)
        return
    for step in steps:
        number = _call_schedule(name, value, step)
        if number is not None and not holds(number):
            raise ValueError(
                f"{name} {rule}, got {number:.7g} at step {step} of its schedule. "
                f"{remedy}"
            )


def _call_schedule(name: str, schedule: Callable[..., Any], step: int) -> float | None:
    """Returns a schedule's value at a step; None if that depends on traced values."""
    must = (
        f"{name} must be a number or a schedule, a function of the step that returns "
        "one number"
    )
    try:
        with jax.ensure_compile_time_eval():
            value = schedule(jnp.asarray(step, jnp.int32))
    except Exception as error:
        raise TypeError(
            f"{must}, got {schedule!r}: calling it with step {step} failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(value, Tracer):
        return None
    try:
        return float(np.asarray(value, np.float64).reshape(()))
    except (TypeError, ValueError) as error:
        array = hasattr(value, "shape")
        text = f"an array of shape {value.shape}" if array else repr(value)
        raise TypeError(
            f"{must}, got {schedule!r}, which returns {text} at step {step}."
        ) from error


def check_mask(mask: Any) -> None:
    """Raises unless a mask of the decay is None, a function or a tree of booleans."""
    if mask is not None and not callable(mask):
        check_booleans(mask)


def check_booleans(mask: Any, *, alone: bool = False) -> None:
    """Raises unless a mask is a tree of booleans; ``alone`` allows a single one."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(mask)[0]:
        is_bool = isinstance(leaf, bool | np.bool_) or (
            hasattr(leaf, "dtype") and leaf.dtype == np.dtype("bool") and not leaf.ndim
        )
        if is_bool and (path or alone):
            continue
        # inject_hyperparams calls the mask with the step, and passes what it returns.
        inject = (
            "optax.inject_hyperparams takes a function for a schedule: give it "
            "static_args=('weight_decay_mask',). "
        )
        raise TypeError(
            "weight_decay_mask must be a tree of booleans like the parameters, or a "
            f"function of the parameters that returns one, got {leaf!r}"
            + (f" at {jax.tree_util.keystr(path)}" if path else "")
            + f". {inject if is_bool else ''}{REMEDIES['mask']}"
        )


def check_tiling(max_dim: Any, view: Any, leave_out: Any) -> None:
    """Raises unless these are the attributes of a Tiling."""
    if not isinstance(max_dim, int) or isinstance(max_dim, bool):
        raise TypeError(
            "Tiling.max_dim must be a Python int, since it decides shapes; got "
            f"{max_dim!r}."
        )
    if max_dim < 1:
        raise ValueError(f"Tiling.max_dim must be at least 1, got {max_dim}.")
    if not callable(view):
        raise TypeError(
            "Tiling.view must be a function of a path and a shape that returns a "
            f"MatrixView or None; got {view!r}."
        )
    try:
        hash(view)
    except TypeError as error:
        raise TypeError(
            "Tiling.view must be hashable, since plans of stacks are cached by it; got "
            f"{view!r}. Pass a function, or an object with __hash__, such as a frozen "
            "dataclass."
        ) from error
    if not isinstance(leave_out, tuple) or not all(
        isinstance(word, str) and word for word in leave_out
    ):
        instead = f": write leave_out=({leave_out!r},)" if leave_out else ""
        raise TypeError(
            f"leave_out must be a tuple of words, got {leave_out!r}"
            + (instead if isinstance(leave_out, str) else "")
            + "."
        )


def check_leave_out(tree: Any, words: tuple[str, ...]) -> None:
    """Raises ValueError for a word of ``leave_out`` that matches no parameter.

    A tree that is empty, or has parts left out by ``optax.masked`` and the like, may be
    a part of the parameters: then nothing is raised.
    """
    is_part = lambda x: isinstance(x, optax.MaskedNode)  # noqa: E731
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_part)[0]
    paths = [normalise_path(path) for path, _ in leaves]
    if not paths or any(is_part(leaf) for _, leaf in leaves):
        return
    names = sorted({name for path in paths for name in path.split("/")} | set(paths))
    for word in words:
        if not any(has_word(path, (word,)) for path in paths):
            near = difflib.get_close_matches(word.strip("/"), names, 3, 0.4)
            nearest = f"The nearest names are {', '.join(map(repr, near))}. "
            raise ValueError(
                f"leave_out: no parameter has {word!r} in its path. "
                + nearest * bool(near)
                + f"Paths are such as {paths[0]!r}; jorge_optax.describe(params) shows "
                "them all."
            )


def as_float(value: Any) -> Any:
    """Returns Python's and NumPy's numbers as floats, all else unchanged.

    jax makes an int32 of an integer, which overflows from ``2**31`` on: with an error
    if the integer is Python's, and silently if it is NumPy's.
    """
    return float(value) if isinstance(value, numbers.Real) else value


def is_zero(value: float | jax.Array | None) -> bool:
    """Returns whether a value is the number 0, known before tracing."""
    return isinstance(value, numbers.Real) and bool(value == 0)


def canonical_dtype(name: str, value: Any) -> np.dtype:
    """Validates and canonicalizes a state dtype."""
    try:
        dtype = jnp.dtype("no dtype" if value is None else value)
    except TypeError as error:
        raise ValueError(
            f"{name} must name a floating-point dtype, got {value!r}. {CHOOSE_DTYPE}"
        ) from error
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).nexp < 8:
        raise ValueError(
            f"{name} must be a floating-point dtype with float32's range of exponents, "
            f"got {dtype}: roots and momenta may be as small or large as gradients "
            f"are. {CHOOSE_DTYPE}"
        )
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"{name}={dtype.name!r} needs jax's 64-bit mode, which is off: call "
            "jax.config.update('jax_enable_x64', True) first, or choose 'float32'."
        )
    return dtype


def check_precision(name: str, value: Any) -> None:
    """Raises ValueError unless a value names a precision of matrix products."""
    try:
        jax.lax.Precision(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a precision that jax.numpy.matmul takes, got {value!r}. "
            "Choose 'highest', 'high' or 'default'."
        ) from error


def check_transformation(name: str, value: Any) -> None:
    """Raises TypeError unless a value is an optax transformation or None."""
    if value is not None and not isinstance(value, optax.GradientTransformation):
        raise TypeError(
            f"{name} must be an optax.GradientTransformation or None, got {value!r}."
        )


def normalise_path(path: jax.tree_util.KeyPath) -> str:
    """Joins the keys of a path by slashes, alike for dicts, modules and nnx.

    In ``init``, nnx has a ``Variable`` node around each array, whose path ends in an
    attribute ``value`` that it does not have in ``update``: it is dropped.
    """
    keys = list(path)
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys.pop()
    return jax.tree_util.keystr(tuple(keys), simple=True, separator="/")


def checked_leaves(tree: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns path and shape of each leaf; raises for what Jorge cannot train."""
    leaves = [
        (normalise_path(path), leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    for path, leaf in leaves:
        check_leaf(path, leaf)
    return tuple((path, tuple(leaf.shape)) for path, leaf in leaves)


def check_leaf(path: str, leaf: Any) -> None:
    """Raises TypeError unless a leaf is an array that Jorge can train."""
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise TypeError(
            f"The parameter {path!r} is {leaf!r}, not an array: Jorge takes pytrees of "
            f"floating-point arrays. Make it an array, or {REMEDIES['leave out']}."
        )
    text = f"The parameter {path!r} of shape {tuple(leaf.shape)} has dtype {leaf.dtype}"
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        raise TypeError(
            f"{text}, but Jorge's roots are real. Wrap the optimizer in "
            "optax.contrib.split_real_and_imaginary."
        )
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(
            f"{text}, but Jorge trains floating-point parameters only. "
            f"{REMEDIES['leave out'].capitalize()}; of a flax.nnx module, pass "
            "nnx.state(model, nnx.Param)."
        )
    if jnp.dtype(leaf.dtype).itemsize < 2:
        raise TypeError(
            f"{text}, but Jorge trains parameters of 16 bits or more: smaller ones "
            "would round its steps away. Keep the parameter in bfloat16 or float32 and "
            f"cast it in the forward pass, or {REMEDIES['leave out']}."
        )


def check_gradients(gradients: Any, params: Any | None) -> None:
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
        shape = None if gradient is None else jnp.shape(gradient)
        if parameter is None or jnp.shape(parameter) == shape:
            continue
        text = "is None" if gradient is None else f"has shape {shape}"
        raise ValueError(
            f"The gradient of the parameter {normalise_path(path)!r} {text}, but the parameter "
            f"has shape {jnp.shape(parameter)}. {REMEDIES['gradients']}"
        )


def check_state(expected: Any, state: Any, plan: Any, gradients: Any) -> None:
    """Raises ValueError if the state of the tiles does not fit the gradients.

    Args:
      expected: The state that ``init`` makes for tiles like the gradients'.
      state: The state that was passed.
      plan: The plan of the gradients.
      gradients: The gradients.
    """
    if type(state) is type(expected):
        state = state._replace(others=())
    wanted, found = _shapes(expected), _shapes(state)
    same = jax.tree.structure(expected) == jax.tree.structure(state)
    if not same or wanted != found:
        raise ValueError(_misfit(expected, state, plan, gradients))
    # Momenta may be narrower than these gradients ask for: they keep their dtype.
    ours = jax.tree_util.tree_flatten_with_path((expected.count, expected.roots))[0]
    theirs = jax.tree.leaves((state.count, state.roots))
    for (path, one), other in zip(ours, theirs, strict=True):
        if one.dtype != jnp.result_type(other):
            name = ("count", "roots")[path[0].idx]
            raise ValueError(
                f"The optimizer's state has dtype {jnp.result_type(other)} at "
                f"{name}{jax.tree_util.keystr(path[1:])}, but the optimizer keeps "
                f"{one.dtype} there. Restore a state with the dtype of roots that it "
                "was made with, or cast it to this one; otherwise call init again."
            )


def _misfit(expected: Any, state: Any, plan: Any, gradients: Any) -> str:
    """Says where a state does not fit."""
    wanted, found = _shapes(expected), _shapes(state)
    places = [p for p in wanted if p not in found] + [*wanted, *found]
    place = next((p for p in places if wanted.get(p) != found.get(p)), "its root")
    has, needs = (_text(shapes.get(place)) for shapes in (found, wanted))
    ours = type(state) is type(expected)
    if ours and _shapes(state.roots) == _shapes(expected.roots):
        difference = f": it has {has} at {place}, where this optimizer keeps {needs}"
        return (
            "The optimizer's state was made with another rule or grafting"
            + difference * (wanted != found)
            + f". {REMEDIES['rule']}"
        )
    culprits = [
        f"{leaf.path!r} of shape {leaf.shape}"
        for leaf in plan.leaves
        if leaf.stack and f"'{leaf.stack}'" in place
    ]
    tree = jax.tree_util.tree_flatten_with_path(gradients, is_leaf=lambda x: x is None)
    nones = [repr(normalise_path(path)) for path, leaf in tree[0] if leaf is None]
    text = (
        f"The gradients do not fit the optimizer's state: the state has {has} at "
        f"{place}, the gradients need {needs}"
    )
    if culprits:
        text += f", where the tiles of {', '.join(culprits[:3])} lie"
    if nones:
        text += f". The gradients have None at {', '.join(nones[:3])}"
    text += f". {REMEDIES['state']}"
    if (wanted.get(place) or (0,))[1:] == (found.get(place) or (1, 0))[1:]:
        text += f" {REMEDIES['devices']}"
    return text


def check_others(gradients: Any, expected: Any, state: Any) -> None:
    """Raises ValueError if the state of parameters without roots does not fit."""
    wanted, found = _shapes(expected, normalise_path), _shapes(state, normalise_path)
    if wanted == found:
        return
    fit = "The gradients do not fit the optimizer's state: "
    unused = dict(found)
    for path, leaf in _shapes(gradients, normalise_path).items():
        own = {p: s for p, s in found.items() if f"/{p}".endswith(f"/{path}")}
        if not own or any(shape != leaf for shape in own.values()):
            kept = _text(next(iter(own.values()), None), "nothing")
            raise ValueError(
                f"{fit}for {path!r} of shape {leaf} the state has {kept}. "
                f"{REMEDIES['state']}"
            )
        unused = {p: shape for p, shape in unused.items() if p not in own}
    for place, shape in unused.items():
        if shape:  # counts are scalars
            raise ValueError(
                f"{fit}the state has {_text(shape)} at {place!r}, the gradients have "
                f"nothing there. {REMEDIES['state']}"
            )
    raise ValueError(
        "The optimizer's state was made with another rule or grafting. "
        f"{REMEDIES['rule']}"
    )


def _shapes(
    tree: Any, name: Callable[..., str] = jax.tree_util.keystr
) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name(path): tuple(jnp.shape(leaf)) for path, leaf in leaves}


def _text(shape: tuple[int, ...] | None, nothing: str = "no tiles") -> str:
    return nothing if shape is None else f"an array of shape {shape}"
