"""Trains on one device and on a mesh of several, and compares."""

import contextlib
import re

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import Tiling, reshard_state
from tests.helpers.contract import (
    assert_close,
    assert_differs,
    assert_same_types,
    nudged,
    random_tree,
    step_of,
)

TILING = Tiling(max_dim=8)
# 9 tiles of 8x8, which 8 devices share as 2 each, and 2 of 8x6; a leaf without roots.
SHAPES = {"kernel": (24, 24), "heads": (8, 2, 6), "bias": (24,)}
SHARDED = {"kernel": P("x"), "heads": P("x"), "bias": P("x")}
# An old JAX cannot set a mesh, which explicit axes need.
KINDS = (AxisType.Auto, AxisType.Explicit)[: 2 if hasattr(jax, "set_mesh") else 1]
COLLECTIVES = ("all-gather", "all-reduce", "collective-permute", "all-to-all")


def make_mesh(shape=(8,), axes=("x",), kind=AxisType.Auto):
    return jax.make_mesh(shape, axes, axis_types=(kind,) * len(axes))


def trees_of(shapes=None):
    return [random_tree(seed, shapes=shapes or SHAPES) for seed in range(5)]


def options(**changes):
    return {"update_interval": 2, "tiling": TILING, **changes}


class Compilations:
    """Counts what the backend compiles."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self.listen)

    def listen(self, event, duration, **_):
        self.count += "backend_compile" in event


def collectives(text: str) -> dict[str, int]:
    """Counts the collectives of a compiled step."""
    found = {op: len(re.findall(rf" {op}(-start)?\(", text)) for op in COLLECTIVES}
    return {op: count for op, count in found.items() if count}


def check_spread(make, mesh, sharding, specs=None, *, tolerance=1e-6):
    """Trains on one device and on the mesh; returns the collectives of a step.

    `make` takes the option `sharding`; `specs` are those of the parameters.
    """
    params, *gradients = trees_of()
    alone, spread = make(), make(sharding=sharding)
    expected, expected_state = params, jax.jit(alone.init)(params)
    like = expected_state
    for grads in gradients:
        expected, expected_state, _ = step_of(alone)(expected, expected_state, grads)
    shardings = {
        name: NamedSharding(mesh, (specs or {}).get(name, P())) for name in params
    }
    params, *gradients = (jax.device_put(t, shardings) for t in (params, *gradients))
    explicit = AxisType.Explicit in mesh.axis_types
    with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
        state = start = spread.init(params)
        jitted = jax.jit(spread.init)(params)
        assert_same_types(jitted, start)
        # In a jitted init, zeros_like does not follow a divided parameter.
        assert_same_placement(jitted, start, leave_out=() if specs is None else (1,))
        # A compiled step refuses arrays that are placed otherwise.
        step = step_of(spread).lower(params, state, gradients[0]).compile()
        result = params
        for grads in gradients:
            result, state, _ = step(result, state, grads)
        assert_same_types(state, start)
        assert_same_placement((result, state), (params, start))
    canonical = reshard_state(jax.device_get(state), like, params, tiling=TILING)
    ours, theirs = (result, canonical), (expected, expected_state)
    assert_close(ours, theirs, tolerance)
    by = 10 * tolerance
    for changed in ((nudged(result, by), canonical), (result, nudged(canonical, by))):
        assert_differs(assert_close, changed, theirs, tolerance)
    return collectives(step.as_text())


def assert_same_placement(tree, other, leave_out=()):
    """`leave_out` has numbers of axes."""

    def same(one, two):
        if one.ndim in leave_out:
            return
        assert one.sharding.is_equivalent_to(two.sharding, one.ndim), one.sharding

    jax.tree.map(same, tree, other)
