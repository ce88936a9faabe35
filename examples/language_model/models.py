"""A decoder-only transformer on bytes."""

import jax
import jax.numpy as jnp
from flax import nnx

VOCABULARY = 256


class Block(nnx.Module):
    """Causal attention and an MLP, each behind a norm and a residual connection."""

    def __init__(self, width: int, heads: int, layers: int, rngs: nnx.Rngs):
        def dense(inputs: int, outputs: int, scale: float = 1.0) -> nnx.Linear:
            init = nnx.initializers.variance_scaling(scale, "fan_in", "normal")
            return nnx.Linear(
                inputs, outputs, use_bias=False, kernel_init=init, rngs=rngs
            )

        self.heads = heads
        self.before_attention = nnx.RMSNorm(width, rngs=rngs)
        self.queries_keys_values = dense(width, 3 * width)
        self.mix = dense(width, width, 1 / (2 * layers))
        self.before_mlp = nnx.RMSNorm(width, rngs=rngs)
        self.up = dense(width, 4 * width)
        self.down = dense(4 * width, width, 1 / (2 * layers))

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        joint = self.queries_keys_values(self.before_attention(x))
        split = joint.reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (split[:, :, part] for part in range(3))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.before_mlp(x))))


class Transformer(nnx.Module):
    """Bytes [batch, length] to logits of the next byte [batch, length, 256]."""

    def __init__(
        self, *, context: int, width: int, heads: int, layers: int, rngs: nnx.Rngs
    ):
        small = nnx.initializers.normal(0.02)
        self.embedding = nnx.Embed(VOCABULARY, width, embedding_init=small, rngs=rngs)
        self.position = nnx.Param(small(rngs.params(), (context, width)))
        blocks = [Block(width, heads, layers, rngs) for _ in range(layers)]
        self.blocks = nnx.List(blocks)
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens) + self.position[None, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).astype(jnp.float32)
