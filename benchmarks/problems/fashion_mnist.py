"""Loads Fashion-MNIST and trains a small MLP on it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.shared import files


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as [n, 784] in [0, 1] and labels of the split "train" or "test"."""
    images, labels = files.read_fashion_mnist(split)
    return images.reshape(-1, 784).astype(np.float32) / 255, labels


def init_mlp(seed: int, widths=(784, 512, 512, 10)) -> dict:
    """Returns He-normal weights and zero biases."""
    keys = jax.random.split(jax.random.key(seed), len(widths) - 1)
    return {
        f"layer{i}": {
            "kernel": jax.random.normal(key, (m, n)) * np.sqrt(2 / m),
            "bias": jnp.zeros(n),
        }
        for i, (key, m, n) in enumerate(zip(keys, widths, widths[1:], strict=False))
    }


def loss(params: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    x = images
    for i in range(len(params)):
        layer = params[f"layer{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        x = jax.nn.relu(x) if i < len(params) - 1 else x
    return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()


def train(optimizer, seed: int, steps: int, batch_size: int = 256) -> np.ndarray:
    """Trains; returns the training loss at each step."""
    images, labels = (jnp.asarray(array) for array in load("train"))
    params = init_mlp(seed)

    @jax.jit
    def run(params, indices):
        def step(carry, index):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(
                params, images[index], labels[index]
            )
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, optimizer.init(params)), indices)[1]

    rng = np.random.default_rng(seed)
    indices = rng.integers(len(images), size=(steps, batch_size))
    return np.asarray(run(params, indices))
