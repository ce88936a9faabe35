"""The models of the problems, on data that need no files: for comparing gradients."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.problems import fashion_mnist, language_model, resnet
from examples.language_model.input_pipeline import text

BATCH, SEQUENCES = 64, 8
WIDTHS = (784, 256, 256, 10)  # of the MLP
Loss = Callable[[Any, Any, Any], tuple[jax.Array, Any]]


def problem(model: str) -> tuple[Any, Any, Loss, Callable[[], Any]]:
    """Returns parameters, model state, the loss of both and a batch, and the batches.

    Args:
      model: "transformer", on Python's sources, "resnet" or "mlp", on images that are
        noise around a prototype of their class.
    """
    rng = np.random.default_rng(0)
    if model == "transformer":
        return (
            language_model.init(0),
            (),
            lambda params, state, batch: (language_model.loss(params, batch), state),
            lambda: language_model.batch(text()[0], rng, SEQUENCES),
        )
    shape = (resnet.SIDE, resnet.SIDE, 3) if model == "resnet" else WIDTHS[:1]
    # Small, so that losses, and gradients, do not fall to zero.
    prototypes = 0.1 * rng.standard_normal((10, *shape), "f4")

    def draw() -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(10, size=BATCH)
        noise = rng.standard_normal((BATCH, *shape), "f4")
        return prototypes[labels] + noise, labels

    if model == "resnet":
        return *resnet.init(0), resnet.loss, draw

    def loss(params: Any, state: Any, batch: Any) -> tuple[jax.Array, Any]:
        return fashion_mnist.loss(params, *batch), state

    return fashion_mnist.init_mlp(0, WIDTHS), (), loss, draw
