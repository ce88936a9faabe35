"""Where the tiles are: on one device, spread over several, or beside their shards.

A layout plans the stacks and runs the update of stacks where they are:

- :class:`OneDevice`: no mesh; the compiler decides.
- :class:`Spread`: parameters are on all devices. Each stack is divided along its first
  axis, after idle tiles have been appended that make it a multiple of the number of
  devices. Each device cuts its own tiles out of the gradients, and one all-gather sends
  the steps to the others.
- :class:`Sharded`: parameters are divided (FSDP, tensor parallelism). Each device cuts
  its own shards into tiles, and nothing is communicated.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jorge_optax._errors import by_path, canonical_dtype, checked_leaves
from jorge_optax._tiles import (
    OneDevice,
    Plan,
    PyTree,
    Stacks,
    Tiling,
    count_real,
    fill_idle,
    from_stacks,
    plan_tiles,
    to_stacks,
    zeros,
)
from jorge_optax.views import Shape

WHOLE = PartitionSpec()


class OnMesh(OneDevice):
    """Tiles that lie on the devices of a mesh.

    Each device runs the update of its own part of every stack. A layout says what that
    part is, and how steps come back.
    """

    def device_mesh(self) -> Any:
        """Returns the mesh."""
        raise NotImplementedError

    def spec(self, path: str, shape: Shape) -> PartitionSpec:
        """Returns how a parameter is placed."""
        del path, shape
        return WHOLE

    def spec_of_stack(self, key: str) -> PartitionSpec:
        """Returns how a stack is divided."""
        raise NotImplementedError

    def own_shapes(self, plan: Plan) -> Plan:
        """Returns the plan with the shapes of one device's part of each stack."""
        return plan

    def cut_own(self, plan: Plan, stacks: PyTree) -> PyTree:
        """Cuts this device's part out of ``{stack: [n, ...]}``."""
        del plan
        return stacks

    def gather(self, steps: Stacks) -> Stacks:
        """Returns the steps that this device needs."""
        return steps

    def init(self, start: Callable[..., PyTree], plan: Plan, dtype: Any) -> PyTree:
        """Makes the state, each device its own part."""

        def make() -> PyTree:
            real = self.cut_own(plan, count_real(plan))
            return start(zeros(self.own_shapes(plan), dtype), real)

        state = jax.eval_shape(lambda: start(zeros(plan, dtype), count_real(plan)))
        return jax.jit(self._mapped(make, (), self._specs(state)))()

    def update(
        self,
        step: Callable[..., tuple[Stacks, PyTree]],
        plan: Plan,
        leaves: Sequence[PyTree],
        state: PyTree,
    ) -> tuple[list[PyTree], PyTree]:
        """Runs a step of each device's tiles."""

        def run(leaves: Sequence[PyTree], state: PyTree) -> tuple[list[PyTree], PyTree]:
            own = self.cut_own(plan, to_stacks(plan, leaves))
            steps, state = step(own, state, self.cut_own(plan, count_real(plan)))
            return from_stacks(plan, self.gather(steps), leaves), state

        placed = [
            self.spec(own.path, leaf.shape) if own.grid else WHOLE
            for own, leaf in zip(plan.leaves, leaves, strict=True)
        ]
        specs = placed, self._specs(state)
        return self._mapped(run, specs, specs)(list(leaves), state)

    def place(self, state: PyTree) -> PyTree:
        """Puts on all devices what is not on the mesh yet."""
        mesh = self.device_mesh()

        def place(leaf: Any) -> Any:
            if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
                return leaf
            if leaf.sharding.device_set == set(mesh.devices.flat):
                return leaf
            return jax.device_put(leaf, NamedSharding(mesh, WHOLE))

        return jax.tree.map(place, state)

    def _specs(self, state: Any) -> Any:
        """Returns how a state is divided: what is kept by stack is, the rest is not."""

        def of(field: Any) -> Any:
            if not isinstance(field, dict):
                return WHOLE
            return {key: self.spec_of_stack(key) for key in field}

        roots = type(state.roots)(*map(of, state.roots))
        return type(state)(*map(of, state))._replace(roots=roots)

    def _mapped(
        self, function: Callable[..., Any], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Maps a function over the devices, without jax's check of replication.

        The check does not know that what an all-gather returns is the same everywhere.
        """
        # The mesh of the context, where there is one: its axis types count.
        mesh, context = self.device_mesh(), jax.sharding.get_abstract_mesh()
        mesh = context if set(mesh.axis_names) <= set(context.axis_names) else mesh
        options = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
        if hasattr(jax, "shard_map"):
            return jax.shard_map(function, check_vma=False, **options)
        from jax.experimental import shard_map as old  # jax 0.6.0

        return old.shard_map(function, check_rep=False, **options)


@dataclasses.dataclass(frozen=True)
class Spread(OnMesh):
    """Tiles of replicated parameters, spread over the devices of a mesh.

    Passed to :func:`jorge_optax.jorge` as ``sharding``, where a bare
    :class:`jax.sharding.NamedSharding` stands for ``Spread(sharding)``.

    Attributes:
      sharding: A mesh and the axes to spread the tiles over:
        ``NamedSharding(mesh, P("data"))``, or ``P(("data", "model"))`` for two axes.
        The tiles are replicated over the mesh's other axes.
      gather_dtype: Name of the dtype in which the preconditioned tiles are sent to the
        other devices; ``None`` sends them as they are, in float32. ``"bfloat16"``
        halves the traffic and rounds each entry of a step to 8 bits.

    Examples:
      >>> import jax
      >>> from jax.sharding import NamedSharding, PartitionSpec as P
      >>> from jorge_optax import Spread, jorge
      >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
      >>> tiles = Spread(NamedSharding(mesh, P("data")), gather_dtype="bfloat16")
      >>> optimizer = jorge(0.1, sharding=tiles)
    """

    sharding: NamedSharding
    gather_dtype: str | None = None

    def __post_init__(self) -> None:
        """Checks that the sharding divides the first axis alone."""
        if not isinstance(self.sharding, NamedSharding):
            raise TypeError(
                "sharding must be a jax.sharding.NamedSharding, such as "
                "NamedSharding(mesh, PartitionSpec('data')), a jorge_optax.Spread or "
                f"jorge_optax.Sharded, or None, got {self.sharding!r}."
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

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh axes that the tiles are spread over."""
        return axes_of(self.sharding.spec[0] if len(self.sharding.spec) else None)

    @property
    def devices(self) -> int:
        """Number of shares."""
        return math.prod(self.sharding.mesh.shape[axis] for axis in self.axes)

    def plan(self, tree: PyTree, tiling: Tiling) -> Plan:
        """Plans the stacks of a tree, with few idle tiles."""
        return fill_idle(super().plan(tree, tiling), self.devices)

    def device_mesh(self) -> Any:
        """Returns the mesh."""
        return self.sharding.mesh

    def spec_of_stack(self, key: str) -> PartitionSpec:
        """Returns how a stack is divided."""
        del key
        return PartitionSpec(self.axes)

    def own_shapes(self, plan: Plan) -> Plan:
        """Returns the plan with the shapes of a device's share, idle tiles included."""
        shapes = ((k, (-(-n // self.devices), *t)) for k, (n, *t) in plan.shapes)
        return Plan(plan.leaves, tuple(shapes))  # pyright: ignore[reportArgumentType]

    def cut_own(self, plan: Plan, stacks: PyTree) -> PyTree:
        """Cuts this device's share out of ``{stack: [n, ...]}`` that it has whole."""
        index = jax.lax.axis_index(self.axes)

        def cut(count: int, x: PyTree) -> jax.Array:
            idle = count * self.devices - len(x)
            padded = jnp.pad(x, ((0, idle), *([(0, 0)] * (np.ndim(x) - 1))))
            return jax.lax.dynamic_slice_in_dim(padded, index * count, count)

        return {
            key: jax.tree.map(lambda x, n=n: cut(n, x), stacks[key])
            for key, (n, *_) in self.own_shapes(plan).shapes
        }

    def gather(self, steps: Stacks) -> Stacks:
        """Gathers the tiles of all devices, by one collective for all stacks."""
        flat = jnp.concatenate([own.reshape(-1) for own in steps.values()])
        dtype = flat.dtype
        if self.gather_dtype is not None:
            narrow = canonical_dtype("gather_dtype", self.gather_dtype)
            # Large numbers are not rounded to infinity.
            limit = min(float(jnp.finfo(narrow).max), float(jnp.finfo(dtype).max))
            flat = jnp.clip(flat, -limit, limit).astype(narrow)
        with jax.named_scope("jorge/gather"):
            rows = jax.lax.all_gather(flat, self.axes)
        gathered, start = {}, 0
        for key, own in steps.items():
            part = rows[:, start : start + own.size].astype(dtype)
            gathered[key] = part.reshape(-1, *own.shape[1:])
            start += own.size
        return gathered


@dataclasses.dataclass(frozen=True)
class Sharded(OnMesh):
    """Tiles of divided parameters (FSDP, tensor parallelism), beside their shards.

    Each device cuts its own shards into tiles, so that nothing is communicated. A tile
    never straddles a shard; its long side is at most four times its short one, since
    the roots of thin tiles take more memory than they are worth.

    Attributes:
      mesh: The mesh.
      specs: How parameters are placed: a tree of :class:`jax.sharding.PartitionSpec`
        like the parameters, or a function of a parameter's path (``"layers/0/kernel"``)
        and shape that returns one. An axis must be a multiple of its devices.

    Examples:
      >>> import jax
      >>> from jax.sharding import PartitionSpec as P
      >>> from jorge_optax import Sharded, jorge
      >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
      >>> # FSDP: the first axis of each matrix is divided.
      >>> def specs(path, shape):
      ...   return P("data") if len(shape) > 1 else P()
      >>> optimizer = jorge(0.1, sharding=Sharded(mesh, specs))
    """

    mesh: Mesh | jax.sharding.AbstractMesh
    specs: PyTree = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        """Checks mesh and specs."""
        if not isinstance(self.mesh, Mesh | jax.sharding.AbstractMesh):
            raise TypeError(
                "Sharded.mesh must be a jax.sharding.Mesh, such as "
                f"jax.make_mesh((8,), ('data',)), got {self.mesh!r}."
            )
        if callable(self.specs):
            return
        for path, spec in self._by_path.items():
            if not isinstance(spec, PartitionSpec):
                raise TypeError(
                    "Sharded.specs must be a tree of PartitionSpec like the "
                    "parameters, or a function of a path and a shape that returns a "
                    f"PartitionSpec; got {spec!r} at {path!r}."
                )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.mesh.size

    @functools.cached_property
    def _by_path(self) -> dict[str, Any]:
        """The specs by path; flattened once, and not for every parameter."""
        return by_path(self.specs, is_leaf=lambda x: isinstance(x, PartitionSpec))

    def spec(self, path: str, shape: Shape) -> PartitionSpec:
        """Returns how a parameter is placed; raises where it cannot be."""
        if callable(self.specs):
            spec = self.specs(path, shape)
        else:
            spec = self._by_path.get(path)
        if not isinstance(spec, PartitionSpec) or len(spec) > len(shape):
            raise ValueError(
                f"Sharded.specs gave {spec!r} for the parameter {path!r} of shape "
                f"{shape}: give a PartitionSpec of at most {len(shape)} axes."
            )
        for length, part in zip(shape, spec, strict=False):
            unknown = [axis for axis in axes_of(part) if axis not in self.mesh.shape]
            if unknown or length % self._count(axes_of(part)):
                raise ValueError(
                    f"Sharded.specs gave {spec} for the parameter {path!r} of shape "
                    f"{shape}, which the mesh {dict(self.mesh.shape)} does not divide "
                    "evenly. Give a PartitionSpec whose axes do, or PartitionSpec()."
                )
        return spec

    def _count(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def plan(self, tree: PyTree, tiling: Tiling) -> Plan:
        """Plans the stacks of one device's shards, apart by the axes of their specs."""
        shards = []
        leaves = checked_leaves(tree)
        for path, shape in leaves:
            spec = self.spec(path, shape)
            counts = [self._count(axes_of(part)) for part in spec]
            counts += [1] * (len(shape) - len(counts))
            own = tuple(m // n for m, n in zip(shape, counts, strict=True))
            axes = [axis for part in spec for axis in axes_of(part)]
            suffix = "@" + ",".join(a for a in self.mesh.shape if a in axes)
            shards.append((own, suffix))
        return plan_tiles(leaves, tiling, tuple(shards))

    def device_mesh(self) -> Any:
        """Returns the mesh."""
        return self.mesh

    def spec_of_stack(self, key: str) -> PartitionSpec:
        """Returns how a stack of shards is divided."""
        axes = axes_of_stack(key)
        return PartitionSpec(axes) if axes else WHOLE

    def stack(self, plan: Plan, leaves: Sequence[PyTree]) -> Stacks:
        """Cuts whole leaves into stacks, shard by shard."""
        parts: dict[str, list[jax.Array]] = {key: [] for key, _ in plan.shapes}
        names = tuple(self.mesh.shape)
        for at in itertools.product(*map(range, self.mesh.shape.values())):
            place = dict(zip(names, at, strict=True))
            shards: list[Any] = [
                None if own.grid is None else self._shard(leaf, own.path, place)
                for own, leaf in zip(plan.leaves, leaves, strict=True)
            ]
            for key, stack in to_stacks(plan, shards).items():
                # Along other axes than those that divide a stack, it is repeated.
                if not any(place[a] for a in names if a not in axes_of_stack(key)):
                    parts[key].append(stack)
        return {key: jnp.concatenate(stacks) for key, stacks in parts.items()}

    def _shard(self, leaf: PyTree, path: str, place: dict[str, int]) -> jax.Array:
        """Cuts the shard at a place of the mesh out of a parameter."""
        for axis, part in enumerate(self.spec(path, leaf.shape)):
            index = 0
            for name in axes_of(part):
                index = index * self.mesh.shape[name] + place[name]
            leaf = jnp.split(leaf, self._count(axes_of(part)), axis)[index]
        return leaf

    def places(self, plan: Plan) -> dict[str, tuple[str, np.ndarray]]:
        """Returns for each parameter its stack, and the indices of its tiles there."""
        places = {}
        for path, (key, own) in super().places(plan).items():
            starts = plan.stacks[key][0] * np.arange(self._count(axes_of_stack(key)))
            places[path] = key, (starts[:, None] + own[None]).ravel()
        return places


def layout_of(sharding: NamedSharding | OneDevice | None) -> OneDevice:
    """Returns the layout that an option asks for."""
    if sharding is None:
        return OneDevice()
    layout = sharding if isinstance(sharding, OneDevice) else Spread(sharding)
    return layout if layout.devices > 1 else OneDevice()


def axes_of(part: Any) -> tuple[str, ...]:
    """Returns the mesh axes in one entry of a PartitionSpec."""
    if part is None or part is PartitionSpec.UNCONSTRAINED:
        return ()
    return part if isinstance(part, tuple) else (part,)


def axes_of_stack(key: str) -> tuple[str, ...]:
    """Returns the mesh axes that divide a stack of shards, ``"64x256@data,model"``."""
    return tuple(filter(None, key.partition("@")[2].split(",")))
