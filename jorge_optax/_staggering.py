"""Staggered refreshes: at each step a part of the tiles, in place of all at once.

A stack of n tiles is cut into parts of ``ceil(n / slots)`` tiles, and each part has a
slot. An interval of k steps, known before tracing, has k slots, and slot i comes at the
steps t with ``t % k == i``. Which parts are due follows from the number of the step
alone, so staggering keeps no state.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._distributed import counting_all
from jorge_optax._execution import keep_in_place
from jorge_optax._rule import Preconditioner
from jorge_optax._types import PyTree, ScalarOrSchedule, Stacks

# Of an interval that is traced or a schedule, since shapes are static.
SLOTS = 10

Refresh = Callable[[Preconditioner, Stacks, Stacks | None], Preconditioner]


class Parts(NamedTuple):
    """How the tiles of one stack are cut into parts.

    Attributes:
      size: Tiles in a part. The last part overlaps the one before where the tiles do
        not suffice, and leaves those of the overlap as they are.
      number: Number of parts, at most that of the slots.
      first: Slot of the first part. The others follow; slot 0 follows the last one.
    """

    size: int
    number: int
    first: int


def cut_into_parts(tiles: dict[str, int], slots: int) -> dict[str, Parts]:
    """Cuts each stack into at most as many parts as there are slots.

    A stack with fewer parts than slots begins where the previous such stack, by name,
    has ended, so that all slots have about equally many parts.

    Args:
      tiles: Number of tiles of each stack.
      slots: Number of slots.

    Returns:
      The parts of each stack.
    """
    parts, first = {}, 0
    for key, n in sorted(tiles.items()):  # some transformations sort dicts, others not
        size = -(-n // slots)
        number = -(-n // size)
        fills = number == slots
        parts[key] = Parts(size, number, 0 if fills else first)
        first = first if fills else (first + number) % slots
    return parts


def number_of_slots(update_interval: ScalarOrSchedule) -> int:
    """Returns the interval if it is known before tracing, else SLOTS."""
    if isinstance(update_interval, numbers.Real):
        return int(float(update_interval))
    return SLOTS


def refresh_in_parts(
    refresh: Refresh,
    kept: Preconditioner,
    gradients: Stacks,
    momenta: Stacks | None,
    *,
    count: jax.Array,
    interval: jax.Array,
    slots: int,
    known: bool,
    early_refreshes: int,
) -> Preconditioner:
    """Refreshes the tiles that are due at this step.

    A conditional returns all roots only where a step may have to refresh all tiles: at
    the first steps of a rule that asks for it, and where an interval that is not known
    may be shorter than the number of slots.

    Args:
      refresh: Refreshes stacks, or parts of them.
      kept: What the rule keeps.
      gradients: The gradients of this step.
      momenta: The momenta, if the rule takes them.
      count: Number of steps so far.
      interval: Steps between two refreshes of a tile, at least 1.
      slots: The interval if it is known, else another number.
      known: Whether the interval is known before tracing.
      early_refreshes: All tiles are refreshed at each of so many first steps.

    Returns:
      What the rule keeps.
    """
    whole = count < early_refreshes
    within = count % interval
    stride = jnp.maximum(interval // slots, 1)  # steps from one slot to the next
    slot = within // stride
    comes = ~whole
    if not known:
        short = interval < slots
        comes &= ~short & (within % stride == 0) & (slot < slots)
        whole |= short & (within == 0)
    tiles = {key: len(stack) for key, stack in gradients.items()}
    parts = cut_into_parts(tiles, slots)
    groups: dict[tuple[int, int], dict[str, Parts]] = {}  # stacks with the same slots
    for key, own in parts.items():
        groups.setdefault((own.number, own.first), {})[key] = own

    def refresh_if(
        due: jax.Array | None, part: _Part, kept: Preconditioner
    ) -> Preconditioner:
        arguments = kept, gradients, momenta
        if due is None:
            return refresh(*map(part.take, arguments))
        return jax.lax.cond(
            due,
            lambda *arguments: refresh(*map(part.take, arguments)),
            lambda kept, *_: part.take_in_place(kept),
            *arguments,
        )

    shapes: Any = {key: stack.shape for key, stack in gradients.items()}
    with counting_all(shapes):
        cut = {key: Parts(tiles[key], 1, 0) for key in tiles if parts[key].number > 1}
        if cut and (early_refreshes or not known):
            part = _Part(tiles, cut, jnp.int32(0))
            kept = part.put(kept, refresh_if(whole, part, kept))
        for (number, first), own in groups.items():
            index = (slot - first) % slots
            part = _Part(tiles, own, index)
            if known and number == slots:  # at each step
                new = refresh_if(None, part, kept)
                kept = part.put(kept, new, comes if early_refreshes else None)
                continue
            due = comes & (index < number)
            if number == 1:  # such a stack in two conditionals would be copied
                due |= whole
            kept = part.put(kept, refresh_if(due, part, kept))
    return kept


class _Part(NamedTuple):
    """One part of each of some stacks.

    Attributes:
      tiles: Number of tiles of all stacks.
      parts: The parts of some of them.
      position: Which part this is; a position that is too large is the last one.
    """

    tiles: dict[str, int]
    parts: dict[str, Parts]
    position: jax.Array

    def take(self, tree: PyTree) -> PyTree:
        """Takes this part out of each dict of stacks; what else there is, as it is."""

        def take_one(key: str, x: jax.Array) -> jax.Array:
            return self._slice(key, x) if self._has_tiles(key, x) else x

        def take_all(node: PyTree) -> PyTree:
            if not self._is_of_stacks(node):
                return node
            return {
                key: jax.tree.map(functools.partial(take_one, key), node[key])
                for key in self.parts
            }

        return jax.tree.map(take_all, tree, is_leaf=self._is_of_stacks)

    def take_in_place(self, tree: PyTree) -> PyTree:
        """Takes this part, and copies nothing of stacks of one part alone."""
        taken = self.take(tree)
        alone = all(own.number == 1 for own in self.parts.values())
        return keep_in_place(taken) if alone else taken

    def put(self, tree: PyTree, new: PyTree, if_: jax.Array | None = None) -> PyTree:
        """Puts what :meth:`take` took, and was changed, in its place, in place.

        Args:
          tree: The tree that the part was taken from.
          new: The part.
          if_: Whether to; ``None`` always does.
        """

        def put_one(key: str, old: jax.Array, new: jax.Array) -> jax.Array:
            if not self._has_tiles(key, old):
                return new if if_ is None else jnp.where(if_, new, old)
            size, number, _ = self.parts[key]
            own = None if if_ is None else jnp.broadcast_to(if_, size)
            if size * number > self.tiles[key]:
                place = self._start(key) + jnp.arange(size)
                mine = place >= size * self.position
                own = mine if own is None else own & mine
            if own is not None:
                own = own.reshape(size, *[1] * (old.ndim - 1))
                new = jnp.where(own, new, self._slice(key, old))
            start = self._start(key)
            return jax.lax.dynamic_update_slice_in_dim(old, new, start, 0)

        def put_all(node: PyTree, new: PyTree) -> PyTree:
            if not self._is_of_stacks(node):
                return new if if_ is None else jnp.where(if_, new, node)
            changed = {
                key: jax.tree.map(functools.partial(put_one, key), node[key], part)
                for key, part in new.items()
            }
            return {**node, **changed}

        return jax.tree.map(put_all, tree, new, is_leaf=self._is_of_stacks)

    def _is_of_stacks(self, node: PyTree) -> bool:
        return isinstance(node, dict) and node.keys() == self.tiles.keys()

    def _has_tiles(self, key: str, x: jax.Array) -> bool:
        return x.shape[:1] == (self.tiles[key],)

    def _start(self, key: str) -> jax.Array:
        size = self.parts[key].size
        return jnp.minimum(self.position * size, self.tiles[key] - size)

    def _slice(self, key: str, x: jax.Array) -> jax.Array:
        size = self.parts[key].size
        return jax.lax.dynamic_slice_in_dim(x, self._start(key), size)
