"""Powers of two as scales; many batches at once against each matrix alone."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax._numerics import (
    nearest_power_of_two,
    split_scale,
    split_scales,
    traces,
)


def batches():
    rng = np.random.default_rng(0)
    for n, rows, columns, size in ((2, 3, 4, 1.0), (1, 5, 2, 1e-30), (4, 2, 2, 1e30)):
        yield jnp.asarray(size * rng.normal(size=(n, rows, columns)), jnp.float32)


def test_scales_of_many_are_those_of_each():
    for batch, (units, scales) in zip(
        batches(), split_scales([*batches()]), strict=True
    ):
        expected = jax.vmap(split_scale)(batch)
        chex.assert_trees_all_equal((units, scales), expected)
        chex.assert_trees_all_equal(units * scales[:, None, None], batch)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(units * (2 * scales[:, None, None]), batch)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scales_are_exact_powers_of_two(dtype):
    values = jnp.asarray([1e-30, 0.3, 1.0, 2.9, 3.1, 1e30], dtype)
    powers = nearest_power_of_two(values)
    assert powers.dtype == dtype
    mantissas, _ = np.frexp(np.asarray(powers))
    chex.assert_trees_all_equal(mantissas, np.full(6, 0.5, dtype))
    assert np.all((values / powers > 0.66) & (values / powers < 1.51))
    unit, scale = split_scale(values[1:5])
    chex.assert_trees_all_equal(unit * scale, values[1:5])


def test_traces():
    x = np.random.default_rng(3).normal(size=(5, 7, 7)).astype(np.float32)
    expected = np.trace(x, axis1=1, axis2=2)
    np.testing.assert_allclose(traces(jnp.asarray(x)), expected, rtol=1e-5)
