"""Each optimizer of the table: types, compilations, transformations of JAX."""

import functools

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from jorge_optax import jorge, lengths
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


@each()
def test_updates_have_the_dtype_of_gradients_and_state_never_drifts(tx, dtype):
    params, *gradients = random_trees(4, dtype)
    assert_steps_keep_types(tx, params, gradients)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    from_structs = tx.init(structs)
    assert_same_types(jax.tree.map(jnp.asarray, from_structs), tx.init(params))
    chex.assert_trees_all_equal(from_structs, tx.init(params))


DRIFTS = {
    "narrow": lambda state: state.astype(jnp.bfloat16),
    "weak": lambda state: jnp.asarray(1.0),
    "grows": lambda state: jnp.stack([state, state]),
}


@pytest.mark.parametrize("fault", DRIFTS)
def test_a_drifting_state_would_be_noticed(fault):
    tx = optax.GradientTransformation(
        lambda params: jnp.zeros([], jnp.float32),
        lambda updates, state, params=None: (updates, DRIFTS[fault](state)),
    )
    params, *gradients = random_trees(3)
    with pytest.raises(AssertionError, match="shapes: |types: |True"):
        assert_steps_keep_types(tx, params, gradients)


@each()
def test_four_steps_compile_once_and_ignore_extra_arguments(tx):
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    params, *gradients = random_trees(5)
    update = jax.jit(lambda *a: tx.update(*a, value=jnp.ones([]), unheard_of=1))
    state, trained = tx.init(params), params
    for grads in gradients:
        updates, state = update(grads, state, trained)
        trained = optax.apply_updates(trained, updates)
    assert update._cache_size() == 1
    assert_agrees((trained, state), train(tx, params, gradients))


def assert_abstract_update_keeps_types(tx, params, grads):
    state = jax.eval_shape(tx.init, params)
    updates, after = jax.eval_shape(tx.update, grads, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)


@each("jorge", "from_adamw", "all_options")
def test_dtypes_may_differ_between_gradients_parameters_and_leaves(tx):
    narrow, wide = (random_tree(0, dtype) for dtype in ("bfloat16", "float32"))
    mixed = wide | {"dense": narrow["dense"]}
    for params, grads in ((narrow, wide), (wide, narrow), (mixed, mixed)):
        assert_abstract_update_keeps_types(tx, params, grads)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grafting", ["sgd", None, lengths.Adam(), lengths.Shape()])
def test_float64_gradients_do_not_widen_the_state_of_float32_parameters(grafting):
    tx = jorge(0.1, 0.9, 0.01, grafting=grafting)
    params, grads = random_tree(0, "float32"), random_tree(1, "float64")
    assert_abstract_update_keeps_types(tx, params, grads)


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
    assert_agrees(updates, expected, tolerance=2**-8)
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


def scan(tx, params, gradients):
    def body(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(body, (params, tx.init(params)), gradients)[0]


@each()
def test_scan_over_steps_equals_a_loop(tx):
    params, *gradients = random_trees(6)
    scanned = jax.jit(functools.partial(scan, tx))(params, stacked(gradients))
    assert_agrees(scanned, train(tx, params, gradients))


@each("jorge", "from_adamw")
def test_vmap_over_an_ensemble_equals_each_member_alone(tx):
    trees = [[random_tree(10 * m + t) for t in range(4)] for m in range(2)]
    params, *gradients = map(stacked, zip(*trees, strict=True))
    result = jax.jit(jax.vmap(functools.partial(scan, tx), in_axes=(0, 1)))(
        params, stacked(gradients)
    )
    alone = stacked([train(tx, own, grads) for own, *grads in trees])
    assert_agrees(result, alone)


def test_vmap_over_hyperparameters_equals_each_alone():
    params, *gradients = random_trees(4)
    settings = jnp.array([[0.1, 0.8, 0.1, 1.0], [0.05, 0.9, 0.0, 2.0]])

    @jax.jit
    @jax.vmap
    def trained(setting):
        rate, momentum, decay, interval = setting
        tx = jorge(rate, momentum, decay, update_interval=interval)
        return scan(tx, params, stacked(gradients))[0]

    def alone(rate, momentum, decay, interval):
        tx = jorge(rate, momentum, decay, update_interval=int(interval))
        return train(tx, params, gradients)[0]

    expected = stacked([alone(*map(float, setting)) for setting in settings])
    assert_agrees(trained(settings), expected)


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
    assert_agrees((params, state), expected)


def test_the_direction_needs_no_parameters():
    tx = OPTIMIZERS["scale_by_jorge"]
    params, grads = random_trees(2)
    given, without = (
        jax.jit(tx.update)(grads, tx.init(params), own) for own in (params, None)
    )
    chex.assert_trees_all_equal(given, without)
    assert_differs(chex.assert_trees_all_equal, given, nudged(without))
