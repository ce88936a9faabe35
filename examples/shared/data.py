"""Data sets as splits of examples, and batches of them for training and evaluation."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grain
import numpy as np

IGNORE = -1  # the label of pixels and padded examples that are not counted

Example = dict[str, Any]
Batch = dict[str, np.ndarray]


# Of the batches' arrays; others keep the type that they have.
DTYPES = {"image": np.float32, "label": np.int32}


class Split(Protocol):
    """Examples by number: {"image": [H, W, C], "label": int or mask [H, W], ...}."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example: ...


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set, and functions to float32 images and int32 labels."""

    train: Split
    test: Split
    augment: Callable[[Example, np.random.Generator], Example]  # to train on
    prepare: Callable[[Example], Example]  # to evaluate on
    classes: int
    shape: tuple[int, int, int]  # of a training image

    def keep(self, train_examples: int | None, test_examples: int | None) -> "Data":
        """Returns the data set with fewer examples; None keeps them all."""
        return dataclasses.replace(
            self,
            train=subset(self.train, train_examples),
            test=subset(self.test, test_examples),
        )


@dataclasses.dataclass(frozen=True)
class Arrays:
    """A split that is in memory."""

    images: np.ndarray  # [N, H, W, C]
    labels: np.ndarray  # [N, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return {"image": self.images[index], "label": self.labels[index]}


@dataclasses.dataclass(frozen=True)
class Subset:
    """The examples of a split that have these numbers."""

    split: Split
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.split[int(self.indices[index])]


def subset(split: Split, count: int | None) -> Split:
    """Keeps the first `count` examples of a permutation that is always the same."""
    if count is None:
        return split
    if not 1 <= count <= len(split):
        raise ValueError(f"Asked for {count} examples of the {len(split)} there are.")
    return Subset(split, np.random.default_rng(0).permutation(len(split))[:count])


def train_batches(
    split: Split,
    augment: Callable[[Example, np.random.Generator], Example],
    *,
    batch_size: int,
    seed: int,
    first_step: int = 0,
    threads: int = 2,
) -> Iterator[Batch]:
    """Returns endless batches, shuffled in each epoch, made ahead by threads.

    The batch of a step depends on the seed and the step alone, so a run resumes in the
    middle of an epoch by `first_step`. No example is dropped: one batch may hold the
    end of an epoch and the start of the next. The threads end with the iterator, or
    with its `close()`.

    Grain's elements are whole batches here. With a grain element for each example,
    small images cost twice as much.
    """
    if not len(split) or batch_size < 1:
        raise ValueError(f"No batches of {batch_size} from {len(split)} examples.")

    @functools.lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, 0, epoch)).permutation(len(split))

    def make_batch(step: int) -> Batch:
        rng = np.random.default_rng((seed, 1, step))
        examples = []
        for position in range(step * batch_size, (step + 1) * batch_size):
            epoch, offset = divmod(position, len(split))
            examples.append(augment(split[int(order(epoch)[offset])], rng))
        return _stack(examples)

    steps = grain.MapDataset.range(first_step, sys.maxsize)
    return _read_ahead(steps.map(make_batch), threads)


def eval_batches(
    split: Split,
    prepare: Callable[[Example], Example],
    *,
    batch_size: int,
    threads: int = 2,
) -> Iterator[Batch]:
    """Returns batches that have each example once, in order.

    The last batch is padded with zeros that have the label -1, so that all batches have
    one shape.
    """

    def make_batch(first: int) -> Batch:
        last = min(first + batch_size, len(split))
        batch = _stack([prepare(split[index]) for index in range(first, last)])
        missing = batch_size - (last - first)
        return {
            key: _fill_up(array, missing, IGNORE if key == "label" else 0)
            for key, array in batch.items()
        }

    starts = grain.MapDataset.range(0, len(split), batch_size)
    return _read_ahead(starts.map(make_batch), threads)


def _read_ahead(batches: grain.MapDataset, threads: int) -> Iterator[Batch]:
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return iter(batches.to_iter_dataset(options))


def _stack(examples: list[Example]) -> Batch:
    return {
        key: np.stack([example[key] for example in examples], dtype=DTYPES.get(key))
        for key in examples[0]
    }


def _fill_up(array: np.ndarray, missing: int, value: int) -> np.ndarray:
    filling = np.full((missing, *array.shape[1:]), value, array.dtype)
    return np.concatenate([array, filling]) if missing else array
