"""Calculates what an update keeps, computes, moves and sends, on one or more devices.

From the traced update: nothing is allocated or compiled. The time is bounded from
below.

    python -m benchmarks.cost.shares llama2_7b --rule whitening --root-dtype bfloat16
    python -m benchmarks.cost.shares gpt2_small --devices 8 64 --interval 50
"""

import argparse
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from benchmarks.baselines.muon import muon
from benchmarks.cost.contenders import kernel_dimensions
from benchmarks.cost.counts import Flops, least_bytes, matmul_flops, tree_bytes
from benchmarks.gpu import target
from benchmarks.problems import shapes
from examples.shared.shampoo import Shampoo
from jorge_optax import (
    BinomialSeries,
    JorgeState,
    MatrixView,
    Numerics,
    Rule,
    Tiling,
    Whitening,
    jorge,
)

MODELS = {
    **shapes.MODELS,
    "gpt2_small": shapes.gpt2,
    "gpt2_xl": lambda: shapes.gpt2(48, 1600),
    "llama2_7b": lambda: shapes.llama(32, 4096, 11008, 4096),
    "llama2_70b": lambda: shapes.llama(80, 8192, 28672, 1024),
}
RULES: dict[str, Rule] = {
    "series": BinomialSeries(),
    "whitening": Whitening(),
    "shampoo": Shampoo(),
}
# Muon orthogonalizes every matrix, embeddings included, as Jorge preconditions them.
BASELINES: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.adamw(1e-3),
    "muon": lambda: muon(optax.constant_schedule(0.02), kernel_dimensions),
}

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class Cost(NamedTuple):
    """What an update keeps, computes and moves on one device.

    Attributes:
      state_bytes: the state that it keeps.
      flops: operations of matrix products, of each step and what a refresh adds.
      least_bytes: bytes that a plain step and a step with a refresh read or write at
        least: see `benchmarks.cost.counts.least_bytes`, here with the gradients.
    """

    state_bytes: int
    flops: Flops
    least_bytes: dict[str, int]

    def mean_flops(self, interval: int) -> float:
        """Operations of a step, with a refresh at one of `interval` steps."""
        return self.flops.plain + self.flops.refresh / interval

    def mean_bytes(self, interval: int) -> float:
        """Least bytes of a step, with a refresh at one of `interval` steps."""
        return _mean(self.least_bytes, interval)

    def bounds(
        self, device: str, precision: str = "float32", refresh_precision: str = ""
    ) -> dict[str, float]:
        """Bounds the seconds of a plain step and of a step with a refresh from below.

        Args:
          device: Name in `benchmarks.gpu.target.DEVICES`.
          precision: Of the products of each step, "float32" or "tf32".
          refresh_precision: Of the products that a refresh adds; empty if the same.
        """
        plain = dict.fromkeys(target.PEAKS[device], 0)
        plain[precision] += self.flops.plain
        refresh = dict(plain)
        refresh[refresh_precision or precision] += self.flops.refresh
        return {
            kind: target.bound_seconds(device, **flops, bytes_=self.least_bytes[kind])
            for kind, flops in (("plain", plain), ("refresh", refresh))
        }

    def mean_bound(self, device: str, interval: int, *precisions: str) -> float:
        """Mean of :meth:`bounds` over the steps of an interval."""
        return _mean(self.bounds(device, *precisions), interval)


def _mean(values: dict[str, Any], interval: int) -> float:
    return values["plain"] + (values["refresh"] - values["plain"]) / interval


class Share(NamedTuple):
    """What one device has of an update that is spread over several.

    Attributes:
      state_bytes: the state that it keeps.
      flops: operations of matrix products, of each step and what a refresh adds.
      least_bytes: as in :class:`Cost`, for its own tiles and all that has no tiles;
        without what it sends and receives.
      decompositions: of symmetric matrices, in a refresh: those of Shampoo.
      gather_bytes: size of the buffer of all preconditioned tiles, which it has after
        the all-gather; it receives this much but for its own share.
      gradient_bytes: gradients of matrices, which FSDP gathers before.
      over_ideal: operations of a refresh over those of an equal share, less one.
    """

    state_bytes: int
    flops: Flops
    least_bytes: dict[str, int]
    decompositions: int
    gather_bytes: int
    gradient_bytes: int
    over_ideal: float

    @property
    def cost(self) -> Cost:
        """Returns what does not concern other devices."""
        return Cost(self.state_bytes, self.flops, self.least_bytes)


def calculate(
    params: Any,
    devices: int = 1,
    rule: Rule | None = None,
    *,
    tiling: Tiling | None = None,
    root_dtype: str = "float32",
    accumulator_dtype: str = "float32",
    gather_dtype: str = "float32",
) -> Share:
    """Calculates the share of one device; allocates and compiles nothing.

    Args:
      params: Parameters, or their shapes.
      devices: Number of devices that the tiles are spread over.
      rule: As for `jorge_optax.jorge`.
      tiling: As for `jorge_optax.jorge`.
      root_dtype: Of `jorge_optax.Numerics`.
      accumulator_dtype: Of the momenta.
      gather_dtype: As for `jorge_optax.Spread`.
    """
    tiling = tiling or Tiling()
    matrices, rest = group(params, tiling)
    options = tiling.max_dim, rule, root_dtype, accumulator_dtype
    own, one = (_trace(matrices, n, *options) for n in (devices, 1))
    # A vector stands for all that has no tiles; both states have a count.
    vector = jax.ShapeDtypeStruct((rest,), jnp.float32)
    others, nothing = (
        _cost(_make(*options[1:]), v) for v in ([vector] * (rest > 0), [])
    )
    return Share(
        state_bytes=own.cost.state_bytes + others.state_bytes - nothing.state_bytes,
        flops=own.cost.flops,
        least_bytes={
            kind: value + others.least_bytes[kind] - nothing.least_bytes[kind]
            for kind, value in own.cost.least_bytes.items()
        },
        decompositions=2 * own.tiles * isinstance(rule, Shampoo),
        gather_bytes=devices * own.entries * jnp.dtype(gather_dtype).itemsize,
        gradient_bytes=4 * sum(math.prod(shape) for _, shape in matrices),
        over_ideal=devices * own.cost.flops.refresh / one.cost.flops.refresh - 1,
    )


def group(params: Any, tiling: Tiling) -> tuple[Shapes, int]:
    """Groups matrices of equal shape, whose tiles and costs are those of one batch.

    Returns:
      The name and the shape ``(n, rows, columns)`` of each batch of matrices, and the
      number of all entries of other parameters.
    """
    found: dict[str, tuple[int, ...]] = {}
    rest = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        view = tiling.view(name, leaf.shape)
        sides = [math.prod(leaf.shape[axis] for axis in axes) for axes in view or ()]
        if min(sides, default=0) < 2:
            rest += leaf.size
            continue
        rows, columns = sides
        key = f"{rows} x {columns}"
        before = found.get(key, (0,))[0]
        found[key] = before + leaf.size // (rows * columns), rows, columns
    return tuple(found.items()), rest


class Traced(NamedTuple):
    """What the traced update of matrices costs one device, and its tiles."""

    cost: Cost
    tiles: int
    entries: int


@functools.cache
def _trace(
    matrices: Shapes,
    devices: int,
    max_dim: int,
    rule: Rule | None,
    root_dtype: str = "float32",
    accumulator_dtype: str = "float32",
) -> Traced:
    """Returns what the update of these matrices costs one of several devices."""
    params = {key: jax.ShapeDtypeStruct(shape, "f4") for key, shape in matrices}
    mesh = AbstractMesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data")) if devices > 1 else None
    tiling = Tiling(max_dim, _view_batches)
    options = rule, root_dtype, accumulator_dtype
    optimizer = _make(*options, tiling=tiling, sharding=sharding)
    state = jax.eval_shape(optimizer.init, params)
    (own,) = (
        part
        for part in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, JorgeState))
        if isinstance(part, JorgeState)
    )
    # The devices have equal parts of all arrays of the state but the count.
    parts = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0] // devices, *x.shape[1:]), x.dtype),
        own._replace(count=()),
    )
    sizes = [tile.size for tile in parts.trace.values()]
    all_ = sum(math.prod(shape) for _, shape in matrices)
    # Entries of parameters that it reads and writes, and of gradients that it reads.
    moved = jax.ShapeDtypeStruct((min(sum(sizes), all_),), jnp.float32)
    least = least_bytes((parts, own.count), moved)
    return Traced(
        Cost(
            tree_bytes((parts, own.count)),
            matmul_flops(optimizer.update, params, state, params),
            {kind: value + tree_bytes(moved) for kind, value in least.items()},
        ),
        tiles=sum(tile.shape[0] for tile in parts.trace.values()),
        entries=sum(sizes),
    )


def _make(
    rule: Rule | None, root_dtype: str, accumulator_dtype: str, **options: Any
) -> optax.GradientTransformation:
    numerics = Numerics(root_dtype, accumulator_dtype)
    return jorge(0.1, rule=rule, numerics=numerics, **options)


def _cost(optimizer: optax.GradientTransformation, params: Any) -> Cost:
    """Returns what an update of all these parameters costs on one device."""
    state = jax.eval_shape(optimizer.init, params)
    gradients = tree_bytes(params)
    least = {kind: x + gradients for kind, x in least_bytes(state, params).items()}
    flops = matmul_flops(optimizer.update, params, state, params)
    return Cost(tree_bytes(state), flops, least)


def baseline(name: str, params: Any) -> Cost:
    """Calculates what an update of another optimizer costs on one device.

    Args:
      name: A key of `BASELINES`.
      params: Parameters, or their shapes.
    """
    return _cost(BASELINES[name](), params)


def state_bytes(tiles: dict[str, tuple[int, int, int]], rule: Rule) -> int:
    """State of batches of matrices, each of one tile, with that of the count."""
    return _trace(tuple(tiles.items()), 1, Tiling().max_dim, rule).cost.state_bytes


def adamw_bytes(params: Any, devices: int = 1) -> int:
    """State of AdamW on each device; FSDP divides it by the number of devices."""
    return tree_bytes(jax.eval_shape(optax.adamw(1.0).init, params)) // devices


def _view_batches(path: str, shape: tuple[int, ...]) -> MatrixView:
    del path, shape
    return MatrixView((1,), (2,))


def _describe(name: str, cost: Cost, interval: int) -> str:
    """Formats a line: numbers of a mean step, and its bounds."""
    bounds = [
        f"{1e3 * cost.mean_bound(device, interval, precision):12.2f}"
        for device in target.DEVICES
        for precision in ("float32", "tf32")
    ]
    return (
        f"{name:24}{cost.state_bytes / 2**20:12.1f}"
        f"{cost.mean_flops(interval) / 1e9:12.1f}"
        f"{cost.mean_bytes(interval) / 1e9:12.2f}{''.join(bounds)}"
    )


def main() -> None:
    """Prints tables for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--devices", nargs="+", type=int, default=[1])
    parser.add_argument("--rule", choices=RULES, default="series")
    parser.add_argument("--max-dim", type=int, default=256)
    parser.add_argument("--interval", type=int, default=10)
    parser.add_argument("--root-dtype", default="float32")
    parser.add_argument("--accumulator-dtype", default="float32")
    args = parser.parse_args()
    params = MODELS[args.model]()
    found = {
        devices: calculate(
            params,
            devices,
            RULES[args.rule],
            tiling=Tiling(args.max_dim),
            root_dtype=args.root_dtype,
            accumulator_dtype=args.accumulator_dtype,
        )
        for devices in args.devices
    }
    bounds = (f"{f'ms, {d}':>12}{'with TF32':>12}" for d in target.DEVICES)
    print(
        f"{'a step':24}{'state, MiB':>12}{'GFLOP':>12}{'least GB':>12}", *bounds, sep=""
    )
    for name in BASELINES:
        print(_describe(name, baseline(name, params), args.interval))
    for devices, share in found.items():
        name = args.rule + f", 1 of {devices} devices" * (devices > 1)
        print(_describe(name, share.cost, args.interval))
    print("The times are lower bounds (rooflines), not timings.")
    for devices, share in found.items():
        if devices > 1:
            print(
                f"{devices:5} devices: refresh {share.flops.refresh / 1e9:.1f} GFLOP "
                f"({share.over_ideal:.0%} over an equal share), "
                f"gather {share.gather_bytes / 2**20:.1f} MiB"
            )


if __name__ == "__main__":
    main()
