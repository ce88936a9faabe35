"""Jorge in Flax (nnx and linen) and Equinox, and its state in checkpoints."""

from collections.abc import Callable

import chex
import equinox as eqx
import flax.linen
import flax.serialization
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx, traverse_util
from flax.training.train_state import TrainState

from jorge_optax import (
    Numerics,
    Tiling,
    describe,
    diagnostics,
    from_adamw,
    graft,
    jorge,
    scale_by_jorge,
    views,
)
from tests.helpers.contract import assert_agrees, assert_differs, random_tree

TABLE = {
    "jorge": jorge(0.05, weight_decay=0.01, update_interval=2),
    "from_adamw": from_adamw(0.05, update_interval=2),
    "graft": optax.chain(
        graft(optax.trace(0.9), scale_by_jorge(update_interval=2)),
        optax.scale_by_learning_rate(0.05),
    ),
    "narrow": jorge(
        0.05, tiling=Tiling(max_dim=2), numerics=Numerics("bfloat16", "bfloat16")
    ),
}
X, Y = (random_tree(0, shapes={"x": (8, 6), "y": (8, 4)})[name] for name in "xy")


def each(*names):
    """Parameterizes a test by optimizers of the table."""
    return pytest.mark.parametrize("tx", [TABLE[name] for name in names], ids=names)


def squared_error(prediction):
    return jnp.mean(jnp.square(prediction - Y))


def train_leaves(tx, params, loss):
    """Plain training of any pytree: what the libraries are compared with."""

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(4):
        params, state = step(params, state)
    return params, state


# Flax nnx.


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embedding = nnx.Linear(6, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)
        self.second = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.norm(self.embedding(x))))


def train_nnx(tx, steps=4):
    """The parameters and the optimizer after training, traced once."""
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


def nnx_training(tx):
    """What nnx.Optimizer leaves, and what plain training starts from."""
    graph, params, rest = nnx.split(Model(), nnx.Param, ...)

    def loss(pure):
        state = jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(pure))
        return squared_error(nnx.merge(graph, state, rest)(X))

    trained, optimizer = train_nnx(tx)
    return (trained, optimizer.opt_state), nnx.to_pure_dict(params), loss


# Flax linen, and Equinox with None for leaves: no bias, and no array.


class LinenModel(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        return flax.linen.Dense(4)(jnp.tanh(flax.linen.Dense(5)(x)))


def linen_training(tx):
    model = LinenModel()
    params = model.init(jax.random.key(0), X)["params"]

    def loss(params):
        return squared_error(model.apply({"params": params}, X))

    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state):
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for _ in range(4):
        state = step(state)
    return (state.params, state.opt_state), params, loss


class EquinoxModel(eqx.Module):
    first: eqx.nn.Linear
    layers: list[eqx.nn.Linear]
    activation: Callable[[jax.Array], jax.Array]

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.first = eqx.nn.Linear(6, 5, use_bias=False, key=keys[0])
        self.layers = [eqx.nn.Linear(5, 4, key=keys[1])]
        self.activation = jnp.tanh

    def __call__(self, x):
        return self.layers[0](self.activation(self.first(x)))


def equinox_training(tx):
    model = EquinoxModel()
    params, static = eqx.partition(model, eqx.is_inexact_array)
    assert params.first.bias is params.activation is None
    state = tx.init(params)

    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def step(model, state):
        grads = eqx.filter_grad(lambda model: squared_error(jax.vmap(model)(X)))(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(model, updates), state

    for _ in range(4):
        model, state = step(model, state)

    def loss(leaves):
        params_of = jax.tree.unflatten(jax.tree.structure(params), leaves)
        return squared_error(jax.vmap(eqx.combine(params_of, static))(X))

    trained = eqx.filter(model, eqx.is_inexact_array), state
    return trained, jax.tree.leaves(params), loss


# from_adamw leaves the layer named an embedding without roots.
@pytest.mark.parametrize("train", [nnx_training, linen_training, equinox_training])
@each("jorge", "from_adamw")
def test_training_equals_plain_training(tx, train):
    trained, params, loss = train(tx)
    plain = train_leaves(tx, params, loss)
    assert_agrees(jax.tree.leaves(trained), jax.tree.leaves(plain))


# What looks into trees and states of these libraries.


def test_nnx_shows_a_view_the_same_paths_at_init_and_update():
    seen = []

    def view(path, shape):
        seen.append((path, shape))
        return None if "embedding" in path else views.default_view(path, shape)

    _, optimizer = train_nnx(jorge(0.05, tiling=Tiling(view=view)), steps=1)
    params = nnx.to_pure_dict(nnx.state(Model(), nnx.Param))
    paths = {path: x.shape for path, x in traverse_util.flatten_dict(params).items()}
    expected = {"/".join(path): shape for path, shape in paths.items()}
    # Once for each parameter: the plan of `update` is the plan of `init`.
    assert sorted(seen) == sorted(expected.items())
    assert set(optax.tree.get(optimizer.opt_state, "roots").left) == {"5x4"}


KERNELS = {"embedding/kernel", "second/kernel"}
PATHS = KERNELS | {"embedding/bias", "norm/scale", "norm/bias", "second/bias"}
OF_LINEN = {f"Dense_{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")}


def test_describe_and_diagnostics_take_trees_of_all_libraries():
    tx = jorge(0.1, update_interval=1)
    module = eqx.filter(EquinoxModel(), eqx.is_inexact_array)
    weights = {"first/weight", "layers/0/weight"}
    for tree, paths in (
        (nnx.state(Model(), nnx.Param), PATHS),
        (nnx.to_pure_dict(nnx.state(Model(), nnx.Param)), PATHS),
        (LinenModel().init(jax.random.key(0), X)["params"], OF_LINEN),
        (module, weights | {"layers/0/bias"}),
    ):
        assert {leaf.path for leaf in describe(tree, tx).leaves} == paths
    # An nnx.Optimizer's state, and parameters as plain dicts for gradients.
    params, optimizer = train_nnx(tx, steps=1)
    report = diagnostics(optimizer.opt_state, params, params, tx)
    assert {key.rsplit("/", 1)[0] for key in report if "cosine" in key} == KERNELS
    assert float(report["second/kernel/cosine"][0]) > 0
    report = diagnostics(jax.jit(tx.init)(module), module, None, tx)
    assert {key.rsplit("/", 2)[0] for key in report} == weights


def linen_attention(width, heads):
    class Block(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            return flax.linen.MultiHeadDotProductAttention(heads)(x)

    return jax.eval_shape(Block().init, jax.random.key(0), jnp.ones((1, 4, width)))


def nnx_attention(width, heads):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attn = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)

    return nnx.state(nnx.eval_shape(lambda: Block(nnx.Rngs(0))), nnx.Param)


@pytest.mark.parametrize("make", [linen_attention, nnx_attention])
@pytest.mark.parametrize(("width", "heads"), [(512, 8), (768, 12)])
def test_attention_of_flax_is_seen_as_square_matrices(make, width, heads):
    table = describe(make(width, heads), from_adamw(0.1))
    assert table.notes == ()
    assert "!" not in str(table)
    found = {"/".join(x.path.split("/")[-2:]): x.matrix for x in table.leaves}
    names = ("query", "key", "value", "out")
    kernels = {f"{name}/kernel": f"{width}x{width}" for name in names}
    assert found == kernels | {f"{name}/bias": "-" for name in names}


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


@each(*TABLE)
def test_the_step_after_restoring_is_equal_bit_for_bit(tx, tmp_path):
    shapes = {"first": (6, 4), "second": (4, 2), "bias": (4,)}
    params, grads = (random_tree(seed, shapes=shapes) for seed in (0, 1))
    update = jax.jit(tx.update)
    fresh = update(grads, tx.init(params), params)
    state = fresh[1]
    expected = update(grads, state, params)
    assert_differs(chex.assert_trees_all_equal, fresh, expected)
    for round_trip in (orbax_round_trip, msgpack_round_trip):
        restored = round_trip(state, jax.eval_shape(tx.init, params), tmp_path)
        chex.assert_trees_all_equal_structs(restored, state)
        chex.assert_trees_all_equal_shapes_and_dtypes(restored, state)
        chex.assert_trees_all_equal(restored, state)
        chex.assert_trees_all_equal(update(grads, restored, params), expected)
