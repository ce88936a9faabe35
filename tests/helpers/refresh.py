"""Refreshes of one root: the plain formula, and the guarded one that training runs."""

import functools

import jax.numpy as jnp

from jorge_optax import _algorithm, _thin_tiles
from jorge_optax._series import RootBatch, refresh_batches

matmul = functools.partial(jnp.matmul, precision="highest")


def _ratio(x, ratio):
    norm = jnp.sqrt(jnp.sum(jnp.square(x)))
    return _algorithm.ratio(norm) if ratio is None else jnp.asarray(ratio, x.dtype)


def plain_refresh(root, gram, ratio=None, series=_algorithm.BINOMIAL_SERIES):
    """Lines 5 and 6 of Algorithm 2 without guards; a ratio of None is the paper's."""
    x = _algorithm.excitation(root, gram, matmul)
    ratio = _ratio(x, ratio)
    return _algorithm.expand(root, x, ratio, matmul, series) * _algorithm.growth(ratio)


def plain_refresh_thin(root, gradient, ratio=None, series=_algorithm.BINOMIAL_SERIES):
    """The same in the order of products for thin tiles."""
    x, *rest = _thin_tiles.excitation(root, gradient, matmul)
    ratio = _ratio(x, ratio)
    new = _thin_tiles.expand(root, (x, *rest), ratio, matmul, series)
    return new * _algorithm.growth(ratio)


def root_batch(roots, gradients, scale=1.0, *, thin=False):
    """Roots ``[n, m, m]`` and gradients ``[n, m, columns]``, divided by a scale."""
    gradients = gradients / scale
    trace = jnp.sum(jnp.square(gradients), (1, 2))
    data = gradients if thin else matmul(gradients, gradients.mT)
    return RootBatch(roots, data, jnp.full_like(trace, scale), trace, thin)


def guarded_refresh(root, gradient, scale=1.0, *, thin=False):
    """What training runs, for one root; ``scale`` is a power of two."""
    batch = root_batch(root[None], gradient[None], scale, thin=thin)
    ((new, accepted),) = refresh_batches([batch], matmul, _algorithm.BINOMIAL_SERIES)
    return jnp.where(accepted[:, None, None], new, root)[0]
