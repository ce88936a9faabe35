"""Counts of operations: loops."""

import jax
import jax.numpy as jnp

from benchmarks.cost.counts import matmul_flops

STRUCT = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def squared(times):
    """A function that squares a matrix `times` times, in a loop."""
    return lambda x: jax.lax.fori_loop(0, times, lambda _, y: y @ y, x)


def test_products_in_a_loop_count_once_for_each_step():
    once = matmul_flops(lambda x: x @ x, STRUCT)
    assert once == (2 * 8**3, 0)
    assert matmul_flops(squared(3), STRUCT) == (3 * once.plain, 0)
    assert matmul_flops(squared(4), STRUCT) != (3 * once.plain, 0)

    def loop_in_a_loop(x):
        return jax.lax.scan(lambda y, _: (squared(3)(y), None), x, None, length=2)[0]

    assert matmul_flops(loop_in_a_loop, STRUCT) == (6 * once.plain, 0)
