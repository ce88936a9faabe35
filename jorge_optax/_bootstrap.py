"""Single-shot tuning: Jorge's hyperparameters from those of a tuned baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
import optax

from jorge_optax._alias import jorge
from jorge_optax._checks import check_number
from jorge_optax._matrices import MatrixView, default_view
from jorge_optax._schedules import step_decay_in_thirds
from jorge_optax._tiling import Tiling


class _Config:
    """What both configurations can do."""

    def kwargs(self) -> dict[str, Any]:
        """Arguments for :func:`jorge_optax.jorge`."""
        raise NotImplementedError

    def optimizer(self, **overrides: Any) -> optax.GradientTransformationExtraArgs:
        """``jorge(**self.kwargs())``, with any argument of it overridden."""
        return jorge(**{**self.kwargs(), **overrides})

    def replace(self, **changes: Any) -> Self:
        """A copy with some entries changed."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def to_dict(self) -> dict[str, Any]:
        """Numbers, lists and strings only, ready for JSON."""

        def plain(value: Any) -> Any:
            if callable(value):
                return "a schedule"
            return list(value) if isinstance(value, tuple) else value

        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {
            field.name: plain(getattr(self, field.name))
            for field in fields
            if field.repr
        }

    def __str__(self) -> str:
        """A table, and the notes below it."""
        entries = self.to_dict()
        notes = entries.pop("notes", ())
        width = max(map(len, entries))
        lines = [f"{name:<{width}}  {value}" for name, value in entries.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])


@dataclasses.dataclass(frozen=True)
class FromSGD(_Config):
    """Jorge's hyperparameters, derived from a tuned SGD run; plain numbers.

    Change what you know better with ``replace``; ``kwargs()`` are the arguments for
    :func:`jorge_optax.jorge`, ``optimizer()`` is the optimizer, ``to_dict()`` goes to
    JSON.

    Attributes:
      learning_rate: the learning rate before the first decay.
      momentum: of both momenta.
      weight_decay: decoupled decay.
      total_steps: length of training, in steps.
      warmup_steps: steps of linear warm-up, part of total_steps.
      boundaries: steps at which the learning rate is divided by ten.
      update_interval: steps between refreshes of the roots.
      weight_decay_mask: which leaves decay; not printed, and no part of ``to_dict()``.
      notes: what was approximated or left behind, in sentences.
    """

    learning_rate: float
    momentum: float
    weight_decay: float
    total_steps: int
    warmup_steps: int
    boundaries: tuple[int, ...]
    update_interval: int
    weight_decay_mask: Any = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    __str__ = _Config.__str__

    def schedule(self) -> optax.Schedule:
        """The learning rate as a function of the step."""
        return step_decay_in_thirds(
            self.learning_rate,
            self.total_steps,
            warmup_steps=self.warmup_steps,
            boundaries=self.boundaries,
        )

    def kwargs(self) -> dict[str, Any]:
        """Arguments for :func:`jorge_optax.jorge`."""
        return {
            "learning_rate": self.schedule(),
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "weight_decay_mask": self.weight_decay_mask,
            "update_interval": self.update_interval,
        }


@dataclasses.dataclass(frozen=True)
class FromAdamW(_Config):
    """Jorge's hyperparameters, derived from a tuned AdamW run.

    Has the methods of :class:`FromSGD`, but for ``schedule``.

    Attributes:
      learning_rate: AdamW's, a number or its schedule.
      momentum: of Jorge's direction; AdamW's b1.
      b2: AdamW's, for the length of the step.
      adam_eps: AdamW's, for the length of the step.
      weight_decay: AdamW's, decoupled already.
      update_interval: steps between refreshes of the roots.
      leave_out: parameters with one of these in their path take Adam's own step.
      weight_decay_mask: which leaves decay; not printed, and no part of ``to_dict()``.
    """

    learning_rate: optax.ScalarOrSchedule
    momentum: float
    b2: float
    adam_eps: float
    weight_decay: float
    update_interval: int
    leave_out: tuple[str, ...] = ()
    weight_decay_mask: Any = dataclasses.field(default=None, repr=False)

    __str__ = _Config.__str__

    def kwargs(self) -> dict[str, Any]:
        """Arguments for :func:`jorge_optax.jorge`."""

        def view(path: str, shape: tuple[int, ...]) -> MatrixView | None:
            if any(name in path for name in self.leave_out):
                return None
            return default_view(shape)

        return {
            "tiling": Tiling(view=view),
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "weight_decay_mask": self.weight_decay_mask,
            "update_interval": self.update_interval,
            "grafting": optax.scale_by_adam(self.momentum, self.b2, self.adam_eps),
        }


def from_sgd(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float,
    weight_decay: float,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    warmup_steps: int | None = None,
    nesterov: bool = False,
    decoupled: bool = False,
    weight_decay_mask: Any | Callable[[optax.Params], Any] | None = None,
    update_interval: int = 10,
) -> FromSGD:
    r"""Jorge's hyperparameters from those of a tuned SGD run, by the paper's rules.

    - Learning rate: SGD's, since grafting gives each step SGD's length. A schedule
      contributes its largest value over all steps of training.
    - Momentum: SGD's.
    - Weight decay: SGD's divided by ``1 - momentum``. In SGD, decay enters the
      momentum and acts for :math:`1 + \beta + \beta^2 + \dots` steps; in Jorge it is
      decoupled and acts once.
    - Schedule: divide by ten after one third and two thirds, whatever SGD's was; a
      warm-up is kept. With epochs, thirds are of the epochs, rounded down.
    - Interval: 10 here. The paper takes the smallest that keeps a step within 10% of
      SGD's time: :func:`jorge_optax.choose_update_interval` measures that.

    Args:
      learning_rate: SGD's, a number or an optax schedule.
      momentum: SGD's.
      weight_decay: SGD's, as part of the gradient (L2), as in
        ``torch.optim.SGD(weight_decay=...)``.
      total_steps: length of training in steps; or else give the next two.
      epochs: length of training in epochs.
      steps_per_epoch: steps in an epoch.
      warmup_steps: steps of SGD's warm-up. ``None``: for a number none, for a schedule
        the steps before it first reaches its largest value.
      nesterov: whether SGD used it; it is not carried over, and a note says so.
      decoupled: whether ``weight_decay`` is decoupled already; then it is not divided.
      weight_decay_mask: SGD's, handed on.
      update_interval: steps between refreshes.

    Returns:
      A :class:`FromSGD` of plain numbers.

    Examples:
      The paper's ResNet-50 at batch size 1024:

      >>> from jorge_optax import from_sgd, jorge
      >>> config = from_sgd(
      ...   0.4, 0.9, 1e-4, epochs=90, steps_per_epoch=1252, warmup_steps=5 * 1252
      ... )
      >>> print(config)
      learning_rate    0.4
      momentum         0.9
      weight_decay     0.001
      total_steps      112680
      warmup_steps     6260
      boundaries       [37560, 75120]
      update_interval  10
      >>> optimizer = jorge(**config.kwargs())
      >>> optimizer = config.replace(update_interval=50).optimizer()

    References:
      Singh et al, `Jorge: Approximate Preconditioning for GPU-efficient Second-order
      Optimization <https://arxiv.org/abs/2310.12298>`_, section 4, 2023
    """
    _check_below_one(
        "momentum", momentum, "Jorge's decay is SGD's divided by 1 - momentum."
    )
    _check_decay(weight_decay)
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
    return FromSGD(
        learning_rate=peak,
        momentum=momentum,
        # Rounded, so that 1e-4 / (1 - 0.9) is 0.001 and not 0.0010000000000000002.
        weight_decay=weight_decay
        if decoupled
        else float(f"{weight_decay / (1 - momentum):.12g}"),
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        boundaries=boundaries,
        update_interval=update_interval,
        weight_decay_mask=weight_decay_mask,
        notes=tuple(notes),
    )


def from_adamw(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    *,
    weight_decay_mask: Any | Callable[[optax.Params], Any] | None = None,
    update_interval: int = 10,
    leave_out: tuple[str, ...] = ("embed", "position"),
) -> FromAdamW:
    """Jorge's hyperparameters from those of a tuned AdamW run.

    The paper names this as future work; the rules here are ours, and
    ``docs/from_adamw.md`` has their reasons and a measurement.

    - Learning rate and schedule: AdamW's. Each tile's step has the length of Adam's
      step and Jorge's direction. Leaves without roots take Adam's own step.
    - Momentum: AdamW's b1.
    - Weight decay: AdamW's. It is decoupled in both, so nothing is divided.
    - Interval: 10.
    - Embeddings are left to Adam. In each step most of their rows see no gradient, and
      a direction without gradient is what Jorge's roots handle worst.

    Args:
      learning_rate: AdamW's, a number or an optax schedule.
      b1: AdamW's.
      b2: AdamW's.
      eps: AdamW's (Jorge's own ``eps`` is another thing and keeps its default).
      weight_decay: AdamW's; the default is that of :func:`optax.adamw`.
      weight_decay_mask: AdamW's, handed on.
      update_interval: steps between refreshes.
      leave_out: parameters with one of these in their path take Adam's own step.

    Returns:
      A :class:`FromAdamW`.

    Examples:
      >>> from jorge_optax import from_adamw
      >>> config = from_adamw(3e-4, b2=0.95, weight_decay=0.1)
      >>> print(config)
      learning_rate    0.0003
      momentum         0.9
      b2               0.95
      adam_eps         1e-08
      weight_decay     0.1
      update_interval  10
      leave_out        ['embed', 'position']
      >>> optimizer = config.optimizer()

    References:
      Agarwal et al, `Learning Rate Grafting: Transferability of Optimizer Tuning
      <https://openreview.net/forum?id=FpKgG31Z_i9>`_, 2021
    """
    _check_below_one("b1", b1)
    _check_below_one("b2", b2)
    _check_decay(weight_decay)
    return FromAdamW(
        learning_rate=learning_rate,
        momentum=b1,
        b2=b2,
        adam_eps=eps,
        weight_decay=weight_decay,
        update_interval=update_interval,
        leave_out=leave_out,
        weight_decay_mask=weight_decay_mask,
    )


def _check_below_one(name: str, value: Any, remedy: str = "") -> None:
    check_number(name, value, "must lie in [0, 1)", lambda x: 0 <= x < 1, remedy)


def _check_decay(value: Any) -> None:
    rule = "must be at least 0"
    check_number("weight_decay", value, rule, lambda x: 0 <= x < float("inf"))


def _length(total_steps, epochs, steps_per_epoch) -> tuple[int, tuple[int, int]]:
    """Number of steps, and the steps at one third and two thirds."""
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


def _peak(learning_rate: Any, total_steps: int) -> tuple[float, int]:
    """Largest learning rate, and the first step that has it."""
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
