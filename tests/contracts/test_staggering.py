"""Staggered refreshes on eight devices: each refreshes parts of its own share."""

import jax
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import Tiling, Whitening, jorge, reshard_state, scale_by_jorge
from tests.helpers.contract import (
    assert_close,
    assert_differs,
    assert_same_types,
    random_tree,
    step_of,
    train,
)
from tests.helpers.devices import run_on_eight_devices
from tests.helpers.staggering import Reference, due_tiles

TILING = Tiling(max_dim=8)
# 35 tiles of 8x8, 5 on each of 8 devices, where 5 are idle; 4 tiles of 8x6.
SHAPES = {"kernel": (40, 56), "heads": (8, 4, 6), "bias": (24,)}
STEPS, DEVICES, INTERVAL = 9, 8, 3
RULE = Whitening(early_refreshes=2)


def due_on_devices(devices):
    """Which tiles are due, in the order of one device."""
    state = jax.eval_shape(
        scale_by_jorge(tiling=TILING).init, random_tree(0, shapes=SHAPES)
    )
    tiles = {key: len(sides.left) for key, sides in state.roots.items()}
    shares = {key: -(-n // devices) for key, n in tiles.items()}
    own = due_tiles(shares, STEPS, lambda step: INTERVAL, INTERVAL, early=2)
    return {key: np.tile(own[key], devices)[:, :n] for key, n in tiles.items()}


def test_each_device_staggers_its_own_share():
    run_on_eight_devices(check_each_device_staggers_its_own_share)


def check_each_device_staggers_its_own_share():
    params, *gradients = (random_tree(s, shapes=SHAPES) for s in range(STEPS + 1))
    like = jorge(0.05, rule=RULE, tiling=TILING).init(params)

    def reference(devices):
        rule = Reference(RULE, due_on_devices(devices))
        optimizer = jorge(0.05, rule=rule, update_interval=1, tiling=TILING)
        result, state = train(optimizer, params, gradients)
        return result, optax.tree.get(state, "roots")

    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
    optimizer = jorge(
        0.05,
        rule=RULE,
        update_interval=INTERVAL,
        stagger=True,
        tiling=TILING,
        sharding=NamedSharding(mesh, P("x")),
    )
    result, *grads = jax.device_put((params, *gradients), NamedSharding(mesh, P()))
    state = start = optimizer.init(result)
    step = step_of(optimizer).lower(result, state, grads[0]).compile()
    for own in grads:
        result, state, _ = step(result, state, own)
    assert_same_types(state, start)
    text = step.as_text()
    assert text.count(" all-gather(") + text.count(" all-gather-start(") == 1
    assert "all-reduce" not in text
    state = reshard_state(jax.device_get(state), like, params, tiling=TILING)
    ours = result, optax.tree.get(state, "roots")
    assert_close(ours, reference(DEVICES), 1e-5)
    # The negative control: the parts of one device that has all tiles.
    assert_differs(assert_close, ours, reference(1), 1e-5)
