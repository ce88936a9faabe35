"""Jorge in Flax (nnx and linen) and Equinox, and its state in checkpoints."""

import functools
from collections.abc import Callable

import chex
import equinox as eqx
import flax.linen
import flax.serialization
import flax.training.train_state
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from jorge_optax import Tiling, default_view, graft, jorge, scale_by_jorge

TABLE = {
    "jorge": jorge(0.05, weight_decay=0.01, update_interval=2),
    "scale_by_jorge": optax.chain(
        scale_by_jorge(update_interval=2), optax.scale_by_learning_rate(1e-3)
    ),
    "graft": optax.chain(
        graft(optax.trace(0.9), scale_by_jorge(update_interval=2)),
        optax.scale_by_learning_rate(0.05),
    ),
    "jorge_tiled_bfloat16_roots": jorge(
        0.05, update_interval=2, tiling=Tiling(max_dim=2), root_dtype="bfloat16"
    ),
}


def each(*names):
    """Parameterizes a test by optimizers of the table."""
    return pytest.mark.parametrize("tx", [TABLE[name] for name in names], ids=names)


RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 6)), jnp.float32)
Y = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)


def squared_error(prediction):
    return jnp.mean(jnp.square(prediction - Y))


def assert_close(tree, other, tolerance=1e-5):
    """Equality of leaves, up to this share of the largest entry of each."""
    tree, other = (jax.device_get(jax.tree.leaves(side)) for side in (tree, other))
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    scales = [max(np.max(np.abs(leaf)), 1e-30) for leaf in other]
    tree, other = (jax.tree.map(np.divide, side, scales) for side in (tree, other))
    chex.assert_trees_all_close(tree, other, rtol=0, atol=tolerance)


def assert_differs(assertion, *args):
    """The negative control of an equality: it must fail, and for unequal values."""
    with pytest.raises(AssertionError, match="Values not"):
        assertion(*args)


def train_leaves(tx, params, loss, steps):
    """Plain training of any pytree: what the wrappers are compared with."""

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


# Flax nnx.


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(6, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)
        self.second = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.norm(self.first(x))))


def train_nnx(tx, steps):
    """The model and its optimizer after training, compiled once."""
    model = Model()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    chex.clear_trace_counter()

    @nnx.jit
    @chex.assert_max_traces(n=1)
    def step(model, optimizer):
        grads = nnx.grad(lambda model: squared_error(model(X)))(model)
        optimizer.update(model, grads)

    for _ in range(steps):
        step(model, optimizer)  # pyright: ignore
    return nnx.to_pure_dict(nnx.state(model, nnx.Param)), optimizer


def start_nnx():
    """The parameters as plain dicts, and the loss as a function of these."""
    graph, params, rest = nnx.split(Model(), nnx.Param, ...)

    def loss(pure):
        state = jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(pure))
        return squared_error(nnx.merge(graph, state, rest)(X))

    return nnx.to_pure_dict(params), loss


@each("jorge", "scale_by_jorge", "graft")
def test_nnx_optimizer_equals_plain_training(tx):
    params, optimizer = train_nnx(tx, steps=4)
    plain, plain_state = train_leaves(tx, *start_nnx(), steps=4)
    chex.assert_trees_all_equal_structs(params, plain)
    assert_close(params, plain)
    assert_close(optimizer.opt_state, plain_state)
    assert int(optimizer.step[...]) == 4
    assert_differs(assert_close, params, start_nnx()[0])


def label(path):
    return "freeze" if "first" in jax.tree_util.keystr(path) else "train"


@each("jorge")
def test_nnx_optimizer_with_partition_and_frozen_weights(tx):
    def labels(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: label(path), params)

    partitioned = optax.partition({"train": tx, "freeze": optax.set_to_zero()}, labels)
    params, _ = train_nnx(partitioned, steps=4)

    start, loss = start_nnx()
    frozen, trained = {"first": start.pop("first")}, start
    plain, _ = train_leaves(tx, trained, lambda pure: loss(frozen | pure), steps=4)
    chex.assert_trees_all_equal(params.pop("first"), frozen["first"])
    chex.assert_trees_all_equal_structs(params, plain)
    assert_close(params, plain)
    assert_differs(assert_close, params, trained)


def test_nnx_shows_a_view_the_same_paths_at_init_and_update():
    seen = []

    def view(path, shape):
        seen.append((path, shape))
        return None if path == "first/kernel" else default_view(shape)

    tx = jorge(0.05, tiling=Tiling(view=view))
    nnx.Optimizer(Model(), tx, wrt=nnx.Param)
    at_init, seen[:] = set(seen), []
    start, loss = start_nnx()
    expected = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_flatten_with_path(start)[0]
    }
    assert at_init == set(expected.items())

    params, optimizer = train_nnx(tx, steps=3)
    assert set(seen) <= at_init
    assert set(optax.tree.get(optimizer.opt_state, "roots")) == {"5x4"}
    plain, _ = train_leaves(tx, start, loss, steps=3)
    assert_close(params, plain)
    default, optimizer = train_nnx(jorge(0.05), steps=3)
    assert set(optax.tree.get(optimizer.opt_state, "roots")) == {"5x4", "6x5"}
    assert_differs(assert_close, params, default)


# Flax linen.


class LinenModel(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        x = jnp.tanh(flax.linen.Dense(5)(x))
        return flax.linen.Dense(4)(x)


def linen_model():
    model = LinenModel()
    params = model.init(jax.random.key(0), X)["params"]
    return model, params, lambda p: squared_error(model.apply({"params": p}, X))


@each("jorge")
def test_linen_train_state_equals_plain_training(tx):
    model, params, loss = linen_model()
    state = flax.training.train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=tx
    )
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state):
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for _ in range(4):
        state = step(state)
    plain, plain_state = train_leaves(tx, params, loss, steps=4)
    assert state.step == 4
    assert_close((state.params, state.opt_state), (plain, plain_state))
    assert_differs(assert_close, state.params, params)


# Equinox.


class EquinoxModel(eqx.Module):
    """Has None for leaves: no bias, and no array where something else was."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    activation: Callable[[jax.Array], jax.Array]

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.first = eqx.nn.Linear(6, 5, use_bias=False, key=keys[0])
        self.second = eqx.nn.Linear(5, 4, key=keys[1])
        self.activation = jnp.tanh

    def __call__(self, x):
        return self.second(self.activation(self.first(x)))


@each("jorge", "graft")
def test_equinox_modules_with_none_leaves_equal_plain_training(tx):
    model = EquinoxModel()
    params, static = eqx.partition(model, eqx.is_inexact_array)
    assert params.first.bias is None
    assert params.activation is None
    state = start = tx.init(params)
    updates = None

    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def step(model, state):
        grads = eqx.filter_grad(lambda model: squared_error(jax.vmap(model)(X)))(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(model, updates), state, updates

    for _ in range(4):
        model, state, updates = step(model, state)
    chex.assert_trees_all_equal_structs(updates, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)

    def loss(leaves):
        params_of = jax.tree.unflatten(jax.tree.structure(params), leaves)
        return squared_error(jax.vmap(eqx.combine(params_of, static))(X))

    plain = train_leaves(tx, jax.tree.leaves(params), loss, steps=4)
    assert_close((eqx.filter(model, eqx.is_inexact_array), state), plain)
    assert_differs(assert_close, params, plain[0])


# Checkpoints.


def orbax_round_trip(state, like, directory):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(directory / "state", like)


def msgpack_round_trip(state, like, directory):
    file = directory / "state.msgpack"
    file.write_bytes(flax.serialization.to_bytes(state))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return flax.serialization.from_bytes(zeros, file.read_bytes())


@functools.cache
def jitted_update(tx):
    return jax.jit(tx.update)


@pytest.mark.parametrize("round_trip", [orbax_round_trip, msgpack_round_trip])
@each(*TABLE)
def test_the_step_after_restoring_is_equal_bit_for_bit(tx, round_trip, tmp_path):
    def random_tree(seed):
        rng = np.random.default_rng(seed)
        shapes = {"first": (6, 4), "second": (4, 2), "bias": (4,)}
        return {k: jnp.asarray(rng.normal(size=v), "f4") for k, v in shapes.items()}

    update = jitted_update(tx)
    params = random_tree(0)
    state = tx.init(params)
    for seed in (1, 2, 3):
        updates, state = update(random_tree(seed), state, params)
        params = optax.apply_updates(params, updates)
    restored = round_trip(state, jax.eval_shape(tx.init, params), tmp_path)
    chex.assert_trees_all_equal_structs(restored, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, state)
    chex.assert_trees_all_equal(restored, state)

    grads = random_tree(4)
    expected = update(grads, state, params)
    chex.assert_trees_all_equal(update(grads, restored, params), expected)
    fresh = update(grads, tx.init(params), params)
    assert_differs(chex.assert_trees_all_equal, fresh[0], expected[0])
    assert_differs(chex.assert_trees_all_equal, fresh[1], expected[1])
