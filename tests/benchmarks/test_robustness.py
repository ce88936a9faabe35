"""The streams, the arithmetic and the counts of the attack on long streams."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.robustness import descent, endurance
from benchmarks.robustness.arithmetic import with_products_in


def test_products_are_rounded_and_nothing_else():
    x = jnp.asarray([[1 + 2.0**-9, 0.0], [0.0, 1.0]])

    def function(x):
        return jax.jit(jnp.matmul)(x, jnp.eye(2)), x + 0

    for arithmetic, expected in (("float32", x), ("tf32", x), ("bf16", jnp.eye(2))):
        product, same = with_products_in(arithmetic, function)(x)
        np.testing.assert_array_equal(product, expected)
        np.testing.assert_array_equal(same, x)


def test_endurance_sees_asymmetry():
    gradients = np.random.default_rng(2).normal(size=(30, 1, 8, 4)).astype(np.float32)
    for rule, symmetric in ((descent.PAPER, False), (descent.WHITENING, True)):
        made_up, repeated = endurance.endure(
            [rule], ["heavy tails", "repeated"], gradients, (8, 4), 200
        )
        for row in (made_up, repeated):
            assert (row["asymmetry"] == 0) == symmetric
            assert row["history"]["refreshes"] == [100, 200]
        assert made_up["asymmetry"] != repeated["asymmetry"] or symmetric
        assert repeated["smallest"] > 0
        assert repeated["non_finite"] == 0
        assert 0 < repeated["cosine"] < 1
        assert repeated["ascents"] == 0


def test_endurance_sees_ascent():
    directions = jnp.asarray([[[1.0, 0.0]], [[0.0, 2.0]], [[-1.0, 1.0]], [[1.0, 1.0]]])
    gradients = jnp.asarray([[[3.0, 0.0]], [[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    np.testing.assert_allclose(
        endurance.cosine(directions, gradients), [1, 0, -(0.5**0.5), 1], rtol=1e-6
    )
