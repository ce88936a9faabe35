"""Every optimizer whose cost is measured, each with weight decay and a momentum of 0.9.

What Jorge, Shampoo and PSGD-Kron precondition with is refreshed at every second step:
of two steps one is plain, one a refresh, and what an interval costs follows from these.
"""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.baselines.muon import dimension_numbers, muon
from benchmarks.baselines.psgd import psgd
from examples.shared.shampoo import shampoo
from jorge_optax import Composite, jorge

INTERVAL = 2
# Those whose steps differ: the steps between refreshes are plain.
WITH_ROOTS = ("jorge", "composite", "shampoo", "psgd")
DECAY = 1e-3


def contenders() -> dict[str, optax.GradientTransformation]:
    """By name; PSGD-Kron only if it is installed."""
    rate = optax.constant_schedule(1e-3)
    options = dict(update_interval=INTERVAL)
    found = {
        "sgd": optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(1e-3, 0.9)),
        "adamw": optax.adamw(rate, weight_decay=1e-2),
        "jorge": jorge(rate, 0.9, DECAY, **options),
        "composite": jorge(rate, 0.9, DECAY, refresh=Composite(), **options),
        "shampoo": shampoo(rate, 0.9, DECAY, **options),
        "muon": _decayed(muon(rate, kernel_dimensions)),
    }
    if importlib.util.find_spec("psgd_jax"):
        found["psgd"] = _decayed(psgd(rate, update_probability=_every_second))
    return found


def _every_second(count: jax.Array) -> jax.Array:
    """PSGD-Kron's probability of a refresh; its first count is 1."""
    return jnp.where(count % INTERVAL == 1, 1.0, 1e-6)


def kernel_dimensions(params: Any) -> Any:
    """Muon's dimension numbers: kernels, HWIO or IO, as matrices, outputs last."""

    return jax.tree.map(dimension_numbers, params)


def _decayed(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """With decoupled decay: these baselines come without."""
    return optax.chain(optimizer, optax.add_decayed_weights(-1e-3 * DECAY))
