"""The parts of a task that all examples on images have in common."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from examples.shared import data
from examples.shared.config import Config
from examples.shared.loop import Task


def load(
    loader: Callable[..., data.Data], config: Config, folder: pathlib.Path | None
) -> data.Data:
    """Loads the configuration's data set by an example's `input_pipeline.load`."""
    return loader(
        config.dataset,
        folder,
        image_size=config.image_size,
        train_examples=config.train_examples,
        test_examples=config.test_examples,
    )


def make(
    config: Config,
    source: data.Data,
    *,
    seed: int,
    make_model: Callable[..., nnx.Module],
    load_pretrained: Callable[[Any, str], None],
    **rest: Any,
) -> Task:
    """Returns the task of a run; `rest` are its loss, count, score and metric."""

    def model(rngs: nnx.Rngs) -> nnx.Module:
        network = make_model(
            config.model,
            classes=source.classes,
            in_channels=source.shape[-1],
            dtype=jnp.bfloat16 if config.bf16 else jnp.float32,
            rngs=rngs,
        )
        if config.pretrained:
            load_pretrained(network, config.pretrained)
        return network

    def train(first_step: int) -> Any:
        return data.train_batches(
            source.train,
            source.augment,
            batch_size=config.batch_size,
            seed=seed,
            first_step=first_step,
            threads=config.threads,
        )

    def test() -> Any:
        return data.eval_batches(
            source.test,
            source.prepare,
            batch_size=config.batch_size,
            threads=config.threads,
        )

    steps_per_epoch = len(source.train) // config.batch_size
    return Task(model, train=train, test=test, steps_per_epoch=steps_per_epoch, **rest)
