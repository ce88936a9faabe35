"""Builds optimizers by name, from a configuration."""

import math
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import NamedSharding

from examples.shared.config import Config, Schedule
from examples.shared.shampoo import Shampoo
from jorge_optax import BinomialSeries, Rule, Whitening, from_sgd
from jorge_optax.tuning import thirds_decay_schedule

SGD_SCHEDULE, THIRDS = "/sgd-schedule", "/thirds"
DISTRIBUTED_SHAMPOO = "distributed-shampoo"
RULES: dict[str, Rule] = {
    "shampoo": Shampoo(),
    "jorge": BinomialSeries(),
    "jorge-whitening": Whitening(),
    DISTRIBUTED_SHAMPOO: Shampoo(),
}
FROM_SGD = tuple(RULES)
OPTIMIZERS = ("sgd", "adamw", *FROM_SGD)


class Built(NamedTuple):
    """An optimizer, what it was built with, and its learning rate by step.

    Where it has roots, `rooted` is Jorge's own transformation, which prints what it was
    built with; `transformation` has the same state.
    """

    transformation: optax.GradientTransformation
    settings: dict[str, Any]
    learning_rate: optax.Schedule
    rooted: optax.GradientTransformation | None = None


def check_name(name: str) -> None:
    """Raises a ValueError if no optimizer has that name."""
    base = base_name(name)
    suffix = name.removeprefix(base)
    suffixes = ("", SGD_SCHEDULE if base in FROM_SGD else THIRDS)
    if base not in OPTIMIZERS or suffix not in suffixes:
        raise ValueError(
            f"No optimizer {name!r}; there are {', '.join(OPTIMIZERS)}. Those that "
            f"take their settings from SGD ({', '.join(FROM_SGD)}) keep SGD's schedule "
            f"too with {SGD_SCHEDULE!r} after the name; the others have step decay in "
            f"thirds with {THIRDS!r}."
        )


def base_name(name: str) -> str:
    """Returns the name without its suffix."""
    return name.partition("/")[0]


def spreads(name: str) -> bool:
    """Returns whether the optimizer's roots are always spread over the devices."""
    return base_name(name) == DISTRIBUTED_SHAMPOO


def build(
    name: str,
    config: Config,
    *,
    steps: int,
    steps_per_epoch: int,
    sharding: NamedSharding | None = None,
) -> Built:
    """Builds the optimizer of that name for a run of `steps` steps.

    `sgd` and `adamw` have the configuration's settings. `jorge` (the paper's rule),
    `jorge-whitening` and `shampoo` (exact roots) have none: learning rate, weight decay
    and step decay in thirds follow from SGD's, as in
    `jorge_optax.from_sgd_as_published`. With the suffix "/sgd-schedule" they
    keep SGD's schedule; with "/thirds" SGD and AdamW have Jorge's. Those with roots
    spread them over the devices of `sharding`; `distributed-shampoo` is `shampoo` that
    always does.
    """
    check_name(name)
    mask = None if config.decay_all else kernels
    base, sgd, adamw = base_name(name), config.sgd, config.adamw
    baseline = adamw if base == "adamw" else sgd
    length = {"steps": steps, "steps_per_epoch": steps_per_epoch}
    settings, rooted = vars(baseline), None
    if name.endswith(THIRDS) or name in FROM_SGD:
        rate = thirds(config, baseline.learning_rate, **length)
        settings = {**settings, "schedule": "step decay in thirds"}
    else:
        rate = schedule(baseline.schedule, baseline.learning_rate, **length)
    if base == "sgd":
        transformation = optax.chain(
            optax.add_decayed_weights(sgd.weight_decay, mask),
            optax.sgd(rate, sgd.momentum),
        )
    elif base == "adamw":
        transformation = optax.adamw(
            rate, adamw.b1, adamw.b2, weight_decay=adamw.weight_decay, mask=mask
        )
    else:
        transformation = rooted = from_sgd(
            rate,
            sgd.momentum,
            sgd.weight_decay,
            weight_decay_mask=mask,
            rule=RULES[base],
            update_interval=config.update_interval,
            sharding=sharding,
        )
    if config.learning_rate_factors:
        transformation = scale_parts(transformation, config.learning_rate_factors)
    return Built(transformation, settings, rate, rooted)


def thirds(
    config: Config, peak: float, steps: int, steps_per_epoch: int
) -> optax.Schedule:
    """Returns the paper's step decay in thirds, with the warm-up of SGD."""
    if steps < 3:
        raise ValueError(
            f"A run of {steps} steps has no thirds for the step decay: pass --steps of "
            f"3 or more, or an optimizer with {SGD_SCHEDULE!r} after its name."
        )
    # The paper rounds thirds down to whole epochs, which few epochs do not allow.
    whole = config.epochs >= 20 and steps == config.epochs * steps_per_epoch
    third = config.epochs // 3 * steps_per_epoch if whole else steps // 3
    return thirds_decay_schedule(
        peak,
        steps,
        warmup_steps=config.sgd.schedule.warmup_epochs * steps_per_epoch,
        boundaries=(third, 2 * third),
    )


def schedule(
    kind: Schedule, learning_rate: float, steps: int, steps_per_epoch: int
) -> optax.Schedule:
    """Returns the learning rate by step; a warm-up counts as part of the run."""
    if kind.kind == "cosine":
        base = optax.cosine_decay_schedule(learning_rate, steps)
    elif kind.kind == "polynomial":
        base = optax.polynomial_schedule(learning_rate, 0.0, kind.power, steps)
    elif kind.kind == "steps":
        drops = {int(epoch * steps_per_epoch): 0.1 for epoch in kind.drops}
        base = optax.piecewise_constant_schedule(learning_rate, drops)
    else:
        raise ValueError(
            f"No schedule {kind.kind!r}; there are cosine, polynomial and steps."
        )
    warmup = kind.warmup_epochs * steps_per_epoch
    if not warmup:
        return base
    return lambda count: base(count) * jax.numpy.minimum(1.0, (count + 1) / warmup)


def kernels(params: optax.Params) -> optax.Params:
    """Returns a mask that leaves out biases and the scales of norms."""
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def scale_parts(
    inner: optax.GradientTransformation, factors: tuple[tuple[str, float], ...]
) -> optax.GradientTransformationExtraArgs:
    """Scales the updates of parameters whose path has a part, "a" or "a/b".

    The state is that of the inner transformation.
    """
    update_inner = optax.with_extra_args_support(inner).update

    def scale(path, step):
        names = (str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        place = f"/{'/'.join(names)}/"
        return step * math.prod(by for part, by in factors if f"/{part}/" in place)

    def update(updates, state, params=None, **extra_args):
        steps, state = update_inner(updates, state, params, **extra_args)
        return jax.tree_util.tree_map_with_path(scale, steps), state

    return optax.GradientTransformationExtraArgs(inner.init, update)
