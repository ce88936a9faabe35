"""Layouts over eight devices, and training on one device and on a mesh, compared."""

import contextlib
import functools
import math
import re
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.shared.shampoo import Shampoo
from jorge_optax import (
    Sharded,
    Tiling,
    Whitening,
    from_adamw,
    jorge,
    lengths,
    reshard_state,
    scale_by_jorge,
)
from tests.helpers.contract import (
    assert_agrees,
    assert_same_types,
    random_trees,
    step_of,
    train,
)

TILING = Tiling(max_dim=8)
# Shards over 8, 3 or 2 devices are multiples of the tiles, 8x8 and 8x6. Those of "odd"
# and "kernel" are 51 together: 8 devices share them as 7 each, and some idle.
SHAPES = {"kernel": (192, 16), "heads": (96, 2, 6), "odd": (24, 8), "bias": (24,)}
FSDP = {"kernel": P("x"), "heads": P("x"), "bias": P("x")}
TENSOR = {"kernel": P(None, "y"), "heads": P("x"), "bias": P("y")}
BOTH = {"kernel": P("x", "y"), "heads": P(("x", "y"))}
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
COLLECTIVES = "all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter"


class Layout(NamedTuple):
    """A mesh, how tiles are on it (None: beside their shards), and the parameters."""

    sizes: tuple[int, ...]
    axis_type: AxisType
    tiles: Any
    specs: dict[str, P]

    @property
    def mesh(self) -> jax.sharding.Mesh:
        axes = ("x", "y")[: len(self.sizes)]
        return make_mesh(self.sizes, axes, self.axis_type)

    @property
    def sharding(self) -> NamedSharding | Sharded:
        if self.tiles is None:
            return Sharded(self.mesh, lambda path, _: self.specs.get(path, P()))
        return NamedSharding(self.mesh, P(self.tiles))

    def shardings(self, tree) -> dict[str, NamedSharding]:
        return {key: NamedSharding(self.mesh, self.specs.get(key, P())) for key in tree}


LAYOUTS = {
    "replicated": Layout((8,), AUTO, "x", {}),
    "replicated, explicit": Layout((8,), EXPLICIT, "x", {}),
    "replicated, over two axes": Layout((4, 2), AUTO, ("x", "y"), {}),
    "replicated, over one of two": Layout((4, 2), EXPLICIT, "y", {}),
    "fsdp": Layout((8,), AUTO, None, FSDP),
    "fsdp, explicit": Layout((8,), EXPLICIT, None, FSDP),
    "tensor parallel": Layout((4, 2), AUTO, None, TENSOR),
    "both": Layout((4, 2), EXPLICIT, None, BOTH),
}
WHITENING = Whitening(early_refreshes=1)
OPTIMIZERS: dict[str, Any] = {
    "series": functools.partial(jorge, 0.05, 0.9, 0.01),
    "whitening": functools.partial(jorge, 0.05, rule=WHITENING),
    "from_adamw": functools.partial(from_adamw, 0.05, rule=WHITENING),
    "by shape": functools.partial(
        jorge, 0.05, rule=WHITENING, grafting=lengths.Shape()
    ),
    "ungrafted": functools.partial(jorge, 0.05, grafting=None),
    "direction": functools.partial(scale_by_jorge, momentum=0.9),
    "others": functools.partial(jorge, 0.05, others=optax.adamw(1e-3)),
    "shampoo": functools.partial(jorge, 0.05, rule=Shampoo()),
}


def make_mesh(sizes=(8,), axes=("x",), axis_type=AUTO):
    kinds, devices = (axis_type,) * len(sizes), jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, axes, axis_types=kinds, devices=devices)


def make(name, **options):
    return OPTIMIZERS[name](update_interval=2, tiling=TILING, **options)


@functools.cache
def trees():
    """Parameters, and four gradients."""
    return random_trees(5, shapes=SHAPES)


@functools.cache
def trained_alone(name):
    """The optimizer on one device, and the parameters and the state after training."""
    tx = make(name)
    params, *gradients = trees()
    return tx, *train(tx, params, gradients)


class Trained(NamedTuple):
    """What training on a mesh left."""

    tx: Any
    params: Any
    state: Any
    collectives: dict[str, int]


def train_on(layout: Layout, name: str) -> Trained:
    """Trains on the mesh; types and places must stay what they were."""
    tx = make(name, sharding=layout.sharding)
    params, *gradients = (
        jax.device_put(tree, layout.shardings(tree)) for tree in trees()
    )
    explicit = layout.axis_type is EXPLICIT
    with jax.set_mesh(layout.mesh) if explicit else contextlib.nullcontext():
        state = start = tx.init(params)
        # A compiled step refuses arrays that are placed otherwise.
        step = step_of(tx).lower(params, state, gradients[0]).compile()
        result = params
        for grads in gradients:
            result, state, _ = step(result, state, grads)
    assert_same_types(state, start)
    assert_same_places((result, state), (params, start))
    return Trained(tx, result, state, collectives(step.as_text()))


def assert_equals_one_device(trained: Trained, name: str, tolerance=1e-6):
    tx, params, state = trained_alone(name)
    fitted = reshard_state(
        jax.device_get(trained.state), tx, params, saved_by=trained.tx
    )
    found = jax.device_get(trained.params), fitted
    assert_agrees(found, (params, state), tolerance)


def collectives(text: str) -> dict[str, int]:
    """Counts the collectives of a compiled step."""
    found = re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text)
    return {operation: found.count(operation) for operation in found}


def assert_same_places(tree, other):
    def same(one, two):
        assert one.sharding.is_equivalent_to(two.sharding, one.ndim), one.sharding

    jax.tree.map(same, tree, other)
