"""Counts of operations and of bytes."""

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost import counts
from benchmarks.cost.counts import matmul_flops
from jorge_optax import Whitening, jorge

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


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 1, 1, 1), (2, 3, 1, 1), (1, 0, 2, 2)],
)
def test_operations_of_convolutions_are_exact(stride, padding, dilation, groups):
    x, w = (2, 7, 6, 6), (3, 3, 6 // groups, 4)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(padding, padding)] * 2,
            rhs_dilation=(dilation, dilation),
            feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    structs = [jax.ShapeDtypeStruct(shape, "f4") for shape in (x, w)]
    # Of ones, each product that is not one of padding adds one.
    expected = 2 * int(convolve(jnp.ones(x), jnp.ones(w)).sum())
    assert counts.matmul_flops(convolve, *structs).plain == expected
    if groups == 1:
        # Forward, by the input and by the kernel: each as many.
        gradient = jax.grad(lambda *both: convolve(*both).sum(), argnums=(0, 1))
        found = counts.count_products(jax.make_jaxpr(gradient)(*structs).jaxpr).plain
        assert found == [expected] * 3


def test_least_bytes_of_an_update():
    params = {"w": jnp.zeros((6, 4))}
    size, roots = 4 * 24, 4 * (36 + 16 + 2)

    def least(optimizer):
        state = jax.eval_shape(optimizer.init, params)
        return counts.least_bytes(state, params)

    # The parameter and its momentum, read and written.
    expected = {"plain": 4 * size, "refresh": 4 * size}
    assert least(optax.sgd(0.1, momentum=0.9)) == expected
    # Two momenta; one count of four bytes; roots are written by a refresh only.
    both = 2 * (3 * size + 4)
    series = {"plain": both + roots, "refresh": both + 2 * roots}
    assert least(jorge(0.1)) == series
    # One momentum less.
    whitening = least(jorge(0.1, rule=Whitening()))
    assert whitening == {name: x - 2 * size for name, x in series.items()}
