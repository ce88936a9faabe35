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
        norm = (jnp.exp(2 * root.log_scale) * seen.size) ** 2 * norm
        log_scale = root.log_scale - jnp.log(norm / (norm + 1)) / 4
        largest = jnp.max(jnp.abs(unit))
        return root._replace(
            unit=unit / largest, log_scale=log_scale + jnp.log(largest)
        )

    def precondition(self, left, right, matrix):
        scale = jnp.exp(left.log_scale + right.log_scale)
        return scale * (left.unit @ matrix @ right.unit)
