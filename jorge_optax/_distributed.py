"""Tiles spread over devices: each keeps, refreshes and applies only its share.

Each stack is divided along its first axis, in the order of the plan, after idle tiles
have been appended that make it a multiple of the number of devices. An idle tile never
receives a gradient. Inside :func:`jax.shard_map` each device cuts its own tiles out of
the gradients, runs the transformation of the stacks on them as on one device, and sends
the results to the others: one all-gather of one flat buffer.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from jorge_optax._checks import canonical_dtype
from jorge_optax._types import PyTree, Shape, Stacks

StackShapes: TypeAlias = dict[str, tuple[int, int, int]]


@dataclasses.dataclass(frozen=True)
class Spread:
    """How the tiles are spread over the devices of a mesh.

    Passed to :func:`jorge_optax.jorge` as ``sharding``, where a bare
    :class:`jax.sharding.NamedSharding` stands for ``Spread(sharding)``.

    Attributes:
      sharding: A mesh and the axes to spread the tiles over:
        ``NamedSharding(mesh, P("data"))``, or ``P(("data", "model"))`` for two axes.
        The tiles are replicated over the mesh's other axes.
      gather_dtype: Name of the dtype in which the preconditioned tiles are sent to the
        other devices; ``None`` sends them as they are, in float32. ``"bfloat16"``
        halves the traffic and rounds each entry of a step to 8 bits.
      param_specs: Function of a parameter's path (``"layers/0/kernel"``) and shape that
        returns the :class:`jax.sharding.PartitionSpec` that the parameter is placed
        with. Devices then exchange parts of tiles by two all-to-alls, where otherwise
        they gather all gradients and all steps. It changes traffic and memory of a
        step, not the state or the result: pass it under FSDP.

    Examples:
      >>> import jax
      >>> from jax.sharding import NamedSharding, PartitionSpec as P
      >>> from jorge_optax import Spread, jorge
      >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
      >>> tiles = Spread(NamedSharding(mesh, P("data")), gather_dtype="bfloat16")
      >>> optimizer = jorge(0.1, sharding=tiles)
      >>> # FSDP: the first axis of each matrix is divided.
      >>> def specs(path, shape):
      ...   return P("data") if len(shape) > 1 else P()
      >>> tiles = Spread(NamedSharding(mesh, P("data")), param_specs=specs)
      >>> optimizer = jorge(0.1, sharding=tiles)
    """

    sharding: NamedSharding
    gather_dtype: str | None = None
    param_specs: Callable[[str, Shape], PartitionSpec] | None = None

    def __post_init__(self) -> None:
        """Checks that the sharding divides the first axis alone."""
        if not isinstance(self.sharding, NamedSharding):
            raise TypeError(
                "sharding must be a jax.sharding.NamedSharding, such as "
                "NamedSharding(mesh, PartitionSpec('data')), a jorge_optax.Spread or "
                f"None, got {self.sharding!r}."
            )
        spec = self.sharding.spec
        if not self.axes or any(part is not None for part in spec[1:]):
            raise ValueError(
                "sharding must divide the first axis, which counts the tiles, and no "
                f"other: PartitionSpec('data') or PartitionSpec(('data', 'model')); "
                f"got {spec}."
            )
        if self.gather_dtype is not None:
            canonical_dtype("gather_dtype", self.gather_dtype)
        if self.param_specs is not None and not callable(self.param_specs):
            raise TypeError(
                "Spread.param_specs must be a function of a path and a shape that "
                f"returns a PartitionSpec, or None; got {self.param_specs!r}."
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh axes that the tiles are spread over."""
        first = self.sharding.spec[0] if len(self.sharding.spec) else None
        if first is None or first is PartitionSpec.UNCONSTRAINED:
            return ()
        return first if isinstance(first, tuple) else (first,)

    @property
    def devices(self) -> int:
        """Number of shares."""
        return self.count(self.axes)

    def count(self, axes: tuple[str, ...]) -> int:
        """Returns the number of devices along some axes of the mesh."""
        return math.prod(self.sharding.mesh.shape[axis] for axis in axes)

    @property
    def spec(self) -> PartitionSpec:
        """The partition of whatever has one entry a tile."""
        return PartitionSpec(self.axes)

    def share(self, stacks: StackShapes) -> StackShapes:
        """Returns the shapes of one device's part of each stack, with idle tiles."""
        return share_stacks(stacks, self.devices)

    def pad(self, stacks: StackShapes) -> StackShapes:
        """Returns the shapes of the stacks with their idle tiles."""
        return {
            key: (n * self.devices, rows, columns)
            for key, (n, rows, columns) in self.share(stacks).items()
        }


def share_stacks(stacks: StackShapes, devices: int) -> StackShapes:
    """Returns the shapes of one of equal parts of each stack, with idle tiles."""
    return {
        key: (-(-n // devices), rows, columns)
        for key, (n, rows, columns) in stacks.items()
    }


def spread_of(sharding: NamedSharding | Spread | None) -> Spread | None:
    """Returns the spread that an option asks for; None where one device has it all."""
    if sharding is None:
        return None
    spread = sharding if isinstance(sharding, Spread) else Spread(sharding)
    return spread if spread.devices > 1 else None


def init_shares(
    init: Callable[[PyTree], PyTree], spread: Spread, stacks: StackShapes, dtype: Any
) -> PyTree:
    """Initializes the state of the stacks, each device its own share."""
    start = shard_map(
        lambda: init(_structs(spread.share(stacks), dtype)),
        mesh=mesh_of(spread),
        in_specs=(),
        out_specs=specs_of_state(init, spread, stacks, dtype),
    )
    return jax.jit(start)()


def update_shares(
    step: Callable[[Callable[..., Any], PyTree, PyTree], tuple[PyTree, PyTree]],
    tiles: optax.GradientTransformationExtraArgs,
    spread: Spread,
    stacks: StackShapes,
    dtype: Any,
) -> Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """Returns a function that runs a step on all devices, each with its share.

    Args:
      step: Function of an update of stacks, leaves and the state of the stacks, which
        returns new leaves and the new state.
      tiles: The transformation of the stacks.
      spread: How the tiles are spread.
      stacks: Shapes of the stacks, without idle tiles.
      dtype: Dtype of the stacks.

    Returns:
      A function of leaves and state. The leaves are the same on all devices, before and
      after; the state stays where it is.
    """
    specs = specs_of_state(tiles.init, spread, stacks, dtype)
    whole = PartitionSpec()

    def update(
        gradients: Stacks, state: PyTree, *, cut: Callable[[], Stacks]
    ) -> tuple[Stacks, PyTree]:
        shapes = spread.share(stacks)
        own = cut_share(gradients, spread, shapes)
        with counting_all(stacks):
            steps: PyTree
            steps, state = tiles.update(
                own, state, cut=lambda: cut_share(cut(), spread, shapes)
            )
        return gather(steps, spread, shapes), state

    return shard_map(
        functools.partial(step, update),
        mesh=mesh_of(spread),
        in_specs=(whole, specs),
        out_specs=(whole, specs),
    )


def cut_share(gradients: Stacks, spread: Spread, shapes: StackShapes) -> Stacks:
    """Cuts this device's tiles out of stacks that it has whole."""
    index = jax.lax.axis_index(spread.axes)
    shares = {}
    for key, (n, *_) in shapes.items():
        idle = n * spread.devices - len(gradients[key])
        padded = jnp.pad(gradients[key], ((0, idle), (0, 0), (0, 0)))
        shares[key] = jax.lax.dynamic_slice_in_dim(padded, index * n, n)
    return shares


def gather(steps: Stacks, spread: Spread, shapes: StackShapes) -> Stacks:
    """Gathers the tiles of all devices, by one collective for all stacks."""
    flat = jnp.concatenate([steps[key].reshape(-1) for key in shapes])
    dtype = flat.dtype
    if spread.gather_dtype is not None:
        flat = narrow(flat, canonical_dtype("gather_dtype", spread.gather_dtype))
    with jax.named_scope("jorge/gather"):
        rows = jax.lax.all_gather(flat, spread.axes)
    gathered, start = {}, 0
    for key, (n, *tile) in shapes.items():
        size = n * math.prod(tile)
        own = rows[:, start : start + size].astype(dtype)
        gathered[key] = own.reshape(-1, *tile)
        start += size
    return gathered


def narrow(numbers: jax.Array, dtype: Any) -> jax.Array:
    """Casts to another dtype, without rounding large numbers to infinity."""
    limit = min(float(jnp.finfo(dtype).max), float(jnp.finfo(numbers.dtype).max))
    return jnp.clip(numbers, -limit, limit).astype(dtype)


def place_rest(state: PyTree, spread: Spread) -> PyTree:
    """Puts on all devices what is not on the mesh yet, such as the step's count."""

    def place(leaf: Any) -> Any:
        if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        if leaf.sharding.device_set == spread.sharding.device_set:
            return leaf
        whole = NamedSharding(spread.sharding.mesh, PartitionSpec())
        return jax.device_put(leaf, whole)

    return jax.tree.map(place, state)


_COUNTS: contextvars.ContextVar[StackShapes | None]
_COUNTS = contextvars.ContextVar("jorge_optax_tiles_of_all_devices", default=None)


@contextlib.contextmanager
def counting_all(stacks: StackShapes) -> Iterator[None]:
    """Makes :func:`all_shapes` return these shapes, while a share is traced.

    Of two such contexts the outer one holds: a share may be refreshed in parts.
    """
    token = _COUNTS.set(_COUNTS.get() or stacks)
    try:
        yield
    finally:
        _COUNTS.reset(token)


def all_shapes(stacks: Stacks) -> frozenset[Shape]:
    """Returns the shapes of all stacks on all devices together, without idle tiles.

    A decision by the numbers of tiles is thus the same for any number of devices, and
    where a part of the tiles is refreshed.
    """
    shapes = _COUNTS.get() or {key: tiles.shape for key, tiles in stacks.items()}
    return frozenset(shapes.values())


def shard_map(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Calls jax.shard_map without its check of replication.

    The check does not know that what an all-gather returns is the same everywhere.
    """
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, check_vma=False, **options)
    from jax.experimental import shard_map as old  # jax 0.6.0

    return old.shard_map(function, check_rep=False, **options)


def mesh_of(spread: Spread) -> Any:
    """Returns the mesh of the context where there is one: its axis types count."""
    context = jax.sharding.get_abstract_mesh()
    if set(spread.axes) <= set(context.axis_names):
        return context
    return spread.sharding.mesh


def specs_of_state(
    init: Callable[[PyTree], PyTree], spread: Spread, stacks: StackShapes, dtype: Any
) -> PyTree:
    """Returns the partition of each array of the state of the stacks.

    What grows with the number of tiles is divided, the rest is on every device.
    """
    share = jax.eval_shape(lambda: init(_structs(spread.share(stacks), dtype)))
    whole = jax.eval_shape(lambda: init(_structs(spread.pad(stacks), dtype)))
    return jax.tree.map(
        lambda one, all_: PartitionSpec() if one.shape == all_.shape else spread.spec,
        share,
        whole,
    )


def _structs(stacks: StackShapes, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    return {key: jax.ShapeDtypeStruct(shape, dtype) for key, shape in stacks.items()}
