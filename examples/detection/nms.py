"""Non-maximum suppression, without a loop over boxes."""

import jax
import jax.numpy as jnp

from examples.detection import boxes as box_ops


def nms(
    boxes: jax.Array, scores: jax.Array, valid: jax.Array, threshold: float
) -> jax.Array:
    """Returns which boxes are kept, bool [n].

    A box is dropped if its intersection over union with a kept box of higher score is
    above the threshold. Of equal scores the first counts as the higher one.

    Whether a box is kept depends on those above it alone. So all are decided at once,
    from a guess, until nothing changes: after k rounds all those are right that hang
    on a chain of k boxes at most. Chains are short, and the result is exact.

    Args:
      boxes: [n, 4].
      scores: [n].
      valid: Which boxes are not idle, [n]; the others are dropped, and drop none.
      threshold: Of intersection over union.
    """
    order = jnp.argsort(jnp.where(valid, -scores, jnp.inf), stable=True)
    overlaps = box_ops.iou(boxes[order], boxes[order]) > threshold
    drops = jnp.triu(overlaps, k=1)  # [higher, lower]
    there = valid[order]

    def decide(kept: jax.Array) -> jax.Array:
        return there & ~jnp.any(drops & kept[:, None], axis=0)

    def again(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        kept, _ = state
        decided = decide(kept)
        return decided, jnp.any(decided != kept)

    kept, _ = jax.lax.while_loop(lambda s: s[1], again, (there, jnp.any(there)))
    return jnp.zeros_like(valid).at[order].set(kept)
