"""Single-shot tuning: Jorge's hyperparameters from those of a tuned baseline."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import optax

from jorge_optax import lengths, views
from jorge_optax._checks import (
    check_below_one,
    check_count,
    check_learning_rate,
    check_not_negative,
    check_positive,
)
from jorge_optax._optimizer import jorge
from jorge_optax._rule import Rule
from jorge_optax._schedules import CosineDecay, schedule_text, thirds_of
from jorge_optax._series import BinomialSeries
from jorge_optax._tiling import Tiling
from jorge_optax._types import Mask, ScalarOrSchedule
from jorge_optax._whitening import Whitening


@dataclasses.dataclass(frozen=True)
class JorgeConfig:
    """Arguments of :func:`jorge_optax.jorge`, derived from a tuned baseline.

    What :func:`from_sgd`, :func:`from_adamw` and :func:`from_scratch` return. Printing
    it shows what runs; :meth:`replace` changes it.

    Attributes:
      learning_rate: A number or a schedule.
      momentum: Decay rate of the momenta.
      weight_decay: Decoupled weight decay.
      update_interval: Steps between refreshes of the roots, a number or a schedule.
      rule: How the roots are refreshed.
      grafting: What gives each step its length.
      leave_out: Parameters with one of these words in their path have no roots and
        take the step of ``grafting``.
      weight_decay_mask: Which parameters decay; not printed, and not in
        :meth:`to_dict`.
      notes: What was approximated or not carried over, in sentences.
    """

    learning_rate: ScalarOrSchedule
    momentum: float
    weight_decay: float
    update_interval: ScalarOrSchedule = 10
    rule: Rule = BinomialSeries()
    grafting: str | lengths.Length = "sgd"
    leave_out: tuple[str, ...] = ()
    weight_decay_mask: Mask = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the attributes, as :func:`jorge_optax.jorge` does."""
        if isinstance(self.leave_out, str):
            raise TypeError(
                "leave_out must be a tuple of words, got the string "
                f"{self.leave_out!r}: write leave_out=({self.leave_out!r},)."
            )
        self.optimizer()

    def kwargs(self, **options: Any) -> dict[str, Any]:
        """Returns the arguments for :func:`jorge_optax.jorge`, and those given here.

        Args:
          **options: As for :meth:`optimizer`.
        """
        own = [f.name for f in dataclasses.fields(self) if f.name in options]
        if own:
            raise TypeError(
                f"{own[0]} is an attribute of the configuration: write "
                f"config.replace({own[0]}=...).optimizer(), so that printing the "
                "configuration shows what runs."
            )
        names = ("learning_rate", "momentum", "weight_decay", "weight_decay_mask")
        names += ("update_interval", "rule", "grafting")
        arguments = {name: getattr(self, name) for name in names} | options
        tiling = options.get("tiling")
        if self.leave_out and isinstance(tiling, Tiling | None):
            tiling = tiling or Tiling()
            view = views.without(*self.leave_out, view=tiling.view)
            arguments["tiling"] = Tiling(tiling.max_dim, view)
        return arguments

    def optimizer(self, **options: Any) -> optax.GradientTransformationExtraArgs:
        """Returns ``jorge(**self.kwargs(**options))``.

        Args:
          **options: Other options of :func:`jorge_optax.jorge`, such as ``root_dtype``.
            To change an attribute, use :meth:`replace`.
        """
        return jorge(**self.kwargs(**options))

    def replace(self, **changes: Any) -> JorgeConfig:
        """Returns a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers, lists and strings only, ready for JSON."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.repr
        }

    def __str__(self) -> str:
        """Returns a table, with the notes below it."""
        entries = self.to_dict()
        notes = entries.pop("notes")
        if not entries["leave_out"]:
            del entries["leave_out"]
        early = getattr(self.rule, "early_refreshes", 0)
        if early:
            entries["update_interval"] = (
                f"{entries['update_interval']}, and 1 in the first {early} steps"
            )
        width = max(map(len, entries))
        lines = [f"{name:<{width}}  {value}" for name, value in entries.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Says what is missing where a configuration is used as an optimizer."""
            remedy = ""
            if name in ("init", "update"):
                remedy = (
                    ": a JorgeConfig holds the arguments of an optimizer. Write "
                    "config.optimizer() to make one."
                )
            raise AttributeError(f"JorgeConfig has no attribute {name!r}{remedy}")


def rule_text(rule: Rule) -> str:
    """Writes a rule as a call, with the arguments that are not the defaults."""
    if not dataclasses.is_dataclass(rule):
        return repr(rule)
    changed = [
        f"{field.name}={getattr(rule, field.name)!r}"
        for field in dataclasses.fields(rule)
        if getattr(rule, field.name) != field.default
    ]
    return f"{type(rule).__name__}({', '.join(changed)})"


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Rule):
        # What differs from the rule's defaults suffices.
        return rule_text(value)
    if callable(value):
        schedule: Any = value
        return schedule_text(schedule)
    return str(value) if dataclasses.is_dataclass(value) else value


def from_sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float,
    weight_decay: float = 0.0,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    warmup_steps: int = 0,
    nesterov: bool = False,
    decoupled: bool = False,
    weight_decay_mask: Mask = None,
    update_interval: ScalarOrSchedule = 10,
    rule: Rule | None = None,
) -> JorgeConfig:
    r"""Derives Jorge's hyperparameters from a tuned SGD run, by the paper's rules.

    - Learning rate: unchanged, since grafting gives each step the length of SGD's step.
    - Momentum: unchanged.
    - Weight decay: divided by ``1 - momentum``. In SGD, decay enters the momentum and
      acts for :math:`1 + \beta + \beta^2 + \dots` steps; in Jorge it is decoupled and
      acts once.
    - Schedule: a schedule is kept. A number and a length of training give the paper's
      schedule: the learning rate divides by ten after one third and two thirds. With
      epochs, thirds are of the epochs, rounded down.
    - Interval: 10 here. The paper takes the smallest that keeps a step within 10% of
      SGD's time, which :func:`jorge_optax.tuning.choose_update_interval` measures.

    Args:
      learning_rate: Learning rate of the SGD run: an optax schedule, which is kept, or
        the largest learning rate, a number, with a length of training.
      momentum: Decay rate of the momentum of the SGD run; becomes Jorge's momentum.
      weight_decay: Weight decay of the SGD run, as part of the gradient (L2), as in
        ``torch.optim.SGD(weight_decay=...)``; 0 if the run has none.
      total_steps: Length of training in steps; or pass the next two. Only for a
        number, whose schedule decays at its thirds.
      epochs: Length of training in epochs.
      steps_per_epoch: Number of steps in an epoch.
      warmup_steps: Length of a linear warm-up, counted within the length of training.
        Only for a number.
      nesterov: Whether the SGD run used Nesterov's momentum. It is not carried over,
        and a note says so; :class:`Whitening` whitens Nesterov's momentum anyway.
      decoupled: Whether ``weight_decay`` is decoupled already; then it is not divided.
      weight_decay_mask: Passed unchanged to :func:`jorge_optax.jorge`.
      update_interval: Steps between refreshes of the roots.
      rule: How the roots are refreshed; ``None`` is the paper's rule,
        :class:`jorge_optax.BinomialSeries`.

    Returns:
      A :class:`JorgeConfig`.

    Examples:
      The schedule of the SGD run, by the whitening rule:

      >>> import optax
      >>> from jorge_optax import Whitening, from_sgd, jorge
      >>> schedule = optax.cosine_decay_schedule(0.1, 9000)
      >>> config = from_sgd(schedule, 0.9, 1e-4, rule=Whitening())
      >>> optimizer = config.optimizer()

      The paper's ResNet-50 at batch size 1024:

      >>> config = from_sgd(
      ...   0.4, 0.9, 1e-4, epochs=90, steps_per_epoch=1252, warmup_steps=5 * 1252
      ... )
      >>> print(config)
      learning_rate    0.4, times 0.1 at steps 37560, 75120, warm-up of 6260 steps
      momentum         0.9
      weight_decay     0.001
      update_interval  10
      rule             BinomialSeries()
      grafting         sgd
      >>> optimizer = jorge(**config.kwargs())
      >>> optimizer = config.replace(update_interval=50).optimizer()

    References:
      Singh et al, `Jorge: Approximate Preconditioning for GPU-efficient Second-order
      Optimization <https://arxiv.org/abs/2310.12298>`_, section 4, 2023
    """
    check_below_one(
        "momentum", momentum, "Jorge's decay is SGD's divided by 1 - momentum."
    )
    check_not_negative("weight_decay", weight_decay)
    check_learning_rate(learning_rate)
    length = {"total_steps": total_steps, "epochs": epochs}
    length |= {"steps_per_epoch": steps_per_epoch, "warmup_steps": warmup_steps or None}
    given = [name for name, value in length.items() if value is not None]
    if callable(learning_rate) and given:
        raise ValueError(
            f"from_sgd: {given[0]} belongs to step decay in thirds. Leave it out to "
            "keep your schedule, or pass the largest learning rate as a number to have "
            "step decay in thirds."
        )
    if not callable(learning_rate):
        check_positive("learning_rate", learning_rate)
        learning_rate = thirds_of(
            learning_rate,  # pyright: ignore[reportArgumentType]
            **length,
        )
    notes = ()
    if nesterov:
        direction = (
            "the rule has Nesterov's direction of its own"
            if getattr(rule, "preconditions", None) == "nesterov"
            else "Jorge's momentum is heavy ball"
        )
        notes = (
            f"Nesterov's momentum is not carried over: {direction}, and the length of "
            "its steps is that of SGD without nesterov.",
        )
    return JorgeConfig(
        learning_rate=learning_rate,
        momentum=momentum,
        # Rounded, so that 1e-4 / (1 - 0.9) is 0.001 and not 0.0010000000000000002.
        weight_decay=weight_decay
        if decoupled
        else float(f"{weight_decay / (1 - momentum):.12g}"),
        update_interval=update_interval,
        rule=BinomialSeries() if rule is None else rule,
        grafting="sgd",
        weight_decay_mask=weight_decay_mask,
        notes=notes,
    )


def from_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    *,
    weight_decay_mask: Mask = None,
    update_interval: ScalarOrSchedule = 10,
    leave_out: tuple[str, ...] = ("embed", "position", "/head/", "lm_head"),
    rule: Rule | None = None,
) -> JorgeConfig:
    """Derives Jorge's hyperparameters from a tuned AdamW run.

    The paper names this as future work. ``docs/from_adamw.md`` gives the reasons for
    the rules below, and a measurement.

    - Learning rate and schedule: unchanged. Each tile's step has the length of Adam's
      step (with :class:`Whitening`, twice that length) and Jorge's direction.
      Parameters without roots take Adam's own step.
    - Momentum: ``b1``.
    - Weight decay: unchanged, since it is decoupled in both.
    - Interval: 10.
    - Embeddings are left to Adam. In each step most of their rows receive no gradient,
      and directions without a gradient are what Jorge's roots handle worst. So is the
      last layer, if its name is ``head`` or has ``lm_head`` in it: a language model
      trains better so.

    Args:
      learning_rate: Learning rate of the AdamW run, a number or an optax schedule.
      b1: Decay rate of Adam's first moment; becomes Jorge's momentum.
      b2: Decay rate of Adam's second moment.
      eps: Adam's epsilon (Jorge's own ``eps`` is unrelated and keeps its default).
      weight_decay: Weight decay of the AdamW run; the default is that of
        :func:`optax.adamw`.
      weight_decay_mask: Passed unchanged to :func:`jorge_optax.jorge`.
      update_interval: Steps between refreshes of the roots.
      leave_out: Parameters with one of these words in their path take Adam's own step.
        Between slashes a word stands for a whole name, as in ``"/head/"``.
      rule: How the roots are refreshed; ``None`` is :class:`jorge_optax.Whitening`.

    Returns:
      A :class:`JorgeConfig`.

    Examples:
      >>> from jorge_optax import from_adamw
      >>> config = from_adamw(3e-4, b2=0.95, weight_decay=0.1)
      >>> print(config)
      learning_rate    0.0003
      momentum         0.9
      weight_decay     0.1
      update_interval  10, and 1 in the first 50 steps
      rule             Whitening()
      grafting         Adam(b2=0.95, eps=1e-08, scale=2.0)
      leave_out        ['embed', 'position', '/head/', 'lm_head']
      >>> optimizer = config.optimizer()

    References:
      Agarwal et al, `Learning Rate Grafting: Transferability of Optimizer Tuning
      <https://openreview.net/forum?id=FpKgG31Z_i9>`_, 2021
    """
    check_below_one("b1", b1)
    check_below_one("b2", b2)
    check_not_negative("weight_decay", weight_decay)
    rule = Whitening() if rule is None else rule
    # A whitened step is spread over all directions alike, where Adam's goes more along
    # the steepest few, so it can be longer: docs/step_length.md has what was measured.
    scale = 2.0 if isinstance(rule, Whitening) else 1.0
    return JorgeConfig(
        learning_rate=learning_rate,
        momentum=b1,
        weight_decay=weight_decay,
        update_interval=update_interval,
        rule=rule,
        grafting=lengths.Adam(b2=b2, eps=eps, scale=scale),
        leave_out=leave_out,
        weight_decay_mask=weight_decay_mask,
    )


def from_scratch(
    total_steps: int,
    *,
    learning_rate: float = 0.0425,
    warmup_steps: int = 0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    weight_decay_mask: Mask = None,
    update_interval: ScalarOrSchedule = 10,
    leave_out: tuple[str, ...] = ("embed", "position"),
    rule: Rule | None = None,
) -> JorgeConfig:
    """Returns hyperparameters for a model without any tuned baseline.

    Steps have a length by shape, :class:`jorge_optax.lengths.Shape`, which does not
    depend on the scale of the loss; the learning rate is a cosine from 0.0425 to zero.
    ``docs/step_length.md`` compares this one rate with tuned ones.

    Args:
      total_steps: Length of training in steps.
      learning_rate: The largest learning rate. A step changes the outputs of a layer by
        about this much, relative to weights of the usual initial size.
      warmup_steps: Steps of a linear warm-up; they count as part of training.
      momentum: Decay rate of the momentum.
      weight_decay: Decoupled weight decay; each step multiplies the parameters by
        ``1 - learning_rate * weight_decay``. With batch norm take 0.02 to 0.06: without
        decay the weights before it grow until steps are relatively small.
      weight_decay_mask: Passed unchanged to :func:`jorge_optax.jorge`.
      update_interval: Steps between refreshes of the roots.
      leave_out: Parameters with one of these words in their path take Adam's step, at a
        tenth of the learning rate, as do biases. Add the name of the last layer of a
        language model.
      rule: How the roots are refreshed; ``None`` is :class:`jorge_optax.Whitening`.

    Returns:
      A :class:`JorgeConfig`.

    Examples:
      >>> from jorge_optax import from_scratch
      >>> print(from_scratch(9000))
      learning_rate    cosine from 0.0425 to 0 at step 9000
      momentum         0.9
      weight_decay     0.0
      update_interval  10, and 1 in the first 50 steps
      rule             Whitening()
      grafting         Shape(others=0.1, b2=0.95)
      leave_out        ['embed', 'position']
    """
    check_below_one("momentum", momentum)
    check_not_negative("weight_decay", weight_decay)
    if callable(learning_rate):
        raise TypeError(
            "from_scratch: learning_rate must be a number, the largest learning rate "
            "of a cosine, got a function. To run another schedule, write "
            "from_scratch(...).replace(learning_rate=schedule)."
        )
    check_positive("learning_rate", learning_rate, "The default is 0.0425.")
    check_count("total_steps", total_steps, 1)
    check_count("warmup_steps", warmup_steps, 0)
    if warmup_steps >= total_steps:
        raise ValueError(
            "from_scratch needs a length of training, total_steps, longer than its "
            f"warm-up: got total_steps={total_steps}, warmup_steps={warmup_steps}."
        )
    return JorgeConfig(
        learning_rate=CosineDecay(learning_rate, total_steps, warmup_steps),
        momentum=momentum,
        weight_decay=weight_decay,
        update_interval=update_interval,
        rule=Whitening() if rule is None else rule,
        grafting=lengths.Shape(),
        leave_out=leave_out,
        weight_decay_mask=weight_decay_mask,
    )
