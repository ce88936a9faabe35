"""Jorge in optax's wrappers, and under optax's utilities."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from jorge_optax import graft, jorge
from tests.helpers.contract import (
    KINDS,
    OPTIMIZERS,
    TABLE,
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
