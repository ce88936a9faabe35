"""Jorge on several devices."""

from typing import Any

import jax
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import Tiling, graft, jorge, scale_by_jorge
from tests.helpers.contract import (
    assert_close,
    assert_differs,
    assert_same_types,
    nudged,
    random_tree,
    step_of,
    train,
)
from tests.helpers.devices import run_on_eight_devices

# The axes of the mesh are automatic: the compiler places what is not placed.


def test_on_a_mesh_of_eight_devices():
    run_on_eight_devices(check_on_a_mesh_of_eight_devices)


def check_on_a_mesh_of_eight_devices():
    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    shapes = {"kernel": (16, 32), "bias": (32,)}
    trees = [random_tree(seed, shapes=shapes) for seed in range(5)]
    tiling = Tiling(max_dim=8)
    whole = jorge(0.05, 0.9, 0.01, update_interval=2, tiling=tiling)
    direction = scale_by_jorge(update_interval=2, tiling=tiling)
    grafted = graft(optax.trace(0.9), direction, tiling=tiling)
    for tx, spec in ((whole, P()), (whole, P(None, "x")), (grafted, P("x"))):
        expected = train(tx, trees[0], trees[1:])
        check_sharded(tx, trees, mesh, spec, expected)


def check_sharded(tx, trees, mesh, spec, expected):
    def sharding(x, spec_of_matrix, spec_of_stack):
        specs = {2: spec_of_matrix, 3: spec_of_stack}
        return NamedSharding(mesh, specs.get(x.ndim, P()))

    def shardings_of(tree, spec_of_stack):
        return jax.tree.map(lambda x: sharding(x, spec, spec_of_stack), tree)

    trees = jax.device_put(trees, shardings_of(trees, P()))
    params, *gradients = trees

    # The compiler may place the state where it likes.
    shardings = shardings_of(jax.eval_shape(tx.init, params), P())
    state = start = jax.jit(tx.init, out_shardings=shardings)(params)
    result = params
    for grads in gradients:
        result, state, _ = step_of(tx)(result, state, grads)
        assert_same_types(state, start)
    assert_close((result, state), expected)
    assert_differs(assert_close, (result, nudged(state)), expected)
    if spec == P():  # Only the batch is divided, as usual in small training.
        assert shardings_in((result, state)) == shardings_in((params, start))

    # Each stack is divided, so that each device has one of the eight tiles.
    shardings = shardings_of(state, P("x"))
    state = start = jax.jit(tx.init, out_shardings=shardings)(params)
    out_shardings = (shardings_of(params, P()), shardings, shardings_of(params, P()))
    step: Any = jax.jit(step_of(tx).__wrapped__, out_shardings=out_shardings)
    result = params
    for grads in gradients:
        result, state, updates = step(result, state, grads)
        assert_same_types(state, start)
        assert shardings_in((result, state)) == shardings_in((params, start))
        assert shardings_in(updates) == shardings_in(grads)
    assert step._cache_size() == 1
    stacks = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 3]
    assert all(x.addressable_shards[0].data.shape == (1, 8, 8) for x in stacks)
    assert_close((result, state), expected)
    assert_differs(assert_close, (result, nudged(state)), expected)


def shardings_in(tree):
    return jax.tree.map(lambda x: x.sharding, tree)


# The axes of the mesh are explicit: the sharding is part of an array's type.


@pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="This JAX has no jax.set_mesh."
)
def test_on_a_mesh_with_explicit_axes():
    run_on_eight_devices(check_on_a_mesh_with_explicit_axes)


def check_on_a_mesh_with_explicit_axes():
    assert jax.device_count() == 8
    shapes = {"kernel": (8, 8, 16), "bias": (16,)}
    trees = [random_tree(seed, shapes=shapes) for seed in range(4)]
    tiling = Tiling(max_dim=8)
    options = dict(update_interval=2, tiling=tiling)
    for tx in (
        jorge(0.05, 0.9, 0.01, update_interval=2),
        jorge(0.05, weight_decay=0.01, grafting=optax.scale_by_adam(), **options),
        scale_by_jorge(**options),
        graft(optax.trace(0.9), optax.scale_by_adam(), tiling=tiling),
    ):
        check_explicit(tx, trees, train(tx, trees[0], trees[1:]))


def check_explicit(tx, trees, expected):
    explicit = jax.sharding.AxisType.Explicit
    mesh = jax.make_mesh((8,), ("x",), axis_types=(explicit,))
    shardings = {
        "kernel": NamedSharding(mesh, P("x")),
        "bias": NamedSharding(mesh, P()),
    }
    params, *gradients = [jax.device_put(tree, shardings) for tree in trees]
    jitted = step_of(tx)
    for step in (jitted.__wrapped__, jitted):
        with jax.set_mesh(mesh):
            state = start = tx.init(params)
            result = params
            for grads in gradients:
                result, state, updates = step(result, state, grads)
                assert types_on_mesh(updates) == types_on_mesh(grads)
                assert types_on_mesh(state) == types_on_mesh(start)
                assert types_on_mesh(result) == types_on_mesh(params)
        assert_close((result, state), expected)
        assert_differs(assert_close, (nudged(result), state), expected)
        assert_differs(assert_close, (result, nudged(state)), expected)

    # The leaf is divided, and its type tells: a copy on each device is of another one.
    assert result["kernel"].addressable_shards[0].data.shape == (1, 8, 16)
    assert types_on_mesh(result)["kernel"][1].spec == P("x", None, None)
    replicated = jax.device_put(result, NamedSharding(mesh, P()))
    assert types_on_mesh(replicated)["kernel"] != types_on_mesh(params)["kernel"]
    assert types_on_mesh(replicated)["bias"] == types_on_mesh(params)["bias"]


def types_on_mesh(tree):
    """The type of each leaf, and the sharding that is a part of it."""
    return jax.tree.map(lambda x: (jax.typeof(x), jax.typeof(x).sharding), tree)
