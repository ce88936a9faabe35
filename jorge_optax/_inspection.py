"""Describes what Jorge does with each parameter, and what it costs in memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._advice import OUT_OF_PROPORTION, make_notes
from jorge_optax._config import JorgeConfig, rule_text
from jorge_optax._optimizer import jorge
from jorge_optax._series import BinomialSeries
from jorge_optax._stacks import LeafPlan, plan_tree
from jorge_optax._tiling import (
    Tiling,
    default_leaf_view,
    default_view,
    matrices_shape,
)
from jorge_optax._types import Dtype, PyTree, ScalarOrSchedule, Shape


@dataclasses.dataclass(frozen=True)
class LeafDescription:
    """One row of :func:`describe`'s table.

    Attributes:
      path: Path of the parameter.
      shape: Shape of the parameter.
      matrix: Its matrix view, ``"576x128"``, after the batch if there is one.
      tiles: Number and shape of its tiles, ``"3 of 192x128"``.
      parameter_bytes: Bytes of the parameter.
      state_bytes: Bytes of its roots, statistics and momenta.
      preconditioned: ``"yes"``, or why not.
    """

    path: str
    shape: Shape
    matrix: str
    tiles: str
    parameter_bytes: int
    state_bytes: int
    preconditioned: str

    @property
    def ratio(self) -> float:
        """Bytes of the state over bytes of the parameter."""
        return self.state_bytes / max(self.parameter_bytes, 1)

    @property
    def out_of_proportion(self) -> bool:
        """Whether the state is unusually large for the parameter."""
        return self.ratio > OUT_OF_PROPORTION


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What :func:`describe` returns; printing it shows the table.

    Attributes:
      leaves: One row for each parameter.
      parameter_bytes: Bytes of the parameters.
      state_bytes: Bytes of Jorge's state, exact.
      sgd_bytes: Bytes of the state of SGD with momentum.
      adamw_bytes: Bytes of the state of AdamW.
      notes: What to reconsider, each with a remedy.
      rule: The rule that the roots are kept for.
    """

    leaves: tuple[LeafDescription, ...]
    parameter_bytes: int
    state_bytes: int
    sgd_bytes: int
    adamw_bytes: int
    notes: tuple[str, ...] = ()
    rule: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers, lists and strings only, ready for JSON."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        """Returns the table."""
        header = ("parameter", "shape", "matrix", "tiles", "state", "ratio")
        header += ("preconditioned",)
        rows = [
            (
                leaf.path,
                "x".join(map(str, leaf.shape)) or "scalar",
                leaf.matrix,
                leaf.tiles,
                _size(leaf.state_bytes),
                f"{leaf.ratio:.1f} x" + " !" * leaf.out_of_proportion,
                leaf.preconditioned,
            )
            for leaf in self.leaves
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
            for row in (header, tuple("-" * width for width in widths), *rows)
        ]
        over = [
            f"{self.state_bytes / max(other, 1):.2f} x {name}'s {_size(other)}"
            for name, other in (("SGD", self.sgd_bytes), ("AdamW", self.adamw_bytes))
        ]
        lines += [
            "",
            f"{len(self.leaves)} parameter{'s'[: len(self.leaves) != 1]} of "
            f"{_size(self.parameter_bytes)}",
            f"state {_size(self.state_bytes)} by {self.rule}: " + ", ".join(over),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(line.rstrip() for line in lines)


def describe(
    params: PyTree,
    config: JorgeConfig | None = None,
    *,
    tiling: Tiling | None = None,
    **options: Any,
) -> Description:
    """Describes what Jorge does with each parameter, and what it costs in memory.

    Allocates nothing: parameters may be arrays or ``jax.ShapeDtypeStruct``. The column
    ``ratio`` has the bytes of the state over those of the parameter, with a ``!`` where
    it is out of proportion. Notes name parameters that the default view does not fit,
    such as embeddings, attention and stacked layers, and the view that does.

    Args:
      params: A pytree of parameters: a dict, an ``nnx`` state or module's state, an
        Equinox module (filtered to its arrays).
      config: What :func:`jorge_optax.from_sgd` or its like returned; ``None`` describes
        :func:`jorge_optax.jorge` with the options below.
      tiling: As for :func:`jorge_optax.jorge`.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``rule`` and
        ``root_dtype``.

    Returns:
      A :class:`Description`; print it.

    Examples:
      >>> import jax
      >>> from jorge_optax import describe
      >>> describe({
      ...   "conv": jax.ShapeDtypeStruct((3, 3, 64, 128), "float32"),
      ...   "bias": jax.ShapeDtypeStruct((128,), "float32"),
      ... })
      parameter  shape       matrix   tiles         state   ratio  preconditioned
      ---------  ----------  -------  ------------  ------  -----  ----------------
      bias       128         -        -             512 B   1.0 x  no: not a matrix
      conv       3x3x64x128  576x128  3 of 192x128  1.2 MB  4.2 x  yes
      <BLANKLINE>
      2 parameters of 295.4 kB
      state 1.2 MB by BinomialSeries(): 4.16 x SGD's 295.4 kB, 2.08 x AdamW's 590.9 kB
    """
    learning_rate: ScalarOrSchedule = 0.0
    if config is not None:
        options = config.kwargs(tiling=tiling, **options)
        tiling = options.pop("tiling")
        learning_rate = options.pop("learning_rate")  # a schedule keeps a count
    tiling = tiling or Tiling()
    plan = plan_tree(params, tiling)
    optimizer = functools.partial(jorge, 0.0, **options)
    rows = tuple(
        LeafDescription(
            path=leaf_plan.path,
            shape=leaf_plan.shape,
            matrix=_matrix_text(leaf_plan),
            tiles=_tiles_text(leaf_plan),
            parameter_bytes=_bytes(leaf),
            state_bytes=_leaf_bytes(leaf_plan, leaf.dtype, tiling.max_dim, optimizer),
            preconditioned=_reason(leaf_plan),
        )
        for leaf_plan, leaf in zip(plan.leaves, jax.tree.leaves(params), strict=True)
    )
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return Description(
        leaves=rows,
        parameter_bytes=_bytes(structs),
        state_bytes=_bytes(
            jax.eval_shape(jorge(learning_rate, tiling=tiling, **options).init, structs)
        ),
        sgd_bytes=_bytes(jax.eval_shape(optax.sgd(1.0, 0.9).init, structs)),
        adamw_bytes=_bytes(jax.eval_shape(optax.adamw(1.0).init, structs)),
        notes=make_notes(rows, by_default=tiling.view is default_leaf_view),
        rule=rule_text(options.get("rule") or BinomialSeries()),
    )


def state_size(params: PyTree, *, tiling: Tiling | None = None, **options: Any) -> int:
    """Computes the bytes of Jorge's state for these parameters; allocates nothing.

    Args:
      params: A pytree of arrays or ``jax.ShapeDtypeStruct``.
      tiling: As for :func:`jorge_optax.jorge`.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``root_dtype``.

    Returns:
      The number of bytes that all arrays of the state take.

    Examples:
      >>> import jax
      >>> from jorge_optax import state_size
      >>> params = {"w": jax.ShapeDtypeStruct((512, 512), "float32")}
      >>> state_size(params) - 4 * (512 * 512 * 4)  # two roots, two momenta, a count
      4
    """
    optimizer = jorge(0.0, tiling=tiling, **options)
    return _bytes(jax.eval_shape(optimizer.init, params))


def _leaf_bytes(
    leaf: LeafPlan,
    dtype: Dtype,
    max_dim: int,
    optimizer: Callable[..., optax.GradientTransformation],
) -> int:
    """Computes the bytes of a parameter's own part of the state, counts left out."""

    def floats(params: PyTree) -> int:
        tiling = Tiling(max_dim, view=lambda *_: leaf.view)
        state = jax.eval_shape(optimizer(tiling=tiling).init, params)
        leaves = jax.tree.leaves(state)
        return _bytes([x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)])

    alone = floats(jax.ShapeDtypeStruct(leaf.shape, dtype))
    # Scalars stand for the stacks where there are none; they belong to no parameter.
    return alone if leaf.view else alone - floats({})


def _matrix_text(leaf: LeafPlan) -> str:
    if leaf.view is None:
        return "-"
    batch, rows, columns = matrices_shape(leaf.shape, leaf.view)
    return (f"{batch} of " if batch > 1 else "") + f"{rows}x{columns}"


def _tiles_text(leaf: LeafPlan) -> str:
    if leaf.view is None:
        return "-"
    return ", ".join(
        f"{size} of {panel.rows}x{panel.columns}"
        for size, panel in zip(leaf.sizes, leaf.panels, strict=True)
    )


def _reason(leaf: LeafPlan) -> str:
    if leaf.view is not None:
        return "yes"
    if len(leaf.shape) < 2:
        return "no: not a matrix"
    if default_view(leaf.shape) is None:
        return "no: a side shorter than 2"
    return "no: left out by Tiling.view"


def _bytes(tree: PyTree) -> int:
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _size(count: int) -> str:
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"
