"""Calculates what one of several devices keeps, computes and sends, by arithmetic.

python -m benchmarks.cost.shares gpt2_small --devices 8 64 --rule whitening
"""

import argparse
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.cost.counts import Flops, matmul_flops, tree_bytes
from benchmarks.problems import shapes
from examples.shared.shampoo import ShampooRule
from jorge_optax import BinomialSeries, MatrixView, Rule, Tiling, Whitening, jorge
from jorge_optax._distributed import counting_all, share_stacks
from jorge_optax._stacks import plan_tree

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
    "shampoo": ShampooRule(),
}


Stacks = tuple[tuple[str, tuple[int, int, int]], ...]


class Share(NamedTuple):
    """What one device has of an update that is spread over several.

    Attributes:
      state_bytes: the state that it keeps.
      flops: operations of matrix products, of each step and of a refresh.
      decompositions: of symmetric matrices, in a refresh: those of Shampoo.
      gather_bytes: size of the buffer of all preconditioned tiles, which it has after
        the all-gather; it receives this much but for its own share.
      gradient_bytes: gradients of matrices, which FSDP gathers before.
      over_ideal: operations of a refresh over those of an equal share, less one.
    """

    state_bytes: int
    flops: Flops
    decompositions: int
    gather_bytes: int
    gradient_bytes: int
    over_ideal: float


def calculate(
    params: Any,
    devices: int,
    rule: Rule | None = None,
    *,
    tiling: Tiling | None = None,
    gather_dtype: str = "float32",
) -> Share:
    """Calculates the share of one device; allocates and compiles nothing.

    Args:
      params: Parameters, or their shapes.
      devices: Number of devices that the tiles are spread over.
      rule: As for `jorge_optax.jorge`.
      tiling: As for `jorge_optax.jorge`.
      gather_dtype: As for `jorge_optax.Spread`.
    """
    tiling = tiling or Tiling()
    plan = plan_tree(params, tiling)
    leaves = zip(plan.leaves, jax.tree.leaves(params), strict=True)
    rest = [leaf for own, leaf in leaves if own.view is None]
    rest_state = jax.eval_shape(jorge(0.1, rule=rule).init, rest)

    share = share_stacks(plan.stacks, devices)
    all_tiles = tuple(plan.stacks.items())
    state_bytes, flops = _trace(tuple(share.items()), all_tiles, tiling.max_dim, rule)
    _, whole = _trace(all_tiles, all_tiles, tiling.max_dim, rule)
    # Scalars stand for the stacks that the rest has not; both have a count.
    scalars = tree_bytes(jax.eval_shape(jorge(0.1, rule=rule).init, []))
    sizes = {key: math.prod(shape) for key, shape in share.items()}
    return Share(
        state_bytes=state_bytes + tree_bytes(rest_state) - scalars,
        flops=flops,
        decompositions=sum(2 * n for n, *_ in share.values())
        * isinstance(rule, ShampooRule),
        gather_bytes=devices * sum(sizes.values()) * jnp.dtype(gather_dtype).itemsize,
        gradient_bytes=4 * sum(math.prod(shape) for shape in plan.stacks.values()),
        over_ideal=devices * flops.refresh / whole.refresh - 1,
    )


@functools.cache
def _trace(
    stacks: Stacks, all_stacks: Stacks, max_dim: int, rule: Rule | None
) -> tuple[int, Flops]:
    """Returns the state of these stacks, and the operations of their update."""
    optimizer = jorge(0.1, rule=rule, tiling=Tiling(max_dim, _view_tiles))
    tiles = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in stacks}
    state = jax.eval_shape(optimizer.init, tiles)
    with counting_all(dict(all_stacks)):
        return tree_bytes(state), matmul_flops(optimizer.update, tiles, state)


def state_bytes(stacks: dict[str, tuple[int, int, int]], rule: Rule) -> int:
    """State of stacks of these shapes, with that of the count."""
    shapes = tuple(stacks.items())
    return _trace(shapes, shapes, Tiling().max_dim, rule)[0]


def adamw_bytes(params: Any, devices: int = 1) -> int:
    """State of AdamW on each device; FSDP divides it by the number of devices."""
    return tree_bytes(jax.eval_shape(optax.adamw(1.0).init, params)) // devices


def _view_tiles(path: str, shape: tuple[int, ...]) -> MatrixView:
    del path, shape
    return MatrixView((1,), (2,))


def main() -> None:
    """Prints a table for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rule", choices=RULES, default="series")
    parser.add_argument("--max-dim", type=int, default=256)
    args = parser.parse_args()
    params = MODELS[args.model]()
    for devices in args.devices:
        share = calculate(
            params, devices, RULES[args.rule], tiling=Tiling(args.max_dim)
        )
        print(
            f"{devices:5} devices: state {share.state_bytes / 2**20:9.1f} MiB, refresh "
            f"{share.flops.refresh / 1e9:9.1f} GFLOP ({share.over_ideal:.0%} over an "
            f"equal share), gather {share.gather_bytes / 2**20:9.1f} MiB"
        )


if __name__ == "__main__":
    main()
