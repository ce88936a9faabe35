"""The paper's rule without guards, for negative controls."""

import jax.numpy as jnp

from jorge_optax import BinomialSeries


class Plain(BinomialSeries):
    """Lines 5 to 8 and 11 of Algorithm 2 as they stand."""

    def refresh(self, root, seen, real, rounding):
        square = root.unit @ root.unit
        x = square @ (square @ seen.gram)
        norm = jnp.sqrt(jnp.sum(jnp.square(x)))
        x = x / norm
        unit = root.unit - root.unit @ (x / 4 - 5 / 32 * (x @ x))
        norm = (root.scale**2 * seen.size) ** 2 * norm
        scale = root.scale * (norm / (norm + 1)) ** -0.25
        largest = jnp.max(jnp.abs(unit))
        return root._replace(unit=unit / largest, scale=scale * largest)

    def precondition(self, left, right, matrix):
        scale = left.scale * right.scale
        return scale * (left.unit @ matrix @ right.unit)
