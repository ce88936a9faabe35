"""The protocol of a rule: how roots start, are refreshed, and are applied."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax

from jorge_optax._checks import check_input
from jorge_optax._types import (
    Dtype,
    Input,
    Precision,
    PyTree,
    Scalar,
    Sides,
    Stacks,
)


class Preconditioner(NamedTuple):
    """What a rule keeps between steps.

    Attributes:
      roots: Tile shape ``"RxC"`` to the two matrices that each tile of that shape is
        multiplied by: left ``[n, R, R]`` and right ``[n, C, C]``.
      statistics: Any pytree of arrays that the rule needs beside the roots.
    """

    roots: dict[str, Sides]
    statistics: PyTree


@runtime_checkable
class Rule(Protocol):
    """How the roots of all tiles start, are refreshed, and are applied.

    :class:`BinomialSeries` is the paper's rule. Any object with these members is a
    rule, for example a frozen dataclass of numbers. A rule works on all stacks of tiles
    at once, ``{"RxC": [n, R, C]}``.

    Attributes:
      preconditions: What the roots are applied to. ``"gradient"``: to the gradient, and
        the results are averaged by the momentum, as in the paper. ``"momentum"`` and
        ``"nesterov"``: to the momentum of the gradients, or to Nesterov's.
      early_refreshes: Optional. The roots are refreshed at each of so many first steps,
        whatever the interval.
      precision: Optional. The option ``precision`` of :func:`jorge` where that is
        ``None``; ``"highest"`` without it.

    Examples:
      A rule that whitens each row by its own running mean square:

      >>> import dataclasses
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jorge_optax import Preconditioner, Sides, jorge
      >>> @dataclasses.dataclass(frozen=True)
      ... class RowScaling:
      ...   preconditions = "nesterov"
      ...
      ...   def init(self, tiles, *, eps, dtype):
      ...     ones = {
      ...       key: Sides(jnp.ones(tile.shape[:2], dtype), jnp.ones(0, dtype))
      ...       for key, tile in tiles.items()
      ...     }
      ...     return Preconditioner(ones, ())
      ...
      ...   def refresh(self, kept, gradients, momenta, *, damping, precision):
      ...     roots = {
      ...       key: Sides(jax.lax.rsqrt(jnp.mean(g * g, 2) + 1e-12), right)
      ...       for (key, (_, right)), g in zip(kept.roots.items(), gradients.values())
      ...     }
      ...     return Preconditioner(roots, ())
      ...
      ...   def precondition(self, kept, matrices, *, precision):
      ...     left = {key: root.left[:, :, None] for key, root in kept.roots.items()}
      ...     return {key: left[key] * tiles for key, tiles in matrices.items()}
      >>> optimizer = jorge(0.1, rule=RowScaling())
      >>> state = optimizer.init({"w": jnp.ones((3, 2))})
    """

    @property
    def preconditions(self) -> Input:
        """What the roots are applied to."""
        ...

    def init(
        self, tiles: dict[str, jax.ShapeDtypeStruct], *, eps: Scalar, dtype: Dtype
    ) -> Preconditioner:
        """Returns what the rule keeps before the first step.

        Args:
          tiles: Shape ``[n, R, C]`` and dtype of each stack.
          eps: The option ``eps`` of :func:`jorge`.
          dtype: The option ``root_dtype``.
        """
        ...

    def refresh(
        self,
        kept: Preconditioner,
        gradients: Stacks,
        momenta: Stacks | None,
        *,
        damping: Scalar,
        precision: Precision,
    ) -> Preconditioner:
        """Refreshes the roots; runs in a conditional, every ``update_interval`` steps.

        With ``stagger`` it runs on parts of the stacks, and then what a rule keeps must
        have the tiles along the first axis, in dicts by stack; other arrays are passed
        on from part to part.

        Args:
          kept: What the rule keeps; the result has the same shapes and dtypes.
          gradients: The gradients of this step.
          momenta: The sum ``s = g + momentum * s`` of the gradients so far; ``None``
            where the rule preconditions the gradient.
          damping: The option ``damping`` of :func:`jorge`.
          precision: Precision of matrix products.
        """
        ...

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Returns the directions; runs at every step.

        Args:
          kept: What the rule keeps, refreshed if a refresh was due.
          matrices: What ``preconditions`` says.
          precision: Precision of matrix products.
        """
        ...


def check_rule(rule: object) -> Rule:
    """Returns a rule as it is; raises TypeError unless it is one."""
    if isinstance(rule, type) or not isinstance(rule, Rule):
        known = {"binomialseries": "BinomialSeries()", "whitening": "Whitening()"}
        known["composite"] = "Whitening(), which has replaced that rule"
        found = f"the class {rule.__name__}" if isinstance(rule, type) else repr(rule)
        meant = known.get(str(getattr(rule, "__name__", rule)).lower())
        raise TypeError(
            "rule must be BinomialSeries(), which is the paper's rule, Whitening(), "
            "another object with the members of jorge_optax.Rule, or None, got "
            f"{found}" + (f": write rule={meant}." if meant else ".")
        )
    check_input(f"{type(rule).__name__}.preconditions", rule.preconditions)
    return rule
