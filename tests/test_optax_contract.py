"""Jorge in optax: the contrib contract, and every wrapper and transformation of JAX."""

import functools
import inspect
import os
import pathlib
import subprocess
import sys
import unittest
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import Tiling, graft, jorge, scale_by_jorge
from tests import optax_contrib_contract

# Two leaves that share a stack, and two without roots. Few, since most of the time of
# these tests is compilation.
SHAPES = {
    "dense": {"kernel": (6, 4), "bias": (4,)},
    "conv": (2, 3, 4),
    "scale": (),
}

TABLE = {
    "jorge": (jorge, dict(learning_rate=0.05, update_interval=2)),
    "scale_by_jorge": (scale_by_jorge, dict(update_interval=2)),
    "graft": (
        graft,
        dict(
            magnitude=optax.trace(0.9),
            direction=scale_by_jorge(update_interval=2),
        ),
    ),
    "jorge_with_all_options": (
        jorge,
        dict(
            learning_rate=0.05,
            momentum=0.8,
            weight_decay=0.01,
            eps=1e-4,
            update_interval=2,
            damping=1e-3,
            tiling=Tiling(max_dim=4),
            root_dtype="bfloat16",
            precision="high",
        ),
    ),
    "jorge_at_length_of_adam": (
        jorge,
        dict(learning_rate=0.05, update_interval=2, grafting=optax.scale_by_adam()),
    ),
    "jorge_ungrafted": (jorge, dict(learning_rate=0.05, grafting=None)),
    "graft_tiled": (
        graft,
        dict(
            magnitude=optax.sgd(1.0, 0.9),
            direction=optax.scale_by_adam(),
            tiling=Tiling(max_dim=4),
        ),
    ),
}
OPTIMIZERS = {name: factory(**kwargs) for name, (factory, kwargs) in TABLE.items()}
KINDS = ("jorge", "scale_by_jorge", "graft")
VARIANTS = tuple(name for name in TABLE if name not in KINDS)
DTYPES = ("float16", "bfloat16", "float32", "float64")


def each(*names):
    """Parameterizes a test by optimizers of the table."""
    return pytest.mark.parametrize("tx", [OPTIMIZERS[n] for n in names], ids=names)


@pytest.fixture(params=DTYPES)
def dtype(request):
    if request.param == "float64":
        request.getfixturevalue("x64")
    return jnp.dtype(request.param)


def random_tree(seed: int, dtype: Any = jnp.float32, shapes: Any = SHAPES) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


@functools.cache
def step_of(tx: Any) -> Any:
    """A jitted step of training with given gradients."""

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, updates

    return step


def train(tx: Any, params: Any, gradients: Any) -> Any:
    """Parameters and state after a step for each gradient."""
    state = tx.init(params)
    for grads in gradients:
        params, state, _ = step_of(tx)(params, state, grads)
    return params, state


def types_of(tree):
    """Shape, dtype and weakness of the dtype of each leaf."""
    return jax.tree.map(lambda x: (x.shape, str(x.dtype), x.aval.weak_type), tree)


def assert_same_types(tree, other):
    chex.assert_trees_all_equal_structs(tree, other)
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    assert types_of(tree) == types_of(other)


def assert_differs(assertion, *args, **kwargs):
    """The negative control of an equality: it must fail, and for unequal values."""
    with pytest.raises(AssertionError, match="Values not"):
        assertion(*args, **kwargs)


def assert_close(tree, other, tolerance=1e-5):
    """Equality up to this share of the largest entry of each leaf."""
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, other)
    tree, other = jax.device_get((tree, other))
    scales = jax.tree.map(lambda x: max(np.max(np.abs(x)), 1e-30), other)
    tree, other = (jax.tree.map(np.divide, side, scales) for side in (tree, other))
    chex.assert_trees_all_close(tree, other, rtol=0, atol=tolerance)


def nudged(tree, by=0.01):
    """The tree with the largest entry of its largest leaf off by this share."""
    leaves, treedef = jax.tree.flatten(jax.device_get(tree))
    position = max(range(len(leaves)), key=lambda i: leaves[i].size)
    leaf = leaves[position] = leaves[position].copy()
    index = np.unravel_index(np.argmax(np.abs(leaf)), leaf.shape)
    leaf[index] = leaf[index] * (1 + by) if leaf[index] else by
    return treedef.unflatten(leaves)


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


def assert_steps_keep_types(tx, params, gradients):
    """Updates are typed as gradients, and the state's types stay."""
    state = start = tx.init(params)
    for grads in gradients:
        params, state, updates = step_of(tx)(params, state, grads)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)
        chex.assert_tree_all_finite((updates, state))
        assert_same_types(state, start)


def assert_four_steps_compile_once(tx, params, gradients, **extra_args):
    chex.clear_trace_counter()
    update: Any = jax.jit(chex.assert_max_traces(tx.update, n=1))
    state = tx.init(params)
    for grads in gradients:
        updates, state = update(grads, state, params, **extra_args)
        params = optax.apply_updates(params, updates)
    assert update._cache_size() == 1
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


# Wrappers and utilities of optax.


@each(*TABLE)
def test_takes_extra_arguments(tx):
    assert isinstance(tx, optax.GradientTransformationExtraArgs)


def test_graft_hands_extra_arguments_to_both():
    def scale_by_extra(name):
        def update_fn(updates, state, params=None, **extra_args):
            del params
            return jax.tree.map(lambda g: g * extra_args[name], updates), state

        return optax.GradientTransformationExtraArgs(
            lambda params: optax.EmptyState(), update_fn
        )

    tx = graft(scale_by_extra("length"), scale_by_extra("sign"))
    grads = random_tree(0)
    updates, _ = jax.jit(tx.update)(grads, tx.init(grads), length=3.0, sign=-1.0)
    expected = jax.tree.map(lambda g: -3 * g, grads)
    assert_close(updates, expected)
    assert_differs(assert_close, nudged(updates), expected)
    with pytest.raises(KeyError, match="sign"):
        tx.update(grads, tx.init(grads), length=3.0)


@each(*TABLE)
def test_map_params_of_the_identity_is_the_identity(tx):
    params = random_tree(0)
    _, state = train(tx, params, [random_tree(1)])
    mapped = optax.tree.map_params(tx, lambda x: x, state)
    chex.assert_trees_all_equal(mapped, state)
    assert_same_types(mapped, state)
    assert_differs(chex.assert_trees_all_equal, nudged(mapped), state)


def test_map_params_reaches_leaves_of_the_shape_of_parameters():
    tx = jorge(0.1, grafting=optax.scale_by_adam())
    params = random_tree(0)
    _, state = train(tx, params, [random_tree(1)])
    mapped = optax.tree.map_params(tx, jnp.zeros_like, state)
    moments = optax.tree.get(mapped, "nu")
    chex.assert_trees_all_equal(moments, jax.tree.map(jnp.zeros_like, params))
    assert_differs(chex.assert_trees_all_equal, optax.tree.get(state, "nu"), moments)
    chex.assert_trees_all_equal(
        optax.tree.get(mapped, "roots"), optax.tree.get(state, "roots")
    )


LABELS = {
    "dense": {"kernel": "train", "bias": "freeze"},
    "conv": "freeze",
    "scale": "train",
}
TRAINED = jax.tree.map(lambda label: label == "train", LABELS)
FROZEN = jax.tree.map(lambda label: label == "freeze", LABELS)


def select(tree, mask):
    """The leaves of the tree where the mask is true."""
    leaves, kept = jax.tree.leaves(tree), jax.tree.leaves(mask)
    return [leaf for leaf, keep in zip(leaves, kept, strict=True) if keep]


@each("jorge")
def test_masked_leaves_pass_through_and_the_rest_is_as_if_alone(tx):
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in (1, 2, 3)]
    masked, _ = train(optax.masked(tx, TRAINED), params, gradients)
    alone, _ = train(
        tx, select(params, TRAINED), [select(g, TRAINED) for g in gradients]
    )
    assert_close(select(masked, TRAINED), alone)
    assert_differs(assert_close, nudged(select(masked, TRAINED)), alone)
    passed = jax.tree.map(lambda *leaves: sum(leaves), params, *gradients)
    assert_close(select(masked, FROZEN), select(passed, FROZEN))
    assert_differs(assert_close, select(masked, TRAINED), select(passed, TRAINED))


@each(*KINDS)
def test_partition_with_frozen_weights(tx):
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in (1, 2, 3)]
    parts: Any = {"train": tx, "freeze": optax.set_to_zero(), "of no leaf": tx}
    partitioned = optax.partition(parts, LABELS)
    result, state = train(partitioned, params, gradients)
    alone, state_alone = train(
        tx, select(params, TRAINED), [select(g, TRAINED) for g in gradients]
    )
    chex.assert_trees_all_equal(select(result, FROZEN), select(params, FROZEN))
    assert_close(select(result, TRAINED), alone)
    assert_differs(assert_close, nudged(select(result, TRAINED)), alone)
    leaves = jax.tree.leaves(state.inner_states["train"])
    assert_close(leaves, jax.tree.leaves(state_alone))
    assert_differs(assert_close, nudged(leaves), jax.tree.leaves(state_alone))


@each(*KINDS)
def test_multi_steps_equals_steps_with_mean_gradients(tx):
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in range(1, 10)]
    means = [
        jax.tree.map(lambda *leaves: sum(leaves) / 3, *gradients[i : i + 3])
        for i in (0, 3, 6)
    ]
    accumulated = optax.MultiSteps(tx, every_k_schedule=3)
    start = accumulated.init(params)
    result, state = train(accumulated, params, gradients)
    expected, inner_state = train(tx, params, means)
    assert_same_types(state, start)
    assert_close(
        (result, state.inner_opt_state), (expected, inner_state), tolerance=1e-4
    )
    early, _ = train(accumulated, params, gradients[:8])
    assert_differs(assert_close, early, expected, tolerance=1e-4)


@pytest.mark.parametrize(
    "name", ["jorge_with_all_options", "scale_by_jorge", "graft_tiled"]
)
def test_inject_hyperparams_without_static_args(name):
    factory, kwargs = TABLE[name]
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in (1, 2, 3)]
    tx = optax.inject_hyperparams(factory)(**kwargs)
    start = tx.init(params)
    result, state = train(tx, params, gradients)
    plain, plain_state = train(OPTIMIZERS[name], params, gradients)
    assert_same_types(state, start)
    assert_close(result, plain, tolerance=1e-4)
    assert_differs(assert_close, nudged(result), plain, tolerance=1e-4)
    inner, plain_state = (jax.tree.leaves(s) for s in (state.inner_state, plain_state))
    assert_close(inner, plain_state, tolerance=1e-4)
    assert_differs(assert_close, nudged(inner), plain_state, tolerance=1e-4)


def test_injected_hyperparams_take_effect_without_compiling_anew():
    params, gradients = random_tree(0), [random_tree(seed) for seed in (1, 2)]
    tx = optax.inject_hyperparams(jorge)(learning_rate=0.1, update_interval=1)
    step = step_of(tx)
    params, state, _ = step(params, tx.init(params), gradients[0])

    def second(**changes):
        hyperparams = state.hyperparams | {
            key: jnp.asarray(value, state.hyperparams[key].dtype)
            for key, value in changes.items()
        }
        changed = state._replace(hyperparams=hyperparams)
        _, after, updates = step(params, changed, gradients[1])
        return updates, optax.tree.get(after, "roots")

    updates, roots = second()
    doubled, _ = second(learning_rate=0.2)
    assert_close(doubled, jax.tree.map(lambda u: 2 * u, updates))
    assert_differs(assert_close, doubled, updates)
    old_roots = optax.tree.get(state, "roots")
    _, kept = second(update_interval=5)
    chex.assert_trees_all_equal(kept, old_roots)
    assert_differs(chex.assert_trees_all_equal, roots, old_roots)


def test_injected_schedules_equal_plain_schedules():
    def rate(count):
        return 0.1 / (1 + count)

    def interval(count):
        return jnp.where(count < 2, 1, 3)

    params = random_tree(0)
    gradients = [random_tree(seed) for seed in range(1, 6)]
    injected = optax.inject_hyperparams(jorge)(rate, update_interval=interval)
    result, state = train(injected, params, gradients)
    plain, plain_state = train(jorge(rate, update_interval=interval), params, gradients)
    assert_close(result, plain, tolerance=1e-4)
    roots, plain_roots = (optax.tree.get(s, "roots") for s in (state, plain_state))
    assert_close(roots, plain_roots, tolerance=1e-4)
    assert_differs(assert_close, nudged(result), plain, tolerance=1e-4)
    assert_differs(assert_close, nudged(roots), plain_roots, tolerance=1e-4)


@each(*KINDS)
def test_apply_if_finite_forgets_a_bad_gradient(tx):
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in range(1, 5)]
    extra = random_tree(9)
    safe = optax.apply_if_finite(tx, max_consecutive_errors=2)
    without, state_without = train(safe, params, gradients)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        poisoned = extra | {"conv": extra["conv"].at[1, 2, 0].set(bad)}
        result, state = train(safe, params, [*gradients[:2], poisoned, *gradients[2:]])
        assert state.total_notfinite == 1
        chex.assert_tree_all_finite((result, state.inner_state))
        chex.assert_trees_all_equal(result, without)
        chex.assert_trees_all_equal(state.inner_state, state_without.inner_state)
    result, state = train(safe, params, [*gradients[:2], extra, *gradients[2:]])
    assert_differs(chex.assert_trees_all_equal, result, without)
    assert_differs(
        chex.assert_trees_all_equal, state.inner_state, state_without.inner_state
    )


@each("jorge", "jorge_with_all_options")
def test_a_bad_gradient_at_a_refresh_leaves_its_roots_as_they_were(tx):
    # Two stacks; the tall leaf is refreshed by another order of products.
    shapes = {"conv": (2, 3, 4), "dense": (6, 4), "tall": (12, 2)}
    trees = [random_tree(seed, shapes=shapes) for seed in range(4)]
    params, state = train(tx, trees[0], trees[1:3])
    before = optax.tree.get(state, "roots")

    def roots_after(grads):
        return optax.tree.get(step_of(tx)(params, state, grads)[1], "roots")

    grads = trees[3]
    usual = roots_after(grads)
    assert_differs(chex.assert_trees_all_equal, usual, before)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        everywhere = jax.tree.map(lambda g, bad=bad: jnp.full_like(g, bad), grads)
        chex.assert_trees_all_equal(roots_after(everywhere), before)
        for leaf, entry in (("tall", (3, 1)), ("conv", (1, 2, 0))):
            poisoned = grads | {leaf: grads[leaf].at[entry].set(bad)}
            after = roots_after(poisoned)
            chex.assert_tree_all_finite(after)
            # The tile with the bad entry keeps both its roots, bit for bit; every
            # other tile is refreshed as usual.
            kept = same_roots(after, before)
            assert sum(kept) == 2
            assert [not same for same in kept] == same_roots(after, usual)


def same_roots(roots, others):
    """For each root of each tile, whether the two are equal bit for bit."""
    pairs = zip(jax.tree.leaves(roots), jax.tree.leaves(others), strict=True)
    return [
        bool(jnp.array_equal(root, other))
        for stack, other_stack in pairs
        for root, other in zip(stack, other_stack, strict=True)
    ]


def test_schedule_free_equals_its_recursion_written_out():
    rate, b1 = 0.1, 0.7
    base = OPTIMIZERS["jorge"]
    params = random_tree(0)
    gradients = [random_tree(seed) for seed in range(1, 6)]
    wrapped = optax.contrib.schedule_free(base, learning_rate=rate, b1=b1)
    result, state = train(wrapped, params, gradients)

    x, y, z = params, params, params
    base_state = base.init(params)
    for t, grads in enumerate(gradients):
        _, base_state, updates = step_of(base)(y, base_state, grads)
        z = optax.apply_updates(z, updates)
        x = jax.tree.map(lambda x, z, t=t: x + (z - x) / (t + 1), x, z)
        y = jax.tree.map(lambda x, z: b1 * x + (1 - b1) * z, x, z)
    assert_close(result, y, tolerance=1e-4)
    evaluated = optax.contrib.schedule_free_eval_params(state, result)
    assert_close(evaluated, x, tolerance=1e-4)
    assert_close(state.base_optimizer_state, base_state, tolerance=1e-4)
    assert_differs(assert_close, result, z, tolerance=1e-4)


def test_schedule_free_in_low_precision_keeps_types():
    tx = OPTIMIZERS["jorge"]
    wrapped = optax.contrib.schedule_free(tx, learning_rate=0.1, b1=0.9)
    gradients = [random_tree(seed, jnp.bfloat16) for seed in (1, 2, 3)]
    assert_steps_keep_types(wrapped, random_tree(0, jnp.bfloat16), gradients)


def test_complex_parameters_split_into_real_and_imaginary_parts():
    trees = [random_tree(seed, shapes={"w": (3, 2)}) for seed in range(6)]
    params, *gradients = zip(trees[:3], trees[3:], strict=True)

    def joined(parts):
        return jax.tree.map(jax.lax.complex, *parts)

    tx = OPTIMIZERS["jorge"]
    split = optax.contrib.split_real_and_imaginary(tx)
    result, _ = train(split, joined(params), [joined(g) for g in gradients])
    parts, _ = train(tx, params, gradients)
    assert_close(result, joined(parts))
    assert_differs(assert_close, result, joined(parts[::-1]))


def test_in_a_chain_with_clipping_and_ema():
    clip, ema = optax.clip_by_global_norm(1.0), optax.ema(0.9)
    parts = (clip, OPTIMIZERS["scale_by_jorge"], ema)
    chain = optax.chain(*parts)
    params = random_tree(0)
    chain_state = chain.init(params)
    states = [part.init(params) for part in parts]
    for grads in (random_tree(1), random_tree(2)):
        _, chain_state, updates = step_of(chain)(params, chain_state, grads)
        by_hand = grads
        for i, part in enumerate(parts):
            _, states[i], by_hand = step_of(part)(params, states[i], by_hand)
    assert_close(updates, by_hand)
    assert_differs(assert_close, nudged(updates), by_hand)


# Several devices.


def test_on_a_mesh_of_eight_devices():
    code = f"import {__name__} as tests; tests.check_on_a_mesh_of_eight_devices()"
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=pathlib.Path(__file__).parents[1],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


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
