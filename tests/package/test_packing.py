"""Symmetric matrices in half the memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax._packing import pack, packed_shape, unpack


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 7, 16, 33])
def test_packing_is_lossless(side, dtype):
    x = jax.random.normal(jax.random.key(side), (3, side, side)).astype(dtype)
    x = (x + x.mT).astype(dtype)
    packed = pack(x)
    assert packed.shape == (3, *packed_shape(side))
    assert packed.dtype == x.dtype
    np.testing.assert_array_equal(unpack(packed), x)


def test_only_symmetric_matrices_survive():
    x = jnp.arange(16.0).reshape(1, 4, 4)
    assert not np.array_equal(unpack(pack(x)), x)


def test_half_the_memory_without_a_gather():
    assert np.prod(packed_shape(256)) == 0.5 * 256**2 + 256
    x, index = jnp.zeros((2, 8, 8)), jnp.arange(8)
    text = jax.jit(lambda x, i: unpack(pack(x))).lower(x, index).as_text()
    assert "gather" not in text
    assert "gather" in jax.jit(lambda x, i: x[:, i]).lower(x, index).as_text()
