"""Flax's own attention, linen and nnx, is seen as square matrices by default."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jorge_optax import describe, from_adamw


def linen_params(width, heads):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.MultiHeadDotProductAttention(heads)(x)

    return jax.eval_shape(Block().init, jax.random.key(0), jnp.ones((1, 4, width)))


def nnx_params(width, heads):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attn = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)

    return nnx.state(nnx.eval_shape(lambda: Block(nnx.Rngs(0))), nnx.Param)


@pytest.mark.parametrize("params", [linen_params, nnx_params])
@pytest.mark.parametrize(("width", "heads"), [(512, 8), (768, 12), (1024, 16)])
def test_attention_of_flax_is_seen_as_square_matrices(params, width, heads):
    table = describe(params(width, heads), from_adamw(0.1))
    assert table.notes == ()
    assert "!" not in str(table)
    assert table.state_bytes <= 2.1 * table.adamw_bytes
    found = {"/".join(x.path.split("/")[-2:]): x.matrix for x in table.leaves}
    size = width // heads
    for name in ("query", "key", "value", "out"):
        assert found[f"{name}/kernel"] == f"{width}x{width}"
        assert found[f"{name}/bias"] == "-"
    shapes = {"/".join(x.path.split("/")[-2:]): x.shape for x in table.leaves}
    assert shapes["query/kernel"] == (width, heads, size)
    assert shapes["query/bias"] == (heads, size)
    assert shapes["out/kernel"] == (heads, size, width)
