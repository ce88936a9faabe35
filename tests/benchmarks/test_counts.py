"""Counts of operations: loops."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.baselines.muon import muon
from benchmarks.cost.contenders import kernel_dimensions
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


def newton_schulz(m, n, steps):
    """Operations of Muon for an m x n matrix: X X^T, its square, and a product by X."""
    m, n = min(m, n), max(m, n)
    return steps * 2 * (2 * m * m * n + m**3)


def test_muon_takes_five_newton_schulz_steps():
    shapes = {"kernel": (3, 3, 4, 16), "dense": (20, 6), "bias": (6,)}
    params = {key: jnp.zeros(shape) for key, shape in shapes.items()}
    optimizer = muon(optax.constant_schedule(0.1), kernel_dimensions)
    state = jax.eval_shape(optimizer.init, params)
    found = matmul_flops(optimizer.update, params, state, params)
    by_hand = {
        steps: newton_schulz(36, 16, steps) + newton_schulz(20, 6, steps)
        for steps in (1, 5)
    }
    assert found == (by_hand[5], 0)
    assert found != (by_hand[1], 0)
