"""The settings of a run: plain frozen dataclasses, written to `config.json`.

A configuration holds the settings of a tuned SGD and of AdamW. Those of Jorge and
Shampoo, all but the interval, follow from SGD's by the paper's rules.
"""

import dataclasses
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How the learning rate decays.

    Attributes:
      kind: "cosine" to zero, "polynomial" to zero, "steps" (a tenth at each drop).
      drops: epochs of the drops, counted from the start, warm-up included.
      power: of the polynomial.
      warmup_epochs: epochs of linear warm-up.
    """

    kind: str
    drops: tuple[float, ...] = ()
    power: float = 0.9
    warmup_epochs: int = 0


@dataclasses.dataclass(frozen=True)
class SGD:
    """A tuned SGD; `weight_decay` is part of the gradient, as in torch's SGD."""

    learning_rate: float
    weight_decay: float
    schedule: Schedule
    momentum: float = 0.9


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW with decoupled decay."""

    learning_rate: float
    weight_decay: float
    schedule: Schedule = Schedule("cosine")
    b1: float = 0.9
    b2: float = 0.999


@dataclasses.dataclass(frozen=True)
class Config:
    """One workload.

    Attributes:
      dataset: name of a data set.
      model: name of a model.
      batch_size: of training, over all devices.
      epochs: length of training.
      sgd: settings of SGD, and through the paper's rules of Jorge and Shampoo.
      adamw: settings of AdamW.
      update_interval: steps between refreshes of Jorge's and Shampoo's roots.
      eval_every: steps between evaluations.
      checkpoint_every: steps between checkpoints, a multiple of eval_every; None for a
        checkpoint with each evaluation.
      decay_all: whether biases and norms decay too, as torchvision's reference does.
      image_size: side of the images, None for the data set's own.
      train_examples: how many to train on, None for all.
      test_examples: how many to evaluate on, None for all.
      learning_rate_factors: part of a parameter's path ("a" or "a/b") -> factor on its
        learning rate; 0 freezes it.
      bf16: whether to compute in bfloat16 (parameters stay float32).
      pretrained: file with torchvision's weights of the backbone.
      threads: how many read and augment images.
    """

    dataset: str
    model: str
    batch_size: int
    epochs: int
    sgd: SGD
    adamw: AdamW
    update_interval: int = 10
    eval_every: int = 100
    checkpoint_every: int | None = None
    decay_all: bool = False
    image_size: int | None = None
    train_examples: int | None = None
    test_examples: int | None = None
    learning_rate_factors: tuple[tuple[str, float], ...] = ()
    bf16: bool = False
    pretrained: str | None = None
    threads: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, ready for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings that differ between runs of one workload.

    Attributes:
      optimizer: its name in `examples.shared.optimizers`.
      seed: of parameters, order of the data, augmentation and dropout.
      folder: where logs and checkpoints go.
      steps: length of training, None for the configuration's epochs.
      devices: how many share each batch.
      spread: whether each device keeps, refreshes and applies only its share of the
        roots, for the optimizers that have them.
      keep: how many of the best checkpoints stay, beside the last.
      diagnose: whether numbers of the roots go to TensorBoard with each evaluation.
    """

    optimizer: str
    seed: int
    folder: pathlib.Path
    steps: int | None = None
    devices: int = 1
    spread: bool = False
    keep: int = 2
    diagnose: bool = False
