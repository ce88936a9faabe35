"""A small transformer on bytes of the Python standard library's sources."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.language_model.input_pipeline import pieces, text

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 128, 4, 2, 32
batch = functools.partial(pieces, context=CONTEXT)  # of source, generator and size


def init(seed: int) -> dict:
    """Returns initial parameters."""
    keys = iter(jax.random.split(jax.random.key(seed), 64))

    def normal(*shape, fan_in):
        return jax.random.normal(next(keys), shape) * fan_in**-0.5

    def block():
        return {
            "norm1": jnp.ones(WIDTH),
            "norm2": jnp.ones(WIDTH),
            "qkv": normal(WIDTH, 3 * WIDTH, fan_in=WIDTH),
            "out": normal(WIDTH, WIDTH, fan_in=WIDTH * 2 * LAYERS),
            "up": normal(WIDTH, 4 * WIDTH, fan_in=WIDTH),
            "down": normal(4 * WIDTH, WIDTH, fan_in=4 * WIDTH * 2 * LAYERS),
            "up_bias": jnp.zeros(4 * WIDTH),
        }

    return {
        "embedding": 0.02 * jax.random.normal(next(keys), (256, WIDTH)),
        "position": 0.02 * jax.random.normal(next(keys), (CONTEXT, WIDTH)),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": jnp.ones(WIDTH),
        "head": normal(WIDTH, 256, fan_in=WIDTH),
    }


def loss(params: dict, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next byte, in nats; tokens are [batch, context + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embedding"][inputs] + params["position"]
    mask = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
    for block in params["blocks"]:
        h = _normalise(x) * block["norm1"]
        q, k, v = (
            part.reshape(*part.shape[:2], HEADS, -1)
            for part in jnp.split(h @ block["qkv"], 3, axis=-1)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + mixed @ block["out"]
        h = _normalise(x) * block["norm2"]
        x = x + jax.nn.gelu(h @ block["up"] + block["up_bias"]) @ block["down"]
    logits = _normalise(x) * params["norm"] @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def _normalise(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def train(optimizer, seed: int, steps: int, every: int = 20):
    """Trains; returns pairs of step and validation loss."""
    training, validation = text()
    rng = np.random.default_rng(seed)
    held_out = batch(validation, np.random.default_rng(1234), 64)
    params = init(seed)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def run(params, state, batches):
        def step(carry, tokens):
            params, state = carry
            grads = jax.grad(loss)(params, tokens)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(step, (params, state), batches)
        return params, state, loss(params, held_out)

    curve = []
    for start in range(0, steps, every):
        batches = np.stack([batch(training, rng, BATCH) for _ in range(every)])
        params, state, value = run(params, state, batches)
        curve.append((start + every, float(value)))
    return curve
