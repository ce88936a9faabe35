"""Defines the optimizers whose cost is measured, with weight decay and momentum 0.9.

Jorge, Shampoo and PSGD-Kron refresh their preconditioners at every second step, so that
plain steps and refresh steps are timed equally often. The cost of any other interval
follows from these two.
"""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.baselines.muon import dimension_numbers, muon
from benchmarks.baselines.psgd import psgd
from examples.shared.shampoo import Shampoo
from jorge_optax import Whitening, jorge

INTERVAL = 2
# Optimizers with two kinds of steps: plain ones, and those that refresh.
WITH_ROOTS = ("jorge", "whitening", "shampoo", "psgd")
DECAY = 1e-3
# Early refreshes would make all timed steps refresh.
WHITENING = Whitening(early_refreshes=0)


def contenders() -> dict[str, optax.GradientTransformation]:
    """Returns the optimizers by name; PSGD-Kron only if it is installed."""
    rate = optax.constant_schedule(1e-3)
    options = dict(update_interval=INTERVAL)
    found = {
        "sgd": optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(1e-3, 0.9)),
        "adamw": optax.adamw(rate, weight_decay=1e-2),
        "jorge": jorge(rate, 0.9, DECAY, **options),
        "whitening": jorge(rate, 0.9, DECAY, rule=WHITENING, **options),
        "shampoo": jorge(rate, 0.9, DECAY, rule=Shampoo(), **options),
        "muon": _decayed(muon(rate, kernel_dimensions)),
    }
    if importlib.util.find_spec("psgd_jax"):
        found["psgd"] = _decayed(psgd(rate, update_probability=_every_second))
    return found


def _every_second(count: jax.Array) -> jax.Array:
    """Probability of a refresh of PSGD-Kron, which counts steps from 1."""
    return jnp.where(count % INTERVAL == 1, 1.0, 1e-6)


def kernel_dimensions(params: Any) -> Any:
    """Returns Muon's dimension numbers: kernels as matrices, outputs last."""
    return jax.tree.map(dimension_numbers, params)


def _decayed(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Adds decoupled weight decay to a baseline that has none."""
    return optax.chain(optimizer, optax.add_decayed_weights(-1e-3 * DECAY))
