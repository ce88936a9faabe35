"""PSGD-Kron, from the package psgd-jax 0.2.9 (`pip install psgd-jax==0.2.9`)."""

import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any

import optax
import optax.transforms._clipping


def psgd(
    learning_rate: optax.Schedule,
    momentum: float = 0.9,
    update_probability: Callable[..., Any] | None = None,
) -> optax.GradientTransformation:
    """Returns PSGD-Kron with the defaults of its authors.

    The default update probability stays at 1 for 500 steps, longer than the problems
    here, and then falls to 0.03. A function of the step, counted from 1, replaces it.
    """
    # The package imports clipping from where older versions of optax have it.
    optax._src.clipping = optax.transforms._clipping  # pyright: ignore
    kron = importlib.import_module("psgd_jax.kron")  # in none of the extras
    options = {}
    if update_probability is not None:
        options["preconditioner_update_probability"] = update_probability
    inner = kron.kron(learning_rate, b1=momentum, **options)

    def init_fn(params):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its sizes
            return inner.init(params)

    return optax.GradientTransformation(init_fn, inner.update)
