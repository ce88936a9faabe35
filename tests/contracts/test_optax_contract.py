"""Optax's contract for optimizers, types and compilations, transformations of JAX."""

import functools
import inspect
import unittest
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from jorge_optax import jorge, lengths
from tests.helpers import optax_contrib_contract
from tests.helpers.contract import (
    OPTIMIZERS,
    assert_agrees,
    assert_close,
    assert_differs,
    assert_same_types,
    assert_steps_keep_types,
    each,
    nudged,
    random_tree,
    random_trees,
    stacked,
    step_of,
    train,
)


@pytest.fixture(params=["float16", "bfloat16", "float32", "float64"])
def dtype(request):
    if request.param == "float64":
        request.getfixturevalue("x64")
    return jnp.dtype(request.param)


# Optax's contract for contributed optimizers.

OptaxContribContract = optax_contrib_contract.contract(
    optax_contrib_contract.OPTIMIZERS
)


class BrokenState(NamedTuple):
    scale: Any


def broken(learning_rate: optax.ScalarOrSchedule):
    """Breaks each point of the contract."""
    if not callable(learning_rate) and learning_rate > 0:  # Fails for tracers.
        rate = learning_rate
    else:
        rate = 0.0

    def init_fn(params):
        return BrokenState(jax.tree.map(lambda x: jnp.zeros(2), params))

    def update_fn(updates, state, params=None):  # Takes no extra arguments.
        narrow = jax.tree.map(lambda g: rate * g.astype(jnp.float16), updates)
        return narrow, BrokenState(jnp.zeros(3))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def test_the_contract_of_optax_can_fail():
    case = optax_contrib_contract.contract(((broken, {"learning_rate": 1e-3}),))
    result = unittest.TestResult()
    tests = list(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    unittest.TestSuite(tests).run(result)

    def name_of(test):
        return test.id().split()[0].rpartition(".")[2]

    failed = {name_of(test) for test, _ in result.failures + result.errors}
    assert failed == {name_of(test) for test in tests}


def test_the_contract_of_optax_skips_nothing():
    for factory, _ in optax_contrib_contract.OPTIMIZERS:
        rate = inspect.signature(factory).parameters["learning_rate"]
        assert rate.annotation == optax.ScalarOrSchedule


# Dtypes, shapes and compilations.


@each()
def test_updates_have_the_dtype_of_gradients_and_state_never_drifts(tx, dtype):
    assert_steps_keep_types(tx, *split(random_trees(4, dtype)))


@each()
def test_the_state_has_one_type_in_both_branches_of_a_conditional(tx, dtype):
    params, grads = random_trees(2, dtype)

    def step(flag, state):
        def update(state):
            return tx.update(grads, state, params)

        def keep(state):
            return grads, state

        return jax.lax.cond(flag, update, keep, state)

    state = jax.eval_shape(tx.init, params)
    _, after = jax.eval_shape(step, True, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)


@each()
def test_four_steps_compile_once(tx):
    params, *gradients = random_trees(5)
    update = jax.jit(lambda *a: tx.update(*a, value=jnp.ones([]), unheard_of=1))
    state, trained = tx.init(params), params
    for grads in gradients:
        updates, state = update(grads, state, trained)
        trained = optax.apply_updates(trained, updates)
    assert update._cache_size() == 1
    assert_agrees((trained, state), train(tx, params, gradients))


@pytest.mark.parametrize("fault", ["narrow", "weak", "grows"])
def test_a_drifting_state_would_be_noticed(fault):
    def update_fn(updates, state, params=None):
        del params
        drifted = {
            "narrow": lambda: state.astype(jnp.bfloat16),
            "weak": lambda: jnp.asarray(1.0),
            "grows": lambda: jnp.concatenate([state, state]),
        }[fault]
        return updates, drifted()

    start = jnp.zeros([] if fault != "grows" else 1, jnp.float32)
    tx = optax.GradientTransformation(lambda params: start, update_fn)
    with pytest.raises(AssertionError, match="shapes: |types: |True"):
        assert_steps_keep_types(tx, *split(random_trees(3)))


def split(trees):
    return trees[0], trees[1:]


@each("jorge", "from_adamw", "all_options")
def test_dtypes_may_differ_between_gradients_parameters_and_leaves(tx):
    narrow, wide = (random_trees(2, dtype) for dtype in ("bfloat16", "float32"))
    mixed = [w | {"dense": n["dense"]} for n, w in zip(narrow, wide, strict=True)]
    for params, grads in ((narrow, wide), (wide, narrow), (mixed, mixed)):
        state = jax.eval_shape(tx.init, params[0])
        updates, after = jax.eval_shape(tx.update, grads[1], state, params[0])
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads[1])
        chex.assert_trees_all_equal_shapes_and_dtypes(after, state)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grafting", ["sgd", None, lengths.Adam(), lengths.Shape()])
def test_float64_gradients_do_not_widen_the_state_of_float32_parameters(grafting):
    optimizer = jorge(0.1, 0.9, 0.01, grafting=grafting)
    params, grads = random_tree(0, "float32"), random_tree(1, "float64")
    state = jax.eval_shape(optimizer.init, params)
    updates, new_state = jax.eval_shape(optimizer.update, grads, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(new_state, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)


@each("jorge", "from_adamw")
def test_low_precision_is_float32_rounded_at_the_end(tx):
    narrow = random_trees(4, jnp.bfloat16)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)

    def last_updates(trees):
        params, *gradients = trees
        state, updates = tx.init(params), None
        for grads in gradients:
            _, state, updates = step_of(tx)(params, state, grads)
        return jax.tree.map(lambda u: u.astype(jnp.float32), updates)

    updates, expected = last_updates(narrow), last_updates(wide)
    assert_close(updates, expected, tolerance=2**-8)
    assert_differs(assert_close, nudged(updates, 2**-6), expected, tolerance=2**-8)
    assert_differs(assert_close, updates, expected)


@pytest.mark.parametrize(
    "tree",
    [{}, {"w": None}, {"b": jnp.ones(3)}, {"w": optax.MaskedNode()}],
    ids=("empty", "none", "bias", "masked"),
)
@each()
def test_trees_without_matrices(tx, tree):
    state = start = tx.init(tree)
    updates, state = jax.jit(tx.update)(tree, state, tree)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, tree)
    assert_same_types(state, start)


# Transformations of JAX.


@each()
def test_scan_over_steps_equals_a_loop(tx):
    params, *gradients = random_trees(6)

    @jax.jit
    def scanned(params, gradients):
        def body(carry, grads):
            params, state = carry
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, tx.init(params)), gradients)[0]

    loop = train(tx, params, gradients)
    assert_agrees(scanned(params, stacked(gradients)), loop)
    assert_differs(assert_close, scanned(params, nudged(stacked(gradients), 0.1)), loop)


@each("jorge", "from_adamw")
def test_vmap_over_an_ensemble_equals_each_member_alone(tx):
    trees = [[random_tree(10 * m + t) for t in range(4)] for m in range(2)]
    params, *gradients = map(stacked, zip(*trees, strict=True))
    state = jax.vmap(tx.init)(params)
    update = jax.jit(jax.vmap(tx.update))
    for grads in gradients:
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    alone = stacked([train(tx, *split(member)) for member in trees])
    assert_agrees((params, state), alone)
    assert_differs(assert_close, (nudged(params), state), alone)


def test_vmap_over_hyperparameters_equals_each_alone():
    params, *gradients = random_trees(4)
    settings = jnp.array([[0.1, 0.8, 0.1, 1.0], [0.05, 0.9, 0.0, 2.0]])

    @jax.jit
    @jax.vmap
    def trained(setting):
        rate, momentum, decay, interval = setting
        tx = jorge(rate, momentum, decay, update_interval=interval)

        def body(carry, grads):
            updates, state = tx.update(grads, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(body, (params, tx.init(params)), stacked(gradients))[0][0]

    def alone(rate, momentum, decay, interval):
        tx = jorge(rate, momentum, decay, update_interval=int(interval))
        return train(tx, params, gradients)[0]

    expected = stacked([alone(*map(float, setting)) for setting in settings])
    assert_agrees(trained(settings), expected)
    assert_differs(assert_close, trained(settings * 1.01), expected)


@each()
def test_donated_buffers_are_reused(tx):
    params, grads = random_trees(2)
    expected = train(tx, params, [grads, grads])

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(2):
        old = params, state
        params, state = step(params, state, grads)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(grads))
    assert_agrees((params, state), expected)


@each()
def test_init_on_abstract_parameters(tx, dtype):
    params = random_tree(0, dtype)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    state, from_structs = tx.init(params), tx.init(structs)
    assert_same_types(jax.tree.map(jnp.asarray, from_structs), state)
    shapes = jax.eval_shape(tx.init, structs)
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes, state)
    chex.assert_trees_all_equal(from_structs, state)
    assert_differs(chex.assert_trees_all_equal, from_structs, nudged(state))


def test_the_direction_needs_no_parameters():
    tx = OPTIMIZERS["scale_by_jorge"]
    params, *gradients = random_trees(3)
    states, results = [tx.init(params)] * 2, [None, None]
    for grads in gradients:
        for i, given in enumerate((params, None)):
            results[i], states[i] = jax.jit(tx.update)(grads, states[i], given)
    chex.assert_trees_all_equal(results[0], results[1])
    assert_differs(chex.assert_trees_all_equal, results[0], nudged(results[1]))
