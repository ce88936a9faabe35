"""Builds optimizers by name, from a configuration."""

from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import NamedSharding

from examples.shared.config import Config, Schedule
from examples.shared.shampoo import ShampooRule
from jorge_optax import (
    BinomialSeries,
    JorgeConfig,
    Rule,
    Whitening,
    from_sgd,
)

SGD_SCHEDULE, THIRDS = "/sgd-schedule", "/thirds"
DISTRIBUTED_SHAMPOO = "distributed-shampoo"
RULES: dict[str, Rule] = {
    "shampoo": ShampooRule(),
    "jorge": BinomialSeries(),
    "jorge-whitening": Whitening(),
    DISTRIBUTED_SHAMPOO: ShampooRule(),
}
FROM_SGD = tuple(RULES)
OPTIMIZERS = ("sgd", "adamw", *FROM_SGD)


class Built(NamedTuple):
    """An optimizer, what it was built with, and its learning rate by step.

    Where it has roots, `describe_options` are for `jorge_optax.describe`.
    """

    transformation: optax.GradientTransformation
    settings: dict[str, Any]
    learning_rate: optax.Schedule
    describe_options: dict[str, Any] | None = None


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
    and step decay in thirds follow from SGD's. With the suffix "/sgd-schedule" they
    keep SGD's schedule; with "/thirds" SGD and AdamW have Jorge's. Those with roots
    spread them over the devices of `sharding`; `distributed-shampoo` is `shampoo` that
    always does.
    """
    check_name(name)
    mask = None if config.decay_all else kernels
    base = base_name(name)
    length = {"steps": steps, "steps_per_epoch": steps_per_epoch}
    options = None
    if base == "sgd":
        sgd = config.sgd
        rate = schedule(sgd.schedule, sgd.learning_rate, **length)
        settings = vars(sgd)
        if name.endswith(THIRDS):
            rate = derive(config, **length).learning_rate
            settings = {**settings, "schedule": "step decay in thirds"}
        transformation = optax.chain(
            optax.add_decayed_weights(sgd.weight_decay, mask),
            optax.sgd(rate, sgd.momentum),
        )
    elif base == "adamw":
        adamw = config.adamw
        rate = schedule(adamw.schedule, adamw.learning_rate, **length)
        settings = vars(adamw)
        if name.endswith(THIRDS):
            rate = derive(config, **length, peak=adamw.learning_rate).learning_rate
            settings = {**settings, "schedule": "step decay in thirds"}
        transformation = optax.adamw(
            rate, adamw.b1, adamw.b2, weight_decay=adamw.weight_decay, mask=mask
        )
    else:
        own = name.endswith(SGD_SCHEDULE)
        derived = derive(config, **length, rule=RULES[base], keep_schedule=own)
        settings = derived.to_dict()
        if own:
            sgd = config.sgd
            settings |= {"learning_rate": sgd.learning_rate, "schedule": sgd.schedule}
        rate = derived.learning_rate
        options = {"rule": derived.rule}
        transformation = derived.replace(weight_decay_mask=mask).optimizer(
            sharding=sharding
        )
    for part, factor in config.learning_rate_factors:
        transformation = optax.chain(transformation, _scale_part(part, factor))
    return Built(transformation, settings, rate, options)


def derive(
    config: Config,
    *,
    steps: int,
    steps_per_epoch: int,
    rule: Rule | None = None,
    peak: float | None = None,
    keep_schedule: bool = False,
) -> JorgeConfig:
    """Derives Jorge's settings from SGD's.

    They have step decay in thirds, or with `keep_schedule` SGD's schedule. `peak`
    replaces SGD's learning rate.
    """
    sgd = config.sgd
    options = {"update_interval": config.update_interval, "rule": rule}
    if keep_schedule:
        rate = schedule(sgd.schedule, sgd.learning_rate, steps, steps_per_epoch)
        return from_sgd(rate, sgd.momentum, sgd.weight_decay, **options)
    if steps < 3:
        raise ValueError(
            f"A run of {steps} steps has no thirds for the step decay: pass --steps of "
            f"3 or more, or an optimizer with {SGD_SCHEDULE!r} after its name."
        )
    # The paper rounds thirds down to whole epochs, which few epochs do not allow.
    whole = config.epochs >= 20 and steps == config.epochs * steps_per_epoch
    length: dict[str, int] = (
        {"epochs": config.epochs, "steps_per_epoch": steps_per_epoch}
        if whole
        else {"total_steps": steps}
    )
    return from_sgd(
        peak or sgd.learning_rate,
        sgd.momentum,
        sgd.weight_decay,
        **length,
        warmup_steps=sgd.schedule.warmup_epochs * steps_per_epoch,
        **options,
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


def _scale_part(part: str, factor: float) -> optax.GradientTransformation:
    """Scales the updates of the parameters whose path has that part, "a" or "a/b"."""

    def scale(path, step):
        names = (str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return factor * step if f"/{part}/" in f"/{'/'.join(names)}/" else step

    return optax.stateless(
        lambda steps, params: jax.tree_util.tree_map_with_path(scale, steps)
    )
