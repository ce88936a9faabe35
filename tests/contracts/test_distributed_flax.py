"""Spread tiles in loops of flax, and in orbax checkpoints of the examples."""

import pathlib
import tempfile

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from examples.shared import checkpoints
from jorge_optax import jorge
from tests.examples import toy_task
from tests.helpers.devices import run_on_eight_devices
from tests.helpers.spread import Compilations, make_mesh, options


def loss_of(outputs):
    return jnp.mean(outputs**2)


def test_nnx_and_linen_loops_compile_once():
    run_on_eight_devices(check_loops)


def check_loops():
    mesh = make_mesh()
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))
    optimizer = jorge(0.05, **options(sharding=rows))
    batch = jax.device_put(np.ones((16, 24), "f4"), rows)

    model = nnx.Linear(24, 16, rngs=nnx.Rngs(0))
    nnx.update(model, jax.device_put(nnx.state(model), whole))
    holder = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    # Flax's own count is on one device, with any optimizer.
    holder.step[...] = jax.device_put(holder.step[...], whole)

    @nnx.jit
    def nnx_step(model, holder, batch):
        grads = nnx.grad(lambda model: loss_of(model(batch)))(model)
        holder.update(model, grads)

    compilations = Compilations()
    for _ in range(4):
        nnx_step(model, holder, batch)
    assert compilations.count == 1
    nnx_step(model, holder, batch[:8])
    assert compilations.count > 1  # they are counted

    dense = flax.linen.Dense(16)
    params = jax.device_put(dense.init(jax.random.key(0), batch)["params"], whole)
    state = TrainState.create(apply_fn=dense.apply, params=params, tx=optimizer)
    state = state.replace(step=jax.device_put(jnp.int32(0), whole))

    @jax.jit
    def linen_step(state, batch):
        def loss(params):
            return loss_of(state.apply_fn({"params": params}, batch))

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    before = compilations.count
    for _ in range(4):
        state = linen_step(state, batch)
    assert compilations.count == before + 1


def test_a_checkpoint_moves_between_numbers_of_devices():
    run_on_eight_devices(check_checkpoints)


def check_checkpoints():
    """Saved by orbax on 8 devices, restored on 1, then on 4, then on 8 again."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        alone = toy_task.train(place / "alone", steps=20)
        for stop, devices in ((5, 8), (10, 1), (15, 4), (None, 8)):

            def interrupt(step, stop=stop):
                if step == stop:
                    raise KeyboardInterrupt

            run = {"steps": 20, "devices": devices, "spread": devices > 1}
            try:
                rows = toy_task.train(place / "moved", on_batch=interrupt, **run)
            except KeyboardInterrupt:
                continue
        assert [row["step"] for row in rows] == [5, 10, 15, 20]
        for row, expected in zip(rows, alone, strict=True):
            assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        moved, expected = (
            toy_task.saved_state(place / name, 20)["params"]
            for name in ("moved", "alone")
        )
        jax.tree.map(
            lambda one, two: np.testing.assert_allclose(one, two, atol=1e-4),
            moved,
            expected,
        )
        # Without the helper, orbax refuses the other shapes.
        check_refusal(place / "moved")


def test_distributed_shampoo_trains_as_shampoo_does():
    run_on_eight_devices(check_distributed_shampoo)


def check_distributed_shampoo():
    """By its name alone its roots are spread, one or none of each stack a device."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        states = []
        for name, devices in (
            ("shampoo", 1),
            ("distributed-shampoo", 8),
            ("distributed-shampoo", 1),
            ("shampoo", 8),
        ):
            own = place / f"{name}-{devices}"
            toy_task.train(own, name, steps=20, devices=devices)
            states.append(toy_task.saved_state(own, 20))
        shampoo, spread, alone, whole = states

        def tiles(state):
            stacks = [x for x in jax.tree.leaves(state) if np.ndim(x) == 3]
            return {len(stack) for stack in stacks}

        assert tiles(spread) == {8}
        assert tiles(shampoo) == tiles(alone) == tiles(whole) == {1}
        ours = jax.tree.leaves(shampoo["params"])
        for state in (spread, alone, whole):
            for one, two in zip(ours, jax.tree.leaves(state["params"]), strict=True):
                np.testing.assert_allclose(one, two, atol=1e-4)
                with pytest.raises(AssertionError):
                    np.testing.assert_allclose(one, two + 1e-3, atol=1e-4)


def check_refusal(folder):
    opened = checkpoints.Checkpoints(folder, "accuracy", keep=2)
    params = {"first": {"kernel": jnp.zeros((8, 12))}}
    with pytest.raises(ValueError, match="no checkpoint can be restored"):
        opened.restore({"state": jorge(0.1).init(params), "seconds": np.float64(0)})
    opened.close()
