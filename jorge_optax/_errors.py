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
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from jorge_optax.views import has_word

P = ParamSpec("P")
R = TypeVar("R")

Must: TypeAlias = tuple[str, Callable[[float], bool]]
"""What a number must be, in words and as a test."""

DECAY_RATE: Must = "must lie in [0, 1)", lambda x: 0 <= x < 1
POSITIVE: Must = "must be positive and finite", lambda x: 0 < x < math.inf
NOT_NEGATIVE: Must = "must be finite and at least 0", lambda x: 0 <= x < math.inf
# A multiple of a matrix's mean diagonal. Beyond it, sums with the identity would round
# the gradient away.
SHARE: Must = (
    "must be finite and at least 0, and at most 1e+06",
    lambda x: 0 <= x <= 1e6,
)


def count_from(least: int, also: str = "") -> Must:
    """A count of steps, which int32 must hold."""
    return (
        f"must be an integer of at least {least} and below 2**31{also}",
        lambda x: least <= x < 2**31 and x == int(x),
    )


# Options whose schedule optax.inject_hyperparams takes.
INJECTED = ("momentum", "weight_decay")
LEAVE_OUT = "leave it out with optax.masked or optax.partition"
CHOOSE_DTYPE = "Choose 'float32', 'bfloat16' or 'float64'."
OF_DAMPING = (
    "With more than 1e+06 times the identity, nothing of the gradient would be left in "
    "float32."
)
# By the name of an option, or of what is refused.
REMEDIES = {
    "momentum": "A value of 0.9 is usual.",
    "learning_rate": (
        "Pass that of a tuned SGD run: jorge subtracts its steps, as optax.sgd does."
    ),
    "update_interval": (
        "The roots are refreshed every update_interval steps: pass 1 to refresh them "
        "at every step, a large number to refresh them rarely."
    ),
    "update_interval schedule": (
        "It counts the steps between refreshes and is not a learning-rate schedule: "
        "pass a number, or a schedule such as tuning.growing_interval_schedule(50)."
    ),
    "BinomialSeries.eps": (
        "Every root starts as eps**(-1/4) times the identity; the default is 1e-6."
    ),
    "BinomialSeries.damping": OF_DAMPING,
    "Whitening.damping": OF_DAMPING,
    "gradients": (
        "Pass gradients as jax.grad of the loss returns them, with zeros for a "
        "parameter that the loss does not use, or leave the parameter out with "
        "optax.masked or optax.partition."
    ),
    "state": (
        "Pass gradients of the same tree and shapes as the parameters given to init, "
        "and restore a state only under the Tiling, the rule and the grafting it was "
        "made with; otherwise call init again."
    ),
    "devices": (
        "A state that was saved on another number of devices first goes through "
        "jorge_optax.reshard_state."
    ),
    "mask": (
        "To decay matrices and kernels only, pass lambda params: "
        "jax.tree.map(lambda p: p.ndim > 1, params)."
    ),
}


def check_number(
    name: str, value: float | jax.Array | None, must: Must, remedy: str = ""
) -> None:
    """Raises unless a value is a number as it must be. Arrays, traced or not, pass."""
    remedy = remedy or REMEDIES.get(name, "")
    if callable(value):
        inject = f"optax.inject_hyperparams(jorge)(..., {name}=schedule)"
        raise TypeError(
            f"{name} must be a number, got a function, {value!r}. Pass a number"
            + (f"; for a schedule of it, {inject}." if name in INJECTED else ".")
        )
    if not (isinstance(value, numbers.Real) or hasattr(value, "dtype")):
        raise TypeError(f"{name} must be a number, got {value!r}. {remedy}".rstrip())
    text, holds = must
    is_bool = isinstance(value, bool | np.bool_)
    if is_bool or (isinstance(value, numbers.Real) and not holds(float(value))):
        raise ValueError(f"{name} {text}, got {value}. {remedy}".rstrip())


def check_static_count(name: str, value: Any, least: int, remedy: str = "") -> None:
    """Raises unless a value is a count of steps that is known before tracing."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} counts steps and must be known before tracing, got a traced "
            f"value. Under optax.inject_hyperparams pass static_args=({name!r},)."
        )
    check_number(name, value, count_from(least), remedy)


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
    if callable(value):
        check_schedule(name, value, (0,), NOT_NEGATIVE)
    else:
        check_number(name, value, NOT_NEGATIVE)


def check_interval(value: optax.ScalarOrSchedule) -> None:
    """Raises unless an interval is a count of steps, or a schedule of such counts."""
    name = "update_interval"
    if callable(value):
        must = "must be at least 1 at every step", lambda x: 1 <= x < 2**31
        check_schedule(name, value, (0, 1000, 10**6), must)
    else:
        check_number(name, value, count_from(1, ", or a schedule of the step"))


def check_schedule(
    name: str, schedule: optax.Schedule, steps: tuple[int, ...], must: Must
) -> None:
    """Raises unless a schedule returns, at some steps, numbers as they must be."""
    text, holds = must
    is_schedule = (
        f"{name} must be a number or a schedule, a function of the step that returns "
        f"one number, got {schedule!r}"
    )
    for step in steps:
        try:
            with jax.ensure_compile_time_eval():
                value: Any = schedule(jnp.asarray(step, jnp.int32))
        except Exception as error:
            raise TypeError(
                f"{is_schedule}: calling it with step {step} failed with "
                f"{type(error).__name__}: {error}"
            ) from error
        if isinstance(value, Tracer):
            continue
        try:
            number = float(np.asarray(value, np.float64).reshape(()))
        except (TypeError, ValueError) as error:
            array = hasattr(value, "shape")
            found = f"an array of shape {value.shape}" if array else repr(value)
            raise TypeError(
                f"{is_schedule}, which returns {found} at step {step}."
            ) from error
        if not holds(number):
            remedy = REMEDIES.get(f"{name} schedule", REMEDIES[name])
            raise ValueError(
                f"{name} {text}, got {number:.7g} at step {step} of its schedule. "
                f"{remedy}"
            )


def as_float(value: Any) -> Any:
    """Returns Python's and NumPy's numbers as floats, all else unchanged.

    jax makes an int32 of an integer, which overflows from ``2**31`` on: with an error
    if the integer is Python's, and silently if it is NumPy's.
    """
    return float(value) if isinstance(value, numbers.Real) else value


def check_type(name: str, value: Any, types: Any, must: str, remedy: str = "") -> None:
    """Raises TypeError unless a value has one of the types; no boolean does."""
    if not isinstance(value, types) or isinstance(value, bool):
        raise TypeError(f"{name} must be {must}, got {value!r}. {remedy}".rstrip())


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


def check_mask(mask: Any, *, alone: bool = False) -> None:
    """Raises unless a mask of the decay is a tree of booleans, a function, or None.

    Args:
      mask: The mask.
      alone: Whether a single boolean will do, as a function may return it.
    """
    if mask is None or (callable(mask) and not alone):
        return
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


def check_words(words: Any) -> None:
    """Raises TypeError unless ``leave_out`` is a tuple of words."""
    is_tuple = isinstance(words, tuple)
    if not is_tuple or not all(isinstance(word, str) and word for word in words):
        instead = f" Write leave_out=({words!r},)." * (
            isinstance(words, str) and words != ""
        )
        raise TypeError(f"leave_out must be a tuple of words, got {words!r}.{instead}")


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
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise TypeError(
                f"The parameter {path!r} is {leaf!r}, not an array: Jorge takes trees "
                f"of floating-point arrays. Make it an array, or {LEAVE_OUT}."
            )
        reason = ""
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            reason = (
                "Jorge's roots are real. Wrap the optimizer in "
                "optax.contrib.split_real_and_imaginary."
            )
        elif not jnp.issubdtype(leaf.dtype, jnp.floating):
            reason = (
                "Jorge trains floating-point parameters only. "
                f"{LEAVE_OUT.capitalize()}; of a flax.nnx module, pass "
                "nnx.state(model, nnx.Param)."
            )
        elif jnp.dtype(leaf.dtype).itemsize < 2:
            reason = (
                "Jorge trains parameters of 16 bits or more: smaller ones would round "
                "its steps away. Keep the parameter in bfloat16 or float32 and cast it "
                f"in the forward pass, or {LEAVE_OUT}."
            )
        if reason:
            raise TypeError(
                f"The parameter {path!r} of shape {tuple(leaf.shape)} has dtype "
                f"{leaf.dtype}, but {reason}"
            )
    return tuple((path, tuple(leaf.shape)) for path, leaf in leaves)


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
            f"The gradient of the parameter {normalise_path(path)!r} {text}, but the "
            f"parameter has shape {jnp.shape(parameter)}. {REMEDIES['gradients']}"
        )


def check_state(expected: Any, state: Any, plan: Any, gradients: Any) -> None:
    """Raises ValueError if a state does not fit the gradients.

    Args:
      expected: The state that ``init`` makes for such gradients.
      state: The state that was passed.
      plan: The plan of the gradients.
      gradients: The gradients.
    """
    wanted, found = by_path(expected), by_path(state)
    shapes, others = (
        {p: jnp.shape(x) for p, x in own.items()} for own in (wanted, found)
    )
    if shapes == others:
        # Momenta may be narrower than these gradients ask for: they keep their dtype.
        for place in (p for p in wanted if p.startswith(("count", "roots/"))):
            dtype, other = wanted[place].dtype, jnp.result_type(found[place])
            if dtype != other:
                raise ValueError(
                    f"The optimizer's state has dtype {other} at {place}, but the "
                    f"optimizer keeps {dtype} there. Restore a state with the dtype of "
                    "roots that it was made with, or cast it to this one; otherwise "
                    "call init again."
                )
        return
    differ = [p for p in (*shapes, *others) if shapes.get(p) != others.get(p)]
    place = next((p for p in differ if p not in others), differ[0])
    of_others, named = place.startswith("others/"), f"/{place}/"
    culprits = [
        f"{leaf.path!r} of shape {leaf.shape}"
        for leaf in plan.leaves
        if (f"/{leaf.stack}/" if leaf.stack else f"/{leaf.path}/") in named
        and bool(leaf.stack) != of_others
    ]
    paths = jax.tree_util.tree_flatten_with_path(gradients, is_leaf=lambda x: x is None)
    nones = [repr(normalise_path(path)) for path, leaf in paths[0] if leaf is None]
    has, needs = (
        f"an array of shape {own[place]}" if place in own else "nothing"
        for own in (others, shapes)
    )
    text = f"the state has {has} at {place}, the gradients need {needs}"
    if culprits:
        text += f" for {', '.join(culprits[:3])}"
    if nones:
        text += f". The gradients have None at {', '.join(nones[:3])}"
    text = (
        f"The gradients do not fit the optimizer's state: {text}. {REMEDIES['state']}"
    )
    if not of_others and shapes.get(place, (0,))[1:] == others.get(place, (1, 0))[1:]:
        text += f" {REMEDIES['devices']}"
    raise ValueError(text)


def by_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    return {normalise_path(path): leaf for path, leaf in leaves}
