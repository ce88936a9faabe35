"""An MLP that classifies Fashion-MNIST, and an autoencoder of its images."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import results
from benchmarks.problems import fashion_mnist
from benchmarks.problems.problem import Problem, draw_batches

STEPS, BATCH = results.sized(400, 3), 256
LONG = results.sized(3000, 3)  # steps of the longer run


def mlp() -> Problem:
    """784-256-256-10, ReLU; cross-entropy; accuracy on the 10,000 test images."""
    images, labels = (jnp.asarray(array) for array in _load("test"))
    return Problem(
        name="mlp",
        steps=STEPS,
        init=lambda seed: (fashion_mnist.init_mlp(seed, (784, 256, 256, 10)), ()),
        loss=lambda params, state, batch: (fashion_mnist.loss(params, *batch), state),
        batches=_batches(STEPS),
        evaluate=lambda params, state: _accuracy(params, images, labels),
        metric="test accuracy",
        larger_is_better=True,
        central_rate=0.1,
        adamw_leaves=("layer2",),
    )


def autoencoder(name: str = "autoencoder", steps: int = STEPS) -> Problem:
    """784-256-64-16-64-256-784, tanh; loss summed over pixels; the same on test images.

    Held out are 2,000 of the test images.
    """
    images = jnp.asarray(_load("test")[0][:2000])
    widths = (784, 256, 64, 16, 64, 256, 784)
    return Problem(
        name=name,
        steps=steps,
        init=lambda seed: (fashion_mnist.init_mlp(seed, widths), ()),
        loss=lambda params, state, batch: (_reconstruction(params, batch[0]), state),
        batches=_batches(steps),
        evaluate=lambda params, state: _reconstruction(params, images),
        metric="test loss",
        larger_is_better=False,
        central_rate=1e-3,
        adamw_leaves=("layer5",),
    )


def long_autoencoder() -> Problem:
    """The autoencoder, trained for 3,000 steps at the rates tuned on the short runs."""
    problem = autoencoder("autoencoder_long", LONG)
    return dataclasses.replace(problem, tuned_on="autoencoder")


_load = functools.cache(fashion_mnist.load)


def _batches(steps: int):
    return lambda seed: draw_batches(_load("train"), steps, BATCH, seed)


@jax.jit
def _accuracy(params: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = _forward(params, images, jax.nn.relu)
    return jnp.mean(jnp.argmax(logits, -1) == labels)


@jax.jit
def _reconstruction(params: dict, images: jax.Array) -> jax.Array:
    """Cross-entropy of the pixels, summed over each image, mean over images."""
    logits = _forward(params, images, jnp.tanh)
    return optax.sigmoid_binary_cross_entropy(logits, images).sum(-1).mean()


def _forward(params: dict, x: jax.Array, activation) -> jax.Array:
    for i in range(len(params)):
        layer = params[f"layer{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        x = activation(x) if i < len(params) - 1 else x
    return x
