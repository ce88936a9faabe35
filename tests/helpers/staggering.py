"""Staggered refreshes the slow way: all are refreshed, and those that are due kept."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax import Preconditioner, Rule


def due_tiles(tiles, steps, interval_at, slots, early=0):
    """Which tiles of each stack are due at each step, ``[steps, n]``.

    Args:
      tiles: Number of tiles of each stack.
      steps: Number of steps.
      interval_at: Interval at a step.
      slots: Number of slots.
      early: All tiles are due at each of so many first steps.
    """
    slot_of = {key: np.full(n, -1) for key, n in tiles.items()}
    cursor = 0
    for key, n in tiles.items():
        size = math.ceil(n / slots)
        starts = range(0, n, size)
        begin = 0 if len(starts) == slots else cursor
        for i, start in enumerate(starts):
            slot_of[key][start : start + size] = (begin + i) % slots
        cursor += len(starts) if len(starts) < slots else 0
    table = {key: np.zeros((steps, n), bool) for key, n in tiles.items()}
    for step in range(steps):
        k = interval_at(step)
        if step < early or k < slots:
            slot = "all" if step < early or step % k == 0 else "none"
        else:
            come = {i * (k // slots): i for i in range(slots)}
            slot = come.get(step % k, "none")
        for key, own in slot_of.items():
            table[key][step] = slot == "all" or (own == slot)
    return table


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """A rule that is refreshed at every step, each tile as a table says.

    Attributes:
      rule: The rule that refreshes.
      due: Stack to ``[steps, n]``, whether each tile is due.
    """

    rule: Rule
    due: dict[str, Any]

    @property
    def preconditions(self):
        return self.rule.preconditions

    def init(self, tiles, *, eps, dtype):
        kept = self.rule.init(tiles, eps=eps, dtype=dtype)
        return Preconditioner(kept.roots, (jnp.int32(0), kept.statistics))

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        count, statistics = kept.statistics
        old = Preconditioner(kept.roots, statistics)
        new = self.rule.refresh(
            old, gradients, momenta, damping=damping, precision=precision
        )
        roots = {}
        for key, due in self.due.items():
            chosen = jnp.asarray(due)[count][:, None, None]

            def choose(new, old, chosen=chosen):
                return jnp.where(chosen, new, old)

            roots[key] = jax.tree.map(choose, new.roots[key], old.roots[key])
        return Preconditioner(roots, (count + 1, new.statistics))

    def precondition(self, kept, matrices, *, precision):
        inner = Preconditioner(kept.roots, kept.statistics[1])
        return self.rule.precondition(inner, matrices, precision=precision)
