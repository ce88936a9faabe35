"""Defines a training problem: model, data, loss and metric."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.baselines.muon import dimension_numbers


@dataclasses.dataclass(frozen=True)
class Problem:
    """A small model with its data, its loss and the measure of success.

    Attributes:
      name: how results call it.
      steps: length of a run, a multiple of 100, or less.
      init: from a seed to parameters and model state (batch statistics, or ()).
      loss: from parameters, model state and a batch to the training loss and the
        new model state.
      batches: from a seed to the batches of a run, one a step, as NumPy arrays; the
        same for all optimizers.
      evaluate: from parameters and model state to the metric on held-out data.
      metric: its name.
      larger_is_better: whether a larger metric is a better one.
      central_rate: the middle of the first learning rates tried for SGD.
      adamw_leaves: names of the matrices that Muon leaves to AdamW by custom:
        embeddings and the last layer. Vectors are left to it anyway.
      tuned_on: name of the problem that gives the learning rates; None is this one.
    """

    name: str
    steps: int
    init: Callable[[int], tuple[Any, Any]]
    loss: Callable[[Any, Any, Any], tuple[jax.Array, Any]]
    batches: Callable[[int], Iterator[Any]]
    evaluate: Callable[[Any, Any], jax.Array]
    metric: str
    larger_is_better: bool
    central_rate: float
    adamw_leaves: tuple[str, ...]
    tuned_on: str | None = None

    @property
    def steps_between_evaluations(self) -> int:
        """One percent of the run, but at least one step."""
        return max(1, self.steps // 100)

    def muon_dimension_numbers(self, params: Any) -> Any:
        """Returns Muon's dimension numbers; None for leaves that AdamW trains."""
        return jax.tree_util.tree_map_with_path(self._dimension_numbers, params)

    def _dimension_numbers(self, path: tuple, leaf: jax.Array) -> Any:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        if not set(self.adamw_leaves).isdisjoint(names):
            return None
        return dimension_numbers(leaf)


def draw_batches(
    arrays: tuple[np.ndarray, np.ndarray], steps: int, size: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of each step, drawn with replacement."""
    images, labels = arrays
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        index = rng.integers(len(images), size=size)
        yield images[index], labels[index]
