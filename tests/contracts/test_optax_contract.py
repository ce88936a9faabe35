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

from jorge_optax import jorge
from tests.helpers import optax_contrib_contract
from tests.helpers.contract import (
    KINDS,
    OPTIMIZERS,
    TABLE,
    VARIANTS,
    assert_close,
    assert_differs,
    assert_same_types,
    assert_steps_keep_types,
    each,
    nudged,
    random_tree,
    step_of,
    train,
)

DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(params=DTYPES)
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


def name_of(test):
    return test.id().split()[0].rpartition(".")[2]


def test_the_contract_of_optax_can_fail():
    case = optax_contrib_contract.contract(((broken, {"learning_rate": 1e-3}),))
    result = unittest.TestResult()
    tests = list(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    unittest.TestSuite(tests).run(result)
    failed = {name_of(test) for test, _ in result.failures + result.errors}
    assert failed == {name_of(test) for test in tests}


def test_the_contract_of_optax_skips_nothing():
    for factory, _ in optax_contrib_contract.OPTIMIZERS:
        rate = inspect.signature(factory).parameters["learning_rate"]
        assert rate.annotation == optax.ScalarOrSchedule


# Dtypes, shapes and compilations.


def assert_four_steps_compile_once(tx, params, gradients, **extra_args):
    chex.clear_trace_counter()
    update: Any = jax.jit(chex.assert_max_traces(tx.update, n=1))
    state = tx.init(params)
    for grads in gradients:
        updates, state = update(grads, state, params, **extra_args)
        params = optax.apply_updates(params, updates)
    return params, state


@each(*KINDS)
def test_updates_have_the_dtype_of_gradients_and_state_never_drifts(tx, dtype):
    params = random_tree(0, dtype)
    assert_steps_keep_types(tx, params, [random_tree(i, dtype) for i in range(1, 5)])


@each(*VARIANTS)
def test_state_of_variants_never_drifts_in_low_precision(tx):
    trees = [random_tree(seed, jnp.bfloat16) for seed in range(5)]
    assert_steps_keep_types(tx, trees[0], trees[1:])


@each(*KINDS)
def test_four_steps_with_unknown_extra_arguments_compile_once(tx):
    params, *gradients = [random_tree(seed) for seed in range(5)]
    result = assert_four_steps_compile_once(
        tx, params, gradients, value=jnp.ones([]), unheard_of=1
    )
    plain = train(tx, params, gradients)
    assert_close(result, plain)
    assert_differs(assert_close, result, train(tx, params, gradients[:3]))


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
    trees = [random_tree(seed) for seed in range(3)]
    with pytest.raises(AssertionError, match="shapes: |types: |True"):
        assert_steps_keep_types(tx, trees[0], trees[1:])
    with pytest.raises(AssertionError, match="traced > 1 times"):
        assert_four_steps_compile_once(tx, trees[0], trees[1:])


@each("jorge", "jorge_at_length_of_adam")
@pytest.mark.parametrize(
    ("of_params", "of_gradients"), [("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_gradients_may_have_another_dtype_than_parameters(tx, of_params, of_gradients):
    gradients = [random_tree(seed, of_gradients) for seed in (1, 2, 3)]
    assert_steps_keep_types(tx, random_tree(0, of_params), gradients)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grafting", ["sgd", None, optax.scale_by_adam()])
def test_float64_gradients_do_not_widen_the_state_of_float32_parameters(grafting):
    optimizer = jorge(0.1, 0.9, 0.01, grafting=grafting)
    params = {"w": jnp.ones((6, 4), jnp.float32), "b": jnp.ones(4, jnp.float32)}
    grads = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    state = optimizer.init(params)
    updates, new_state = optimizer.update(grads, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(new_state, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)


@each(*KINDS)
def test_leaves_may_have_different_dtypes(tx):
    def mixed(seed):
        tree = random_tree(seed)
        return tree | {"dense": random_tree(seed, jnp.bfloat16)["dense"]}

    assert_steps_keep_types(tx, mixed(0), [mixed(1), mixed(2), mixed(3)])


@each("jorge", "jorge_at_length_of_adam", "scale_by_jorge")
def test_low_precision_is_float32_rounded_at_the_end(tx):
    narrow = [random_tree(seed, jnp.bfloat16) for seed in range(4)]
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
@each(*KINDS)
def test_trees_without_matrices(tx, tree):
    state = start = tx.init(tree)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(tree, state, tree)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, tree)
        assert_same_types(state, start)


# Transformations of JAX.


@each(*KINDS)
def test_scan_over_steps_equals_a_loop(tx):
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in range(1, 6)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)

    @jax.jit
    def scanned(params, stacked):
        def body(carry, grads):
            params, state = carry
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, tx.init(params)), stacked)[0]

    result = scanned(params, stacked)
    loop = train(tx, params, gradients)
    assert_close(result, loop)
    assert_differs(assert_close, scanned(params, nudged(stacked, 0.1)), loop)


@each(*KINDS)
def test_vmap_over_an_ensemble_equals_each_member_alone(tx):
    members = [random_tree(seed) for seed in range(3)]
    gradients = [[random_tree(10 * m + t) for t in range(1, 5)] for m in range(3)]

    def stack(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    params = stack(members)
    state = jax.vmap(tx.init)(params)
    update = jax.jit(jax.vmap(tx.update))
    for grads in map(stack, zip(*gradients, strict=True)):
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    alone = stack(train(tx, *m) for m in zip(members, gradients, strict=True))
    assert_close((params, state), alone)
    assert_differs(assert_close, (nudged(params), state), alone)
    assert_differs(assert_close, (params, nudged(state)), alone)


def test_vmap_over_hyperparameters_equals_each_alone():
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in (1, 2, 3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
    settings = jnp.array([[0.1, 0.8, 0.1, 1.0], [0.05, 0.9, 0.0, 2.0]])

    @jax.vmap
    def trained(setting):
        rate, momentum, decay, interval = setting
        tx = jorge(rate, momentum, decay, update_interval=interval)

        def body(carry, grads):
            updates, state = tx.update(grads, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(body, (params, tx.init(params)), stacked)[0]

    params_of_both = jax.jit(trained)(settings)[0]
    first, second = (jax.tree.map(lambda x, i=i: x[i], params_of_both) for i in (0, 1))
    alone, _ = train(jorge(0.1, 0.8, 0.1, update_interval=1), params, gradients)
    assert_close(first, alone)
    assert_differs(assert_close, second, alone)
    alone, _ = train(OPTIMIZERS["jorge"], params, gradients)
    assert_close(second, alone)
    assert_differs(assert_close, first, alone)


def test_gradients_flow_through_training_alone_and_vmapped():
    """Those by which a hyperparameter is learned."""
    tx = OPTIMIZERS["jorge"]
    params = [jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(2)]  # two share a stack
    gradients = [jax.random.normal(jax.random.key(seed), (3, 2)) for seed in (1, 2)]

    def outcome(factor):
        tree = [[g, factor * g**2, factor * g[0]] for g in gradients]
        return sum(jnp.sum(leaf**3) for leaf in train(tx, params, tree)[0])

    factors, step = jnp.array([0.5, 1.5]), 1e-2
    found = jax.vmap(jax.grad(outcome))(factors)
    ahead, behind = jax.vmap(outcome)(factors + step), jax.vmap(outcome)(factors - step)
    chex.assert_trees_all_close(found, (ahead - behind) / (2 * step), rtol=0.02)
    chex.assert_trees_all_close(found[1], jax.grad(outcome)(factors[1]), rtol=1e-3)
    assert (jnp.abs(found) > 0.01).all()


@each(*KINDS)
def test_donated_buffers_are_reused(tx):
    params, grads = random_tree(0), random_tree(1)
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
    assert_close((params, state), expected)
    assert_differs(assert_close, (params, nudged(state)), expected)


@each(*TABLE)
def test_init_on_abstract_parameters(tx, dtype):
    params = random_tree(0, dtype)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    state = tx.init(params)
    from_structs = tx.init(structs)
    assert_same_types(jax.tree.map(jnp.asarray, from_structs), state)
    shapes = jax.eval_shape(tx.init, structs)
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes, state)
    chex.assert_trees_all_equal(from_structs, state)
    assert_differs(chex.assert_trees_all_equal, from_structs, nudged(state))


@each(*KINDS)
def test_update_under_eval_shape(tx):
    params = random_tree(0, jnp.bfloat16)
    state = tx.init(params)
    updates, after = jax.eval_shape(tx.update, params, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
