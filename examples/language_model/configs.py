"""The workload, and the optimizers that are compared on it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax
from optax import contrib

from jorge_optax import BinomialSeries, from_adamw


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes, length and learning rates.

    Attributes:
      context: bytes that the model sees.
      width: of the residual stream.
      heads: of each attention.
      layers: blocks.
      batch_size: pieces of text in a step.
      held_out: pieces of text in an evaluation.
      steps: length of a run.
      warmup: steps until the learning rate has risen; a cosine to a tenth follows.
      eval_every: steps between evaluations.
      adamw_rate: AdamW's tuned learning rate, which Jorge takes over.
      muon_rate: Muon's tuned learning rate.
      weight_decay: decoupled, of all optimizers.
    """

    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2
    batch_size: int = 16
    held_out: int = 64
    steps: int = 150
    warmup: int = 15
    eval_every: int = 10
    adamw_rate: float = 8e-3
    muon_rate: float = 1.6e-2
    weight_decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.95


def schedule(config: Config, rate: float) -> optax.Schedule:
    """Returns a warm-up, then a cosine to a tenth."""
    return optax.warmup_cosine_decay_schedule(
        0.0, rate, config.warmup, config.steps, 0.1 * rate
    )


def adamw(config: Config) -> optax.GradientTransformation:
    return optax.adamw(
        schedule(config, config.adamw_rate),
        config.b1,
        config.b2,
        weight_decay=config.weight_decay,
    )


def hidden_matrices(params: Any) -> Any:
    """Returns Muon's dimension numbers for the matrices of blocks, None for others."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            contrib.MuonDimensionNumbers(0, 1)
            if leaf.ndim == 2 and "blocks" in jax.tree_util.keystr(path)
            else None
        ),
        params,
    )


def muon(config: Config) -> optax.GradientTransformation:
    """Muon for the matrices of the blocks, AdamW for the rest, as its authors do."""
    return contrib.muon(
        schedule(config, config.muon_rate),
        weight_decay=config.weight_decay,
        adam_b1=config.b1,
        adam_b2=config.b2,
        adam_weight_decay=config.weight_decay,
        adam_learning_rate=schedule(config, config.adamw_rate),
        muon_weight_dimension_numbers=hidden_matrices,
        consistent_rms=0.2,  # of Adam's steps: rates are of the same order
    )


def jorge(config: Config, rule=None) -> optax.GradientTransformation:
    """Jorge with AdamW's settings, untuned."""
    return from_adamw(
        schedule(config, config.adamw_rate),
        config.b1,
        config.b2,
        weight_decay=config.weight_decay,
        rule=rule,
    )


OPTIMIZERS: dict[str, Callable[[Config], optax.GradientTransformation]] = {
    "adamw": adamw,
    "muon": muon,
    "jorge": lambda config: jorge(config, BinomialSeries()),
    "jorge-whitening": jorge,
}

NOTE = """\
AdamW, Muon: learning rates tuned, on another seed.
Jorge: not tuned; AdamW's settings by from_adamw."""
