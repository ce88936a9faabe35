"""Single-shot tuning: optimizers whose hyperparameters follow from a tuned baseline."""

import dataclasses
import numbers
from typing import Any, TypeAlias

import jax
import optax
from jax.sharding import NamedSharding

from jorge_optax._errors import (
    DECAY_RATE,
    NOT_NEGATIVE,
    POSITIVE,
    check_number,
    check_static_count,
    check_type,
    check_words,
    refuses_mask,
)
from jorge_optax._optimizer import jorge
from jorge_optax._rule import Numerics, Rule
from jorge_optax._sharding import Sharded, Spread
from jorge_optax._step import with_notes
from jorge_optax._tiles import Tiling
from jorge_optax._whitening import Whitening
from jorge_optax.lengths import Adam, Length, Shape
from jorge_optax.tuning import SHORTER, thirds_decay_schedule
from jorge_optax.views import EMBEDDINGS, LAST_LAYERS, Without, only

Number: TypeAlias = float | jax.Array
Grafting: TypeAlias = str | Length | None
BY_MOMENTUM = "Jorge's decay is SGD's divided by 1 - momentum."


@refuses_mask
def from_sgd(
    learning_rate: optax.ScalarOrSchedule,
    momentum: Number = 0.9,
    weight_decay: Number = 0.0,
    *,
    nesterov: bool = False,
    decoupled: bool = False,
    weight_decay_mask: Any = None,
    rule: Rule | None = None,
    grafting: Grafting = "sgd",
    update_interval: optax.ScalarOrSchedule = 10,
    leave_out: tuple[str, ...] = (),
    tiling: Tiling | None = None,
    others: optax.GradientTransformation | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Derives Jorge's hyperparameters from a tuned SGD run.

    - Learning rate and schedule: unchanged, since grafting gives each step the length
      of SGD's step.
    - Momentum: unchanged.
    - Weight decay: divided by ``1 - momentum``. In SGD, decay enters the momentum and
      acts for :math:`1 + \beta + \beta^2 + \dots` steps; in Jorge it is decoupled and
      acts once.
    - Embeddings are left to SGD: in each step most of their rows receive no gradient.

    Args:
      learning_rate: Learning rate of the SGD run, a number or an optax schedule.
      momentum: Decay rate of the momentum of the SGD run; becomes Jorge's momentum.
      weight_decay: Weight decay of the SGD run, as part of the gradient (L2), as in
        ``torch.optim.SGD(weight_decay=...)``; 0 if the run has none.
      nesterov: Whether the SGD run used Nesterov's momentum. The whitening rule whitens
        Nesterov's momentum anyway; the length of a step is that of SGD without it.
      decoupled: Whether ``weight_decay`` is decoupled already; then it is not divided.
      rule: As in :func:`jorge_optax.jorge`; ``None`` is :class:`Whitening`.
      leave_out: Parameters with one of these words in their path have no roots, beside
        embeddings; :func:`jorge_optax.views.only` replaces those, too.
      weight_decay_mask, update_interval, tiling, others, numerics, sharding: As in
        :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; printing it shows a table.

    Examples:
      >>> import optax
      >>> from jorge_optax import from_sgd
      >>> schedule = optax.cosine_decay_schedule(0.1, 9000)
      >>> print(from_sgd(schedule, momentum=0.9, weight_decay=1e-4))
      learning_rate    a schedule: 0.1 at 0, 0.097 at 1000, 0 at 10000
      momentum         0.9
      weight_decay     0.001
      rule             Whitening()
      grafting         SGD()
      update_interval  10, and 1 in the first 50 steps
      note: weight_decay is that of SGD over 1 - momentum, since it is decoupled.
      note: without roots, by the recipe: embeddings.

    References:
      Singh et al, `Jorge: Approximate Preconditioning for GPU-efficient Second-order
      Optimization <https://arxiv.org/abs/2310.12298>`_, section 4, 2023
    """
    check_number("momentum", momentum, DECAY_RATE, BY_MOMENTUM)
    decay, notes = decoupled_decay(weight_decay, momentum, decoupled)
    rule = Whitening() if rule is None else rule
    if nesterov and isinstance(rule, Rule) and rule.momentum != "nesterov":
        notes += (
            "Nesterov's momentum is not carried over: this rule averages directions.",
        )
    tiling, left_out = leaving_out(tiling, leave_out, EMBEDDINGS)
    tx = jorge(
        learning_rate,
        momentum,
        decay,
        weight_decay_mask,
        rule=rule,
        grafting=grafting,
        update_interval=update_interval,
        tiling=tiling,
        others=others,
        numerics=numerics,
        sharding=sharding,
    )
    return with_notes(tx, *notes, *left_out)


@refuses_mask
def from_sgd_as_published(
    learning_rate: Number,
    momentum: Number = 0.9,
    weight_decay: Number = 0.0,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    warmup_steps: int = 0,
    weight_decay_mask: Any = None,
    update_interval: optax.ScalarOrSchedule = 10,
    tiling: Tiling | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns the paper's algorithm, by the paper's rules for a tuned SGD run.

    The rule is :class:`BinomialSeries`, and decay is divided by ``1 - momentum``. The
    learning rate divides by ten after one third and two thirds of training; with
    epochs, thirds are of the epochs, rounded down. The paper takes the smallest
    interval that keeps a step within 10% of SGD's time, which
    :func:`jorge_optax.tuning.choose_update_interval` measures.

    Args:
      learning_rate: Largest learning rate of the SGD run.
      momentum: Decay rate of the momentum of the SGD run.
      weight_decay: Weight decay of the SGD run, as part of the gradient (L2).
      total_steps: Length of training in steps; or pass the next two.
      epochs: Length of training in epochs.
      steps_per_epoch: Number of steps in an epoch.
      warmup_steps: Length of a linear warm-up, counted within the length of training.
      weight_decay_mask, update_interval, tiling, numerics, sharding: As in
        :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; printing it shows a table.

    Examples:
      The paper's ResNet-50 at batch size 1024:

      >>> from jorge_optax import from_sgd_as_published
      >>> print(from_sgd_as_published(
      ...   0.4, 0.9, 1e-4, epochs=90, steps_per_epoch=1252, warmup_steps=5 * 1252
      ... ))
      learning_rate    a schedule: 0 at 0, 0.0639 at 1000, 0.4 at 10000
      momentum         0.9
      weight_decay     0.001
      rule             BinomialSeries()
      grafting         SGD()
      update_interval  10
      note: weight_decay is that of SGD over 1 - momentum, since it is decoupled.
      note: learning_rate divides by ten at steps 37560 and 75120.

    References:
      Singh et al, `Jorge: Approximate Preconditioning for GPU-efficient Second-order
      Optimization <https://arxiv.org/abs/2310.12298>`_, section 4, 2023
    """
    if callable(learning_rate):
        raise TypeError(
            "from_sgd_as_published: learning_rate must be a number, which decays in "
            "thirds, got a function. To keep your schedule with the paper's rule, "
            "write from_sgd(schedule, ..., rule=BinomialSeries())."
        )
    check_number("learning_rate", learning_rate, POSITIVE)
    check_number("momentum", momentum, DECAY_RATE, BY_MOMENTUM)
    third, total_steps = thirds_of(total_steps, epochs, steps_per_epoch)
    schedule = thirds_decay_schedule(
        learning_rate,
        total_steps,
        warmup_steps=warmup_steps,
        boundaries=(third, 2 * third),
    )
    decay, notes = decoupled_decay(weight_decay, momentum, decoupled=False)
    steps = f"learning_rate divides by ten at steps {third} and {2 * third}."
    tx = jorge(
        schedule,
        momentum,
        decay,
        weight_decay_mask,
        update_interval=update_interval,
        tiling=tiling,
        numerics=numerics,
        sharding=sharding,
    )
    return with_notes(tx, *notes, steps)


@refuses_mask
def from_adamw(
    learning_rate: optax.ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    *,
    eps: Number = 1e-8,
    weight_decay: Number = 1e-4,
    weight_decay_mask: Any = None,
    rule: Rule | None = None,
    grafting: Grafting = "adam",
    update_interval: optax.ScalarOrSchedule = 10,
    leave_out: tuple[str, ...] = (),
    tiling: Tiling | None = None,
    others: optax.GradientTransformation | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Derives Jorge's hyperparameters from a tuned AdamW run.

    The paper names this as future work. ``docs/from_adamw.md`` gives the reasons for
    the rules below, and a measurement.

    - Learning rate and schedule: unchanged. Each tile's step has the direction of Jorge
      and twice the length of Adam's step: a whitened step is spread over all
      directions alike, where Adam's goes more along the steepest few.
    - Momentum: ``b1``. Weight decay: unchanged, since it is decoupled in both.
    - Embeddings are left to Adam: in each step most of their rows receive no gradient.
      So is the last layer, if its name is ``head`` or has ``lm_head`` in it.

    Args:
      learning_rate: Learning rate of the AdamW run, a number or an optax schedule.
      b1: Decay rate of Adam's first moment; becomes Jorge's momentum.
      b2: Decay rate of Adam's second moment.
      eps: Adam's epsilon.
      weight_decay: Weight decay of the AdamW run; the default is that of
        :func:`optax.adamw`.
      rule: As in :func:`jorge_optax.jorge`; ``None`` is :class:`Whitening`.
      grafting: As in :func:`jorge_optax.jorge`; ``"adam"`` is twice the length of
        Adam's step with :class:`Whitening`, else its length.
      leave_out: Parameters with one of these words in their path have no roots, beside
        embeddings and last layers; :func:`jorge_optax.views.only` replaces those, too.
      weight_decay_mask, update_interval, tiling, others, numerics, sharding: As in
        :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; printing it shows a table.

    Examples:
      >>> from jorge_optax import from_adamw
      >>> print(from_adamw(3e-4, b2=0.95, weight_decay=0.1, leave_out=("router",)))
      learning_rate    0.0003
      momentum         0.9
      weight_decay     0.1
      rule             Whitening()
      grafting         Adam(b2=0.95, scale=2.0)
      update_interval  10, and 1 in the first 50 steps
      tiling           Tiling(leave_out=('router',))
      note: without roots, by the recipe: embeddings, last layers.

    References:
      Agarwal et al, `Learning Rate Grafting: Transferability of Optimizer Tuning
      <https://openreview.net/forum?id=FpKgG31Z_i9>`_, 2021
    """
    check_number("b1", b1, DECAY_RATE)
    check_number("b2", b2, DECAY_RATE)
    rule = Whitening() if rule is None else rule
    if isinstance(grafting, str) and grafting == "adam":
        whitens = isinstance(rule, Rule) and rule.momentum == "nesterov"
        grafting = Adam(b2, eps, scale=2.0 if whitens else 1.0)
    tiling, notes = leaving_out(tiling, leave_out, EMBEDDINGS + LAST_LAYERS)
    tx = jorge(
        learning_rate,
        b1,
        weight_decay,
        weight_decay_mask,
        rule=rule,
        grafting=grafting,
        update_interval=update_interval,
        tiling=tiling,
        others=others,
        numerics=numerics,
        sharding=sharding,
    )
    return with_notes(tx, *notes)


@refuses_mask
def from_scratch(
    total_steps: int,
    *,
    learning_rate: Number = 0.0425,
    warmup_steps: int = 0,
    momentum: Number = 0.9,
    weight_decay: Number = 0.0,
    weight_decay_mask: Any = None,
    rule: Rule | None = None,
    grafting: Grafting = "shape",
    update_interval: optax.ScalarOrSchedule = 10,
    leave_out: tuple[str, ...] = (),
    tiling: Tiling | None = None,
    others: optax.GradientTransformation | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer for a model without any tuned baseline.

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
      rule: As in :func:`jorge_optax.jorge`; ``None`` is :class:`Whitening`.
      grafting: As in :func:`jorge_optax.jorge`; ``"shape"`` is ``lengths.Shape()``.
      leave_out: Parameters with one of these words in their path have no roots, beside
        embeddings; :func:`jorge_optax.views.only` replaces those, too. They take Adam's
        step, at a tenth of the learning rate, as do biases. Add the name of the last
        layer of a language model.
      weight_decay_mask, update_interval, tiling, others, numerics, sharding: As in
        :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; printing it shows a table.

    Examples:
      >>> from jorge_optax import from_scratch
      >>> print(from_scratch(9000))
      learning_rate    a schedule: 0.0425 at 0, 0.0412 at 1000, 0 at 10000
      momentum         0.9
      weight_decay     0.0
      rule             Whitening()
      grafting         Shape()
      update_interval  10, and 1 in the first 50 steps
      note: learning_rate is a cosine from 0.0425 to 0 at step 9000.
      note: without roots, by the recipe: embeddings.
    """
    if callable(learning_rate):
        raise TypeError(
            "from_scratch: learning_rate must be a number, the largest learning rate "
            "of a cosine, got a function. To run another schedule, write "
            "jorge(schedule, rule=Whitening(), grafting=lengths.Shape())."
        )
    remedy = "The default is 0.0425."
    check_number("learning_rate", learning_rate, POSITIVE, remedy)
    check_static_count("total_steps", total_steps, 1)
    check_static_count("warmup_steps", warmup_steps, 0)
    if warmup_steps >= total_steps:
        raise ValueError(
            "from_scratch needs a length of training, total_steps, longer than its "
            f"warm-up: got total_steps={total_steps}, warmup_steps={warmup_steps}."
        )
    if isinstance(grafting, str) and grafting == "shape":
        grafting = Shape()

    def cosine(count: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
        start = 0.0 if warmup_steps else 1.0
        unit = optax.warmup_cosine_decay_schedule(start, 1.0, warmup_steps, total_steps)
        return learning_rate * unit(count)

    warmup = f", after a warm-up of {warmup_steps} steps" * (warmup_steps > 0)
    rate = f"learning_rate is a cosine from {learning_rate} to 0 at step {total_steps}"
    tiling, notes = leaving_out(tiling, leave_out, EMBEDDINGS)
    tx = jorge(
        cosine,
        momentum,
        weight_decay,
        weight_decay_mask,
        rule=Whitening() if rule is None else rule,
        grafting=grafting,
        update_interval=update_interval,
        tiling=tiling,
        others=others,
        numerics=numerics,
        sharding=sharding,
    )
    return with_notes(tx, f"{rate}{warmup}.", *notes)


def decoupled_decay(
    weight_decay: Number, momentum: Number, decoupled: bool
) -> tuple[Number, tuple[str, ...]]:
    """Returns the decay that acts once, for one that acts through SGD's momentum."""
    check_number("weight_decay", weight_decay, NOT_NEGATIVE)
    if decoupled or (isinstance(weight_decay, numbers.Real) and weight_decay == 0):
        return weight_decay, ()
    note = "weight_decay is that of SGD over 1 - momentum, since it is decoupled."
    decay = weight_decay / (1 - momentum)
    # Rounded, so that 1e-4 / (1 - 0.9) is 0.001 and not 0.0010000000000000002.
    known = isinstance(decay, numbers.Real)
    return float(f"{decay:.12g}") if known else decay, (note,)


def leaving_out(
    tiling: Tiling | None, words: tuple[str, ...], own: tuple[str, ...]
) -> tuple[Tiling, tuple[str, ...]]:
    """Returns a tiling that leaves out the user's words and the recipe's own."""
    tiling = Tiling() if tiling is None else tiling
    check_type("tiling", tiling, Tiling, "a jorge_optax.Tiling or None")
    check_words(words)
    left_out = (*tiling.leave_out, *words)
    if isinstance(words, only):
        return dataclasses.replace(tiling, leave_out=left_out), ()
    tiling = Tiling(tiling.max_dim, Without(own, tiling.view), left_out)
    names = "embeddings" if own == EMBEDDINGS else "embeddings, last layers"
    return tiling, (f"without roots, by the recipe: {names}.",)


def thirds_of(
    total_steps: int | None, epochs: int | None, steps_per_epoch: int | None
) -> tuple[int, int]:
    """Returns a third of the steps, or of whole epochs, and the number of steps."""
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        instead = "Pass total_steps instead to count thirds in steps."
        check_static_count("epochs", epochs, 3, instead)
        whole = "Round it: len(data) // batch_size, if the last batch is dropped."
        check_static_count("steps_per_epoch", steps_per_epoch, 1, whole)
        return epochs // 3 * steps_per_epoch, epochs * steps_per_epoch
    if total_steps is None or epochs is not None or steps_per_epoch is not None:
        raise ValueError(
            "Pass the length of training, either as total_steps or as epochs and "
            f"steps_per_epoch: got total_steps={total_steps}, epochs={epochs}, "
            f"steps_per_epoch={steps_per_epoch}. The learning rate decays at its "
            "thirds. To have another schedule, write from_sgd(schedule, ..., "
            "rule=BinomialSeries())."
        )
    check_static_count("total_steps", total_steps, 3, SHORTER)
    return total_steps // 3, total_steps
