"""Which true box an anchor or a proposal belongs to, and which of them are trained on.

True boxes are padded with idle ones, and `valid` tells them apart. An idle box matches
nothing, and changes neither what the others match nor what is drawn.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

BACKGROUND = -1  # instead of a true box: no overlap to speak of
BETWEEN = -2  # instead of a true box: neither background nor a match


def match(
    quality: jax.Array, valid: jax.Array, *, high: float, low: float, keep_best: bool
) -> jax.Array:
    """Returns the true box of each candidate, or `BACKGROUND` or `BETWEEN`, [n].

    Args:
      quality: Intersection over union of true boxes and candidates, [boxes, n].
      valid: Which true boxes are not idle, [boxes].
      high: From here on a candidate matches the box that it overlaps most.
      low: Below it is background.
      keep_best: Whether the candidates that overlap a true box most match, too,
        however little that is. Each matches the box that it overlaps most itself. A
        box that no candidate touches matches none.
    """
    quality = jnp.where(valid[:, None], quality, -1)
    best, box = jnp.max(quality, axis=0), jnp.argmax(quality, axis=0)
    matches = jnp.where(best >= high, box, jnp.where(best < low, BACKGROUND, BETWEEN))
    if keep_best:
        highest = jnp.max(quality, axis=1, keepdims=True)
        kept = jnp.any((quality == highest) & (highest > 0), axis=0)
        matches = jnp.where(kept, box, matches)
    return matches.astype(jnp.int32)


class Sample(NamedTuple):
    """Candidates that were drawn: first the positive ones, then the negative ones."""

    indices: jax.Array  # int32 [size]
    valid: jax.Array  # bool [size]; the others are idle
    positive: jax.Array  # bool [size]


def sample(key: jax.Array, labels: jax.Array, *, size: int, fraction: float) -> Sample:
    """Draws `size` candidates, of which at most the fraction is positive.

    Negative ones take the places that positive ones leave. If there are too few, some
    of the sample is idle.

    Args:
      key: Of the draw. What a candidate draws depends on its number alone.
      labels: Positive from 1 on, negative at 0, neither below, [n].
      size: Of the sample.
      fraction: Of positive ones, at most.
    """
    draws = jax.random.uniform(key, labels.shape)
    most = max(1, int(size * fraction))
    positive, positives = _draw(draws, labels >= 1, most)
    negative, negatives = _draw(draws, labels == 0, size)
    positives = jnp.minimum(positives, most)
    negatives = jnp.minimum(negatives, size - positives)
    place = jnp.arange(size)
    first = jnp.take(positive, place, mode="clip")
    rest = jnp.take(negative, place - positives, mode="clip")
    return Sample(
        jnp.where(place < positives, first, rest),
        place < positives + negatives,
        place < positives,
    )


def _draw(
    draws: jax.Array, wanted: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
    """Returns up to `size` candidates, wanted ones first, and how many are wanted."""
    size = min(size, len(draws))
    _, indices = jax.lax.top_k(jnp.where(wanted, draws, -1), size)
    return indices, jnp.sum(wanted)
