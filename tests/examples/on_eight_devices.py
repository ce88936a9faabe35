"""Examples on several devices: run on eight simulated ones, by test_loop."""

import os
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.shared.shampoo import Shampoo
from jorge_optax import Tiling, jorge
from tests.examples import toy_task
from tests.examples.toy_task import assert_same_bits, saved_state


def test_several_devices_train_as_one_and_others_resume_their_run(tmp_path):
    """One device; eight until step 10; from there two."""

    def interrupt(step):
        if step == 9:
            os.kill(os.getpid(), signal.SIGINT)

    def train(folder, **options):
        toy_task.train(folder, "jorge-whitening", **options)

    one, moved = tmp_path / "one", tmp_path / "moved"
    train(one)
    with pytest.raises(KeyboardInterrupt):
        train(moved, devices=8, spread=True, on_batch=interrupt)
    assert "on each device" in (moved / "start.txt").read_text()
    train(moved, devices=2, spread=True)
    ends = [saved_state(folder, 20)["params"] for folder in (one, moved)]
    for expected, own in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-4)
        assert not np.allclose(own + 1e-3, expected, atol=1e-4)
    with pytest.raises(AssertionError):
        assert_same_bits(*ends)


def by_shampoo(gradients, **options):
    """Parameters and state after these gradients."""
    optimizer = jorge(0.1, rule=Shampoo(), update_interval=2, **options)
    params = jax.tree.map(jnp.zeros_like, gradients[0])
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients:
        updates, state = update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params, state


def test_shampoo_spreads_its_tiles():
    rng = np.random.default_rng(0)
    gradients = [
        {"kernel": jnp.asarray(rng.normal(size=(24, 23)), jnp.float32)}
        for _ in range(4)
    ]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    tiling = Tiling(8)  # 9 tiles, some padded: devices have idle ones
    expected, _ = by_shampoo(gradients, tiling=tiling)
    spread = NamedSharding(mesh, P("data"))
    found, state = by_shampoo(gradients, tiling=tiling, sharding=spread)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(found, by_shampoo(gradients)[0], rtol=1e-2)
    roots = [x for x in jax.tree.leaves(state) if x.ndim == 3 and x.shape[1:] == (8, 8)]
    assert len(roots) >= 4  # statistics and powers of both sides
    for x in roots:
        assert x.sharding.shard_shape(x.shape)[0] == 2
