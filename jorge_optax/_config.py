"""Single-shot tuning: Jorge's hyperparameters from those of a tuned baseline."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax

from jorge_optax import lengths
from jorge_optax._checks import check_below_one, check_not_negative, check_positive
from jorge_optax._optimizer import jorge
from jorge_optax._rule import Rule
from jorge_optax._schedules import thirds_decay_schedule
from jorge_optax._series import BinomialSeries
from jorge_optax._tiling import MatrixView, Tiling, default_view
from jorge_optax._types import Mask, ScalarOrSchedule, Shape
from jorge_optax._whitening import Whitening


@dataclasses.dataclass(frozen=True)
class JorgeConfig:
    """Arguments of :func:`jorge_optax.jorge`, derived from a tuned baseline.

    What :func:`from_sgd` and :func:`from_adamw` return. Printing it shows what runs.

    Attributes:
      learning_rate: A number or a schedule.
      momentum: Decay rate of the momenta.
      weight_decay: Decoupled weight decay.
      update_interval: Steps between refreshes of the roots.
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
    update_interval: int = 10
    rule: Rule = BinomialSeries()
    grafting: str | lengths.Length = "sgd"
    leave_out: tuple[str, ...] = ()
    weight_decay_mask: Mask = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def kwargs(self) -> dict[str, Any]:
        """Returns the arguments for :func:`jorge_optax.jorge`."""
        names = ("learning_rate", "momentum", "weight_decay", "weight_decay_mask")
        names += ("update_interval", "rule", "grafting")
        arguments = {name: getattr(self, name) for name in names}
        if self.leave_out:
            arguments["tiling"] = Tiling(view=self._view)
        return arguments

    def optimizer(self, **overrides: Any) -> optax.GradientTransformationExtraArgs:
        """Returns ``jorge(**self.kwargs())``, with any argument overridden."""
        return jorge(**{**self.kwargs(), **overrides})

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
        width = max(map(len, entries))
        lines = [f"{name:<{width}}  {value}" for name, value in entries.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])

    def _view(self, path: str, shape: Shape) -> MatrixView | None:
        if any(word in path for word in self.leave_out):
            return None
        return default_view(shape)


def _short(rule: Rule) -> str:
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
        return _short(value)
    if dataclasses.is_dataclass(value):
        return str(value)
    return "a schedule" if callable(value) else value


def from_sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float,
    weight_decay: float,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    warmup_steps: int | None = None,
    nesterov: bool = False,
    decoupled: bool = False,
    weight_decay_mask: Mask = None,
    update_interval: int = 10,
    rule: Rule | None = None,
) -> JorgeConfig:
    r"""Derives Jorge's hyperparameters from a tuned SGD run, by the paper's rules.

    - Learning rate: unchanged, since grafting gives each step the length of SGD's step.
      Of a schedule, the largest value over all steps of training is taken.
    - Momentum: unchanged.
    - Weight decay: divided by ``1 - momentum``. In SGD, decay enters the momentum and
      acts for :math:`1 + \beta + \beta^2 + \dots` steps; in Jorge it is decoupled and
      acts once.
    - Schedule: divides by ten after one third and two thirds, and replaces the schedule
      of SGD except for a warm-up. With epochs, thirds are of the epochs, rounded down.
    - Interval: 10 here. The paper takes the smallest that keeps a step within 10% of
      SGD's time, which :func:`jorge_optax.tuning.choose_update_interval` measures.

    Args:
      learning_rate: Learning rate of the SGD run, a number or an optax schedule.
      momentum: Decay rate of the momentum of the SGD run; becomes Jorge's momentum.
      weight_decay: Weight decay of the SGD run, as part of the gradient (L2), as in
        ``torch.optim.SGD(weight_decay=...)``.
      total_steps: Length of training in steps; or pass the next two.
      epochs: Length of training in epochs.
      steps_per_epoch: Number of steps in an epoch.
      warmup_steps: Length of the warm-up of the SGD run. ``None`` is no warm-up for a
        number, and for a schedule the steps before it first reaches its largest value.
      nesterov: Whether the SGD run used Nesterov's momentum. It is not carried over,
        and a note says so.
      decoupled: Whether ``weight_decay`` is decoupled already; then it is not divided.
      weight_decay_mask: Passed unchanged to :func:`jorge_optax.jorge`.
      update_interval: Steps between refreshes of the roots.
      rule: How the roots are refreshed; ``None`` is the paper's rule,
        :class:`jorge_optax.BinomialSeries`.

    Returns:
      A :class:`JorgeConfig`.

    Examples:
      The paper's ResNet-50 at batch size 1024:

      >>> from jorge_optax import from_sgd, jorge
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
    notes = []
    total_steps, boundaries = _length(total_steps, epochs, steps_per_epoch)
    peak, rise = _peak(learning_rate, total_steps)
    if warmup_steps is None:
        warmup_steps = rise
        if rise:
            notes.append(
                f"SGD's schedule first reaches its largest value at step {rise}: the "
                "steps before are taken for a warm-up and become a linear one."
            )
    if callable(learning_rate):
        notes.append(
            f"SGD's schedule contributes its largest value, {peak:g}; its shape is "
            "replaced by step decay in thirds."
        )
    if warmup_steps > boundaries[0]:
        raise ValueError(
            f"The warm-up of {warmup_steps} steps reaches beyond the first decay, at "
            f"step {boundaries[0]}, one third of training. This schedule cannot be "
            "transferred: pass a shorter warmup_steps, or the peak learning rate as a "
            "number and warmup_steps=0."
        )
    if nesterov:
        notes.append(
            "Nesterov's momentum is not carried over: Jorge's momentum is heavy ball, "
            "and the length of its steps that of SGD without nesterov."
        )
    schedule = thirds_decay_schedule(
        peak, total_steps, warmup_steps=warmup_steps, boundaries=boundaries
    )
    return JorgeConfig(
        learning_rate=schedule,
        momentum=momentum,
        # Rounded, so that 1e-4 / (1 - 0.9) is 0.001 and not 0.0010000000000000002.
        weight_decay=weight_decay
        if decoupled
        else float(f"{weight_decay / (1 - momentum):.12g}"),
        update_interval=update_interval,
        rule=rule or BinomialSeries(),
        weight_decay_mask=weight_decay_mask,
        notes=tuple(notes),
    )


def from_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    *,
    weight_decay_mask: Mask = None,
    update_interval: int = 10,
    leave_out: tuple[str, ...] = ("embed", "position"),
    rule: Rule | None = None,
) -> JorgeConfig:
    """Derives Jorge's hyperparameters from a tuned AdamW run.

    The paper names this as future work. ``docs/from_adamw.md`` gives the reasons for
    the rules below, and a measurement.

    - Learning rate and schedule: unchanged. Each tile's step has the length of Adam's
      step and Jorge's direction. Parameters without roots take Adam's own step.
    - Momentum: ``b1``.
    - Weight decay: unchanged, since it is decoupled in both.
    - Interval: 10.
    - Embeddings are left to Adam. In each step most of their rows receive no gradient,
      and directions without a gradient are what Jorge's roots handle worst.

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
      update_interval  10
      rule             Whitening()
      grafting         Adam(b2=0.95, eps=1e-08)
      leave_out        ['embed', 'position']
      >>> optimizer = config.optimizer()

    References:
      Agarwal et al, `Learning Rate Grafting: Transferability of Optimizer Tuning
      <https://openreview.net/forum?id=FpKgG31Z_i9>`_, 2021
    """
    check_below_one("b1", b1)
    check_below_one("b2", b2)
    check_not_negative("weight_decay", weight_decay)
    return JorgeConfig(
        learning_rate=learning_rate,
        momentum=b1,
        weight_decay=weight_decay,
        update_interval=update_interval,
        rule=rule or Whitening(),
        grafting=lengths.Adam(b2=b2, eps=eps),
        leave_out=leave_out,
        weight_decay_mask=weight_decay_mask,
    )


def from_scratch(
    total_steps: int,
    *,
    learning_rate: float = 0.05,
    warmup_steps: int = 0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    weight_decay_mask: Mask = None,
    update_interval: int = 10,
    leave_out: tuple[str, ...] = ("embed", "position"),
    rule: Rule | None = None,
) -> JorgeConfig:
    """Returns hyperparameters for a model without any tuned baseline.

    Steps have a length by shape, :class:`jorge_optax.lengths.Shape`, which does not
    depend on the scale of the loss; the learning rate is a cosine from 0.05 to zero.
    ``docs/step_length.md`` compares this one rate with tuned ones.

    Args:
      total_steps: Length of training in steps.
      learning_rate: The largest learning rate. A step changes the outputs of a layer by
        about this much, relative to weights of the usual initial size.
      warmup_steps: Steps of a linear warm-up; they count as part of training.
      momentum: Decay rate of the momentum.
      weight_decay: Decoupled weight decay; each step multiplies the parameters by
        ``1 - learning_rate * weight_decay``.
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
      learning_rate    a schedule
      momentum         0.9
      weight_decay     0.0
      update_interval  10
      rule             Whitening()
      grafting         Shape(others=0.1, b2=0.95)
      leave_out        ['embed', 'position']
    """
    check_below_one("momentum", momentum)
    check_not_negative("weight_decay", weight_decay)
    check_positive("learning_rate", learning_rate, "The default is 0.05.")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            "from_scratch needs a length of training, total_steps, longer than its "
            f"warm-up: got total_steps={total_steps}, warmup_steps={warmup_steps}."
        )
    schedule = optax.warmup_cosine_decay_schedule(
        0.0 if warmup_steps else learning_rate, learning_rate, warmup_steps, total_steps
    )
    return JorgeConfig(
        learning_rate=schedule,
        momentum=momentum,
        weight_decay=weight_decay,
        update_interval=update_interval,
        rule=rule or Whitening(),
        grafting=lengths.Shape(),
        leave_out=leave_out,
        weight_decay_mask=weight_decay_mask,
    )


def _length(
    total_steps: int | None, epochs: int | None, steps_per_epoch: int | None
) -> tuple[int, tuple[int, int]]:
    """Returns the number of steps, and the steps at one third and two thirds."""
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        if epochs < 3 or steps_per_epoch < 1:
            raise ValueError(
                "Step decay in thirds needs at least 3 epochs of at least 1 step, got "
                f"epochs={epochs}, steps_per_epoch={steps_per_epoch}. Pass total_steps "
                "instead to count in steps."
            )
        third = epochs // 3 * steps_per_epoch
        return epochs * steps_per_epoch, (third, 2 * third)
    if total_steps is None or epochs is not None or steps_per_epoch is not None:
        raise ValueError(
            "Pass the length of training, either as total_steps or as epochs and "
            f"steps_per_epoch: got total_steps={total_steps}, epochs={epochs}, "
            f"steps_per_epoch={steps_per_epoch}. The schedule decays at its thirds."
        )
    if total_steps < 3:
        raise ValueError(f"total_steps must be at least 3, got {total_steps}.")
    return total_steps, (total_steps // 3, 2 * (total_steps // 3))


def _peak(learning_rate: ScalarOrSchedule, total_steps: int) -> tuple[float, int]:
    """Returns the largest learning rate, and the first step that has it."""
    if not callable(learning_rate):
        rates = np.asarray(learning_rate, np.float64).reshape(1)
    else:
        try:
            rates = jax.vmap(learning_rate)(np.arange(total_steps))
            rates = np.asarray(rates, np.float64).reshape(total_steps)
        except Exception as error:
            raise ValueError(
                "This schedule cannot be transferred: called with a step it must "
                "return one number, in a way that jax.vmap can follow. Pass SGD's "
                "largest learning rate as a number instead."
            ) from error
    if not (np.all(np.isfinite(rates)) and np.max(rates) > 0):
        raise ValueError(
            "The learning rate must be finite, and positive at some step; got "
            f"{rates[0]:g} at the start and {np.max(rates):g} as the largest."
        )
    return float(f"{np.max(rates):.7g}"), int(np.argmax(rates))
