"""What the update of ResNet-50 is lowered to for a GPU; no GPU is needed."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost.counts import count_products
from benchmarks.problems import shapes
from jorge_optax import from_adamw, jorge, scale_by_jorge
from tests.helpers.contract import random_trees

FORBIDDEN = re.compile(r"custom_call|cholesky|triangular_solve")
LOOP = re.compile(r"stablehlo\.(if|while)\b")  # a conditional of jax is a case


def lowered(update, *structs):
    traced = jax.jit(update).trace(*structs)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("recipe", "dtype"), [(jorge, "bfloat16"), (from_adamw, "float32")]
)
def test_resnet50_update_has_matmuls_and_one_conditional_only(recipe, dtype):
    params, optimizer = shapes.resnet(50, dtype=jnp.dtype(dtype)), recipe(0.1)
    state = jax.eval_shape(optimizer.init, params)
    text = lowered(optimizer.update, params, state, params)
    assert not FORBIDDEN.findall(text)
    assert not LOOP.findall(text)
    assert "dot_general" in text
    traced = jax.make_jaxpr(optimizer.update)(params, state, params)
    assert count_products(traced.jaxpr).conditionals == 1
    # The one choice by platform is the branch that keeps the roots.
    assert str(traced).count("platform_index") == 1


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
    assert str(traced).count("platform_index") == 1
    loop = lowered(lambda x: jax.lax.while_loop(jnp.all, jnp.sin, x), matrix)
    assert LOOP.findall(loop)


def first_to_use(optimizer, params):
    """The first operation of an update, and how many numbers of arrays it takes."""
    state = jax.eval_shape(optimizer.init, params)
    jaxpr = jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr
    equation = jaxpr.eqns[0]
    return equation.primitive.name, len(equation.invars), len(jaxpr.invars)


@pytest.mark.parametrize("make", [jorge, from_adamw, lambda _: scale_by_jorge()])
def test_an_update_begins_when_all_gradients_are_there(make):
    params = {"w": jax.ShapeDtypeStruct((6, 5), "float32"), "b": jnp.zeros(5)}
    name, taken, given = first_to_use(make(0.1), params)
    assert name == "optimization_barrier"
    assert taken == given - len(params) > 2  # parameters are there before
    assert first_to_use(optax.sgd(0.1), params)[0] != "optimization_barrier"


def test_a_large_count_is_not_rounded_by_the_dtype_of_a_schedule():
    """1001 % 50 is 0 in bfloat16."""
    optimizer = scale_by_jorge(update_interval=lambda _: jnp.bfloat16(50))
    params, gradient = random_trees(2, shapes={"w": (6, 5)})
    state = optimizer.init(params)
    for count, refreshed in ((1001, False), (1000, True), (16777217, False)):
        at = state._replace(count=jnp.int32(count))
        _, new = jax.jit(optimizer.update)(gradient, at)
        before, after = (x.roots.left["6x5"].unit for x in (state, new))
        assert jnp.array_equal(before, after) == (not refreshed)
