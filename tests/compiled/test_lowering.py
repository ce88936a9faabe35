"""What the update of ResNet-50 is lowered to for a GPU; no GPU is needed."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost.counts import count_products
from benchmarks.problems import shapes
from jorge_optax import jorge, scale_by_jorge

FORBIDDEN = re.compile(r"custom_call|cholesky|triangular_solve")
LOOP = re.compile(r"stablehlo\.(if|while)\b")  # a conditional of jax is a case


def lowered(update, *structs):
    traced = jax.jit(update).trace(*structs)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("platform_params", ["float32", "bfloat16"])
def test_resnet50_update_has_matmuls_and_two_conditionals_only(platform_params):
    params = shapes.resnet(50, dtype=jnp.dtype(platform_params))
    optimizer = jorge(0.1, 0.9, 1e-3)
    state = jax.eval_shape(optimizer.init, params)
    text = lowered(optimizer.update, params, state, params)
    assert not FORBIDDEN.findall(text)
    assert not LOOP.findall(text)
    assert "dot_general" in text
    traced = jax.make_jaxpr(optimizer.update)(params, state, params)
    # One refreshes; a GPU's one repairs numbers out of range.
    assert count_products(traced.jaxpr).conditionals == 2


def test_the_search_finds_what_it_looks_for():
    """Negative controls of the test above."""
    matrix = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    for function in (jnp.linalg.eigh, jnp.linalg.inv, jnp.linalg.cholesky):
        assert FORBIDDEN.findall(lowered(function, matrix))
    flag = jax.ShapeDtypeStruct((), jnp.bool_)

    def two_and_one_by_platform(p, x):
        chosen = jax.lax.platform_dependent(
            x,
            cpu=lambda x: jax.lax.cond(p, jnp.cosh, jnp.tan, x),
            default=lambda x: jax.lax.cond(p, jnp.sin, jnp.cos, x),
        )
        return chosen + jax.lax.cond(p, jnp.tan, jnp.cos, x)

    traced = jax.make_jaxpr(two_and_one_by_platform)(flag, matrix)
    assert count_products(traced.jaxpr).conditionals == 2
    loop = lowered(lambda x: jax.lax.while_loop(jnp.all, jnp.sin, x), matrix)
    assert LOOP.findall(loop)


def first_to_use(optimizer, params):
    """The first operation of an update, and how many numbers of arrays it takes."""
    state = jax.eval_shape(optimizer.init, params)
    jaxpr = jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr
    equation = jaxpr.eqns[0]
    return equation.primitive.name, len(equation.invars), len(jaxpr.invars)


@pytest.mark.parametrize("optimizer", [jorge(0.1, 0.9, 1e-3), scale_by_jorge()])
def test_an_update_begins_when_all_gradients_are_there(optimizer):
    params = {"w": jax.ShapeDtypeStruct((6, 5), "float32"), "b": jnp.zeros(5)}
    name, taken, given = first_to_use(optimizer, params)
    assert name == "optimization_barrier"
    assert taken == given - len(params) > 2  # parameters are there before
    assert first_to_use(optax.sgd(0.1), params)[0] != "optimization_barrier"


def test_state_is_allocated_without_padding():
    params = shapes.resnet(50)
    state = jax.eval_shape(scale_by_jorge().init, params)
    stacks = [roots.left.shape[0] for roots in state.roots.values()]
    assert len(stacks) <= 16
    preconditioned = sum(
        left.shape[0] * left.shape[1] * right.shape[1]
        for left, right in state.roots.values()
    )
    matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    assert preconditioned == sum(leaf.size for leaf in matrices)


@pytest.mark.parametrize("interval", [3, "traced", "schedule"])
def test_roots_are_bit_identical_between_refreshes(interval):
    def optimizer(k):
        forms = {"traced": k, "schedule": lambda count: jnp.where(count < 4, 1.0, 3.0)}
        return scale_by_jorge(update_interval=forms.get(interval, 3))

    due = {0, 1, 2, 3, 6, 9} if interval == "schedule" else {0, 3, 6, 9}
    state = optimizer(jnp.int32(3)).init(jnp.zeros((6, 5)))

    @jax.jit
    def update(gradient, state, k):
        return optimizer(k).update(gradient, state)

    for step in range(11):
        gradient = jax.random.normal(jax.random.key(step), (6, 5))
        before = state.roots
        _, state = update(gradient, state, jnp.int32(3))
        same = jax.tree.map(lambda a, b: bool((a == b).all()), before, state.roots)
        assert set(jax.tree.leaves(same)) == {step not in due}
    assert int(state.count) == 11


def test_an_interval_run_equals_a_run_on_the_refresh_gradients_only():
    gradients = [jax.random.normal(jax.random.key(i), (6, 5)) for i in range(9)]
    sparse, dense = scale_by_jorge(update_interval=4), scale_by_jorge(update_interval=1)
    state, dense_state = sparse.init(gradients[0]), dense.init(gradients[0])
    for gradient in gradients:
        _, state = sparse.update(gradient, state)
    for gradient in gradients[::4]:
        _, dense_state = dense.update(gradient, dense_state)
    for a, b in zip(
        jax.tree.leaves(state.roots), jax.tree.leaves(dense_state.roots), strict=True
    ):
        assert (a == b).all()
    _, other = dense.update(gradients[1], dense_state)
    assert not (other.roots["6x5"].left == state.roots["6x5"].left).all()


def test_a_large_count_is_not_rounded_by_the_dtype_of_a_schedule():
    """1001 % 50 is 0 in bfloat16."""
    optimizer = scale_by_jorge(update_interval=lambda _: jnp.bfloat16(50))
    gradient = jax.random.normal(jax.random.key(0), (6, 5))
    state = optimizer.init(gradient)
    for count, refreshed in ((1001, False), (1000, True), (16777217, False)):
        at = state._replace(count=jnp.int32(count))
        _, new = optimizer.update(gradient, at)
        assert (new.roots["6x5"].left != state.roots["6x5"].left).any() == refreshed


def test_optimizer_from_inject_hyperparams_changes_its_interval_on_the_fly():
    optimizer = optax.inject_hyperparams(scale_by_jorge)(update_interval=5)
    gradient = jax.random.normal(jax.random.key(0), (6, 5))
    state = optimizer.init(gradient)
    update = jax.jit(optimizer.update)
    _, state = update(gradient, state)
    _, kept = update(gradient, state)
    state.hyperparams["update_interval"] = jnp.asarray(1)
    _, refreshed = update(gradient, state)
    left = [optax.tree.get(s, "roots")["6x5"].left for s in (state, kept, refreshed)]
    assert (left[0] == left[1]).all()
    assert (left[0] != left[2]).any()
