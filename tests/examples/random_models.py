"""Models whose values NumPy draws, quicker than their own start would compile."""

import jax.numpy as jnp
import numpy as np
from flax import nnx


def fill(model, variance):
    """Draws the kernels of a model without values, and resets all else.

    A kernel has `variance` over the number of its inputs.
    """
    rng = np.random.default_rng(0)

    def value(path, shape):
        if path[-1] == "kernel":
            return rng.normal(size=shape) * (variance / np.prod(shape[:-1])) ** 0.5
        return np.full(shape, path[-1] in ("scale", "var"))

    flat = [
        (path, variable.replace(jnp.asarray(value(path, variable.shape), jnp.float32)))
        for path, variable in nnx.to_flat_state(nnx.state(model))
    ]
    nnx.update(model, nnx.from_flat_state(flat))
    return model
