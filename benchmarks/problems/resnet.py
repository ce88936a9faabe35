"""A small ResNet with batch norm on CIFAR-10."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.problems.problem import Problem, draw_batches
from examples.shared import files

STEPS, BATCH, SIDE, HELD_OUT = results.sized(300, 3), 128, 16, 2000
WIDTHS = (8, 16, 32)  # of the blocks; each but the first halves the sides


def problem() -> Problem:
    """A stem and three blocks on images halved to 16 x 16; accuracy on 2,000."""
    images, labels = (jnp.asarray(array[:HELD_OUT]) for array in _load("test"))
    return Problem(
        name="resnet",
        steps=STEPS,
        init=init,
        loss=loss,
        batches=_batches,
        evaluate=lambda params, state: _accuracy(params, state, images, labels),
        metric="test accuracy",
        larger_is_better=True,
        central_rate=0.1,
        adamw_leaves=("head",),
    )


def init(seed: int) -> tuple[dict, dict]:
    """He-normal HWIO kernels; batch statistics 0 and 1."""
    keys = iter(jax.random.split(jax.random.key(seed), 16))

    def kernel(*shape):
        fan_in = np.prod(shape[:-1])
        return jax.random.normal(next(keys), shape) * np.sqrt(2 / fan_in)

    def norm(width):
        return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}

    def statistics(width):
        return {"mean": jnp.zeros(width), "variance": jnp.ones(width)}

    params: dict[str, Any] = {"stem": kernel(3, 3, 3, 8), "stem_norm": norm(8)}
    state: dict[str, Any] = {"stem_norm": statistics(8)}
    for i, (m, n) in enumerate(zip((8, *WIDTHS), WIDTHS, strict=False)):
        params[f"block{i}"] = {
            "conv1": kernel(3, 3, m, n),
            "norm1": norm(n),
            "conv2": kernel(3, 3, n, n),
            "norm2": norm(n),
        }
        state[f"block{i}"] = {"norm1": statistics(n), "norm2": statistics(n)}
        if m != n:
            params[f"block{i}"]["shortcut"] = kernel(1, 1, m, n)
    params["head"] = {"kernel": kernel(WIDTHS[-1], 10), "bias": jnp.zeros(10)}
    return params, state


def loss(params: dict, state: dict, batch: Any) -> tuple[jax.Array, dict]:
    """Mean cross-entropy and the new batch statistics."""
    images, labels = batch
    logits, state = forward(params, state, images, train=True)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, state


def forward(params: dict, state: dict, x: jax.Array, *, train: bool):
    """Logits and the new batch statistics."""
    normalise = functools.partial(_batch_norm, train=train)
    new: dict[str, Any] = {}
    x = _conv(x, params["stem"], 1)
    x, new["stem_norm"] = normalise(x, params["stem_norm"], state["stem_norm"])
    x = jax.nn.relu(x)
    for i in range(len(WIDTHS)):
        name, stride = f"block{i}", 1 if i == 0 else 2
        block, old, fresh = params[name], state[name], {}
        h = _conv(x, block["conv1"], stride)
        h, fresh["norm1"] = normalise(h, block["norm1"], old["norm1"])
        h = _conv(jax.nn.relu(h), block["conv2"], 1)
        h, fresh["norm2"] = normalise(h, block["norm2"], old["norm2"])
        x = _conv(x, block["shortcut"], stride) if "shortcut" in block else x
        x, new[name] = jax.nn.relu(x + h), fresh
    head = params["head"]
    return x.mean((1, 2)) @ head["kernel"] + head["bias"], new


def _conv(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _batch_norm(x, params: dict, state: dict, *, train: bool):
    """Uses the statistics of the batch in training, otherwise their running means."""
    if train:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        batch = {"mean": mean, "variance": variance}
        state = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state, batch)
    else:
        mean, variance = state["mean"], state["variance"]
    factor = params["scale"] * jax.lax.rsqrt(variance + 1e-5)
    return (x - mean) * factor + params["shift"], state


@functools.cache
def _load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images of SIDE x SIDE, in about [-2, 2], and labels."""
    images, labels = files.read_cifar10(split)
    parts = images.reshape(-1, SIDE, 32 // SIDE, SIDE, 32 // SIDE, 3)
    means = parts.mean((2, 4), dtype=np.float32)
    return (means - 120) / 60, labels


def _batches(seed: int):
    return draw_batches(_load("train"), STEPS, BATCH, seed)


@jax.jit
def _accuracy(params, state, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits, _ = forward(params, state, images, train=False)
    return jnp.mean(jnp.argmax(logits, -1) == labels)
