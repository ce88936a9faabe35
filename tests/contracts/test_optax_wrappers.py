"""Jorge in optax's wrappers, under its utilities, and made of its pieces."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from jorge_optax import Numerics, Tiling, graft, jorge, scale_by_jorge
from tests.helpers.contract import (
    OPTIMIZERS,
    TABLE,
    assert_agrees,
    assert_close,
    assert_differs,
    assert_same_types,
    assert_steps_keep_types,
    each,
    nudged,
    random_trees,
    step_of,
    train,
)


@each()
def test_map_params_of_the_identity_is_the_identity(tx):
    params, grads = random_trees(2)
    _, state = train(tx, params, [grads])
    mapped = optax.tree.map_params(tx, lambda x: x, state)
    chex.assert_trees_all_equal(mapped, state)
    assert_same_types(mapped, state)
    assert_differs(chex.assert_trees_all_equal, nudged(mapped), state)


LABELS = {
    "dense": {"kernel": "train", "bias": "freeze"},
    "conv": "freeze",
    "scale": "train",
}
TRAINED, FROZEN = (
    jax.tree.map(lambda label, own=own: label == own, LABELS)
    for own in ("train", "freeze")
)


def select(tree, mask):
    """The leaves of the tree where the mask is true."""
    leaves, kept = jax.tree.leaves(tree), jax.tree.leaves(mask)
    return [leaf for leaf, keep in zip(leaves, kept, strict=True) if keep]


@each("jorge", "from_adamw", "graft")
def test_masked_and_partition_train_a_part_as_if_alone(tx):
    params, *gradients = trees = random_trees(4)
    expected, state_alone = train(
        tx, select(params, TRAINED), [select(g, TRAINED) for g in gradients]
    )
    masked, _ = train(optax.masked(tx, TRAINED), params, gradients)
    assert_agrees(select(masked, TRAINED), expected)
    # What is masked passes through as it is.
    passed = jax.tree.map(lambda *leaves: sum(leaves), *trees)
    assert_agrees(select(masked, FROZEN), select(passed, FROZEN))

    parts: Any = {"train": tx, "freeze": optax.set_to_zero(), "of no leaf": tx}
    result, state = train(optax.partition(parts, LABELS), params, gradients)
    chex.assert_trees_all_equal(select(result, FROZEN), select(params, FROZEN))
    own = jax.tree.leaves(state.inner_states["train"])
    ours = select(result, TRAINED), own
    assert_agrees(ours, (expected, jax.tree.leaves(state_alone)))


@each("jorge", "from_adamw", "scale_by_jorge")
def test_multi_steps_equals_steps_with_mean_gradients(tx):
    params, *gradients = random_trees(7)
    means = [
        jax.tree.map(lambda *leaves: sum(leaves) / 3, *gradients[i : i + 3])
        for i in (0, 3)
    ]
    accumulated = optax.MultiSteps(tx, every_k_schedule=3)
    result, state = train(accumulated, params, gradients)
    assert_same_types(state, accumulated.init(params))
    expected = train(tx, params, means)
    assert_agrees((result, state.inner_opt_state), expected, tolerance=1e-4)


# Numbers that are traced change the program, and so its rounding, which roots in
# bfloat16 would show.
WIDE = {**TABLE["all_options"][1], "numerics": Numerics()}
INJECTED = TABLE | {"all_options": (jorge, WIDE)}


@pytest.mark.parametrize("name", INJECTED)
def test_inject_hyperparams_without_static_args(name):
    factory, kwargs = INJECTED[name]
    params, *gradients = random_trees(4)
    tx = optax.inject_hyperparams(factory)(**kwargs)
    result, state = train(tx, params, gradients)
    assert_same_types(state, tx.init(params))
    expected = train(factory(**kwargs), params, gradients)
    assert_agrees((result, state.inner_state), expected, tolerance=1e-4)


def test_injected_hyperparams_take_effect_without_compiling_again():
    params, *gradients = random_trees(3)
    tx = optax.inject_hyperparams(jorge)(learning_rate=0.1, update_interval=1)
    step = step_of(tx)
    params, state, _ = step(params, tx.init(params), gradients[0])

    def second(**changes):
        hyperparams = state.hyperparams | {
            key: jnp.full_like(state.hyperparams[key], value)
            for key, value in changes.items()
        }
        changed = state._replace(hyperparams=hyperparams)
        _, after, updates = step(params, changed, gradients[1])
        return updates, optax.tree.get(after, "roots")

    updates, roots = second()
    compiled = step._cache_size()
    assert_agrees(second(learning_rate=0.2)[0], jax.tree.map(lambda u: 2 * u, updates))
    old_roots = optax.tree.get(state, "roots")
    _, kept = second(update_interval=5)
    chex.assert_trees_all_equal(kept, old_roots)
    assert_differs(chex.assert_trees_all_equal, roots, old_roots)
    assert step._cache_size() == compiled


def rate(count):
    return 0.1 / (1 + count)


SCHEDULES = {
    "constant": (optax.constant_schedule(0.1), optax.constant_schedule(2)),
    "changing": (rate, lambda count: jnp.where(count < 2, 1, 3)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_injected_or_not_equal_one_another(name):
    params, *gradients = random_trees(5)
    schedule, interval = SCHEDULES[name]

    def trained(factory, schedule, interval):
        tx = factory(schedule, update_interval=interval)
        result, state = train(tx, params, gradients)
        return result, optax.tree.get(state, "roots")

    ours = trained(optax.inject_hyperparams(jorge), schedule, interval)
    assert_agrees(ours, trained(jorge, schedule, interval), tolerance=1e-4)
    if name == "constant":
        assert_agrees(ours, trained(jorge, 0.1, 2), tolerance=1e-4)


@each("jorge", "from_adamw")
def test_apply_if_finite_forgets_a_bad_gradient(tx):
    params, *gradients = random_trees(4)
    poisoned = gradients[0] | {"conv": jnp.full((2, 3, 4), jnp.nan)}
    safe = optax.apply_if_finite(tx, max_consecutive_errors=2)
    result, state = train(safe, params, [gradients[0], poisoned, *gradients[1:]])
    assert state.total_notfinite == 1
    assert_agrees((result, state.inner_state), train(tx, params, gradients))


def test_schedule_free_equals_its_recursion_written_out():
    learning_rate, b1 = 0.1, 0.7
    base = OPTIMIZERS["jorge"]
    params, *gradients = random_trees(6)
    wrapped = optax.contrib.schedule_free(base, learning_rate, b1=b1)
    result, state = train(wrapped, params, gradients)

    x, y, z = params, params, params
    base_state = base.init(params)
    for t, grads in enumerate(gradients):
        _, base_state, updates = step_of(base)(y, base_state, grads)
        z = optax.apply_updates(z, updates)
        x = jax.tree.map(lambda x, z, t=t: x + (z - x) / (t + 1), x, z)
        y = jax.tree.map(lambda x, z: b1 * x + (1 - b1) * z, x, z)
    evaluated = optax.contrib.schedule_free_eval_params(state, result)
    ours = result, evaluated, state.base_optimizer_state
    assert_agrees(ours, (y, x, base_state), tolerance=1e-4)

    params, *gradients = random_trees(3, jnp.bfloat16)
    assert_steps_keep_types(wrapped, params, gradients)


def test_complex_parameters_split_into_real_and_imaginary_parts():
    trees = random_trees(6, shapes={"w": (3, 2)})
    params, *gradients = zip(trees[:3], trees[3:], strict=True)

    def joined(parts):
        return jax.tree.map(jax.lax.complex, *parts)

    tx = OPTIMIZERS["jorge"]
    split = optax.contrib.split_real_and_imaginary(tx)
    result, _ = train(split, joined(params), [joined(g) for g in gradients])
    parts, _ = train(tx, params, gradients)
    assert_close(result, joined(parts))
    assert_differs(assert_close, result, joined(parts[::-1]))


# jorge is what its pieces make: graft, scale_by_jorge and transformations of optax.

MOMENTUM, DECAY = 0.8, 0.05


def matrices(params):
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, params)


def labels(params):
    return jax.tree.map(lambda own: "matrix" if own else "rest", matrices(params))


def direction(**options):
    return optax.chain(
        scale_by_jorge(update_interval=3, **options),
        optax.ema(MOMENTUM, debias=False),
    )


def then_decay_and_rate(step):
    return optax.chain(
        step,
        optax.add_decayed_weights(DECAY, matrices),
        optax.scale_by_learning_rate(rate),
    )


# By SGD's length each parameter of one tile is grafted as a whole.
GRAFTED = graft(optax.trace(MOMENTUM), direction())
SGD = {"matrix": GRAFTED, "rest": optax.trace(MOMENTUM)}
IN_TILES = then_decay_and_rate(direction(tiling=Tiling(3)))
OTHERS = {"matrix": IN_TILES, "rest": optax.adamw(0.3)}
WHOLE_AND_PIECES: dict[str, Any] = {
    "sgd": ({}, then_decay_and_rate(optax.partition(SGD, labels))),
    "none": (dict(grafting=None, tiling=Tiling(3)), IN_TILES),
    "others": (
        dict(grafting=None, tiling=Tiling(3), others=optax.adamw(0.3)),
        optax.partition(OTHERS, labels),
    ),
}


@pytest.mark.parametrize("name", WHOLE_AND_PIECES)
def test_jorge_equals_its_explicit_form(name):
    options, pieces = WHOLE_AND_PIECES[name]
    params, *gradients = random_trees(7, shapes={"kernel": (6, 4), "bias": (4,)})
    tx = jorge(rate, MOMENTUM, DECAY, matrices, **{"update_interval": 3} | options)
    result, _ = train(tx, params, gradients)
    expected, _ = train(pieces, params, gradients)
    assert_agrees(result, expected, tolerance=1e-4)


def test_leaves_without_roots_take_sgd_steps():
    shapes = {"bias": (5,), "scale": (), "column": (7, 1), "left": (4, 4)}
    params, *gradients = random_trees(5, shapes=shapes)
    without = jorge(rate, MOMENTUM, tiling=Tiling(leave_out=("left",)))
    expected, _ = train(optax.sgd(rate, MOMENTUM), params, gradients)
    assert_agrees(train(without, params, gradients)[0], expected)
    with_roots, _ = train(jorge(rate, MOMENTUM), params, gradients)
    assert_differs(assert_close, with_roots, expected)
