"""Numbers and schedules as options: bad ones get a clear error, traced ones pass."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import jorge, lengths, scale_by_jorge
from tests.helpers.errors import arrays, differs, every_transformation, saying

NAN, INF = float("nan"), float("inf")

RATES: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "None": (None, TypeError, ("must be a number or a schedule", "got None")),
    "string": ("0.1", TypeError, ("must be a number or a schedule", "got '0.1'")),
    "negative": (-0.1, ValueError, ("at least 0", "got -0.1", "jorge subtracts")),
    "nan": (NAN, ValueError, ("must be finite", "got nan")),
    "infinite": (INF, ValueError, ("must be finite", "got inf")),
    "bool": (True, TypeError, ("must be a number or a schedule", "got True")),
    "transformation": (
        optax.sgd(0.1),
        TypeError,
        ("got an optax transformation", "Pass the arguments that it was made with"),
    ),
    "factory": (optax.sgd, TypeError, ("a function of the step", "one number")),
    "list": ([0.1], TypeError, ("must be a number or a schedule", "got [0.1]")),
    "negative schedule": (
        optax.constant_schedule(-0.1),
        ValueError,
        ("at least 0", "got -0.1 at step 0 of its schedule"),
    ),
    "schedule of vectors": (
        lambda step: jnp.ones(3),
        TypeError,
        ("a function of the step", "one number", "(3,)"),
    ),
    "mask": (
        lambda path, shape: 0.1,
        TypeError,
        ("a function of the step", "calling it with step 0 failed"),
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_learning_rate_must_be_a_number_or_a_schedule(name):
    rate, error, parts = RATES[name]
    with pytest.raises(error, match=saying("learning_rate", *parts)):
        jorge(rate)


INTERVALS = {
    "learning rate": (optax.cosine_decay_schedule(0.1, 90), "got 0.1 at step 0"),
    "warm-up": (optax.linear_schedule(0.0, 0.1, 90), "got 0 at step 0"),
    "zero": (lambda step: 0, "got 0 at step 0"),
    "zero later": (optax.linear_schedule(10, 0, 900), "got 0 at step 1000"),
    "nan": (lambda step: NAN, "got nan at step 0"),
}


@every_transformation
@pytest.mark.parametrize("name", INTERVALS)
def test_a_schedule_of_intervals_must_be_one(make, name):
    schedule, found = INTERVALS[name]
    message = saying(
        "update_interval must be at least 1 at every step",
        found,
        "is not a learning-rate schedule",
        "growing_interval_schedule(50)",
    )
    with pytest.raises(ValueError, match=message):
        make(update_interval=schedule)


@pytest.mark.parametrize("option", ["momentum", "weight_decay", "eps", "damping"])
def test_options_without_schedules_name_the_way_to_schedule_them(option):
    schedule = optax.linear_schedule(0.5, 0.9, 10)
    message = saying(
        f"{option} must be a number, got a function",
        f"optax.inject_hyperparams(jorge)(..., {option}=schedule)",
    )
    with pytest.raises(TypeError, match=message):
        jorge(0.1, **{option: schedule})
    optax.inject_hyperparams(jorge)(0.1, **{option: schedule}).init(arrays(w=(3, 2)))


@every_transformation
@pytest.mark.parametrize("eps", [0, 0.0, -1e-6, NAN, INF, -INF, True])
def test_eps_must_be_positive_and_finite(make, eps):
    with pytest.raises(
        ValueError,
        match=saying("eps must be positive and finite", f"got {eps}", "1e-6"),
    ):
        make(eps=eps)


@every_transformation
@pytest.mark.parametrize(
    ("eps", "root_dtype"), [(1e-300, "float32"), (1e40, "bfloat16")]
)
def test_eps_must_fit_the_dtype_of_the_roots(make, eps, root_dtype):
    message = saying(
        f"eps must be a normal number of root_dtype {root_dtype}",
        f"got {eps}",
        "Every root starts as eps**(-1/4)",
    )
    with pytest.raises(ValueError, match=message):
        make(eps=eps, root_dtype=root_dtype)


@pytest.mark.usefixtures("x64")
def test_eps_may_be_smaller_in_float64():
    optimizer = scale_by_jorge(eps=1e-300, root_dtype="float64")
    roots = optimizer.init({"w": jnp.zeros((2, 2))}).roots["2x2"]
    assert abs(float(roots.left[0, 0, 0]) / 1e75 - 1) < 1e-12


@every_transformation
@pytest.mark.parametrize("damping", [-1e-6, NAN, INF, 1e38, True])
def test_damping_must_be_finite_and_not_negative(make, damping):
    with pytest.raises(
        ValueError,
        match=saying("damping must be finite and at least 0", f"got {damping}"),
    ):
        make(damping=damping)


@every_transformation
@pytest.mark.parametrize("interval", [0, -3, 2.5, 0.5, -INF, 2**40, 2**31, True])
def test_update_interval_must_be_a_positive_integer(make, interval):
    with pytest.raises(
        ValueError,
        match=saying(
            "update_interval must be an integer of at least 1 and below 2**31, or a "
            "schedule of the step",
            f"got {interval}",
            "pass 1 to refresh them at every step",
        ),
    ):
        make(update_interval=interval)


@pytest.mark.parametrize("interval", [NAN, INF])
def test_update_interval_must_be_finite(interval):
    with pytest.raises(ValueError, match=saying("update_interval", f"got {interval}")):
        jorge(0.1, update_interval=interval)


@pytest.mark.parametrize("momentum", [1, 1.0, 1.5, -0.1, NAN, INF, True])
def test_momentum_must_lie_between_zero_and_one(momentum):
    with pytest.raises(
        ValueError,
        match=saying("momentum must lie in [0, 1)", f"got {momentum}", "0.9 is usual"),
    ):
        jorge(0.1, momentum=momentum)


@pytest.mark.parametrize("weight_decay", [-1e-4, NAN, INF])
def test_weight_decay_must_not_be_negative(weight_decay):
    with pytest.raises(
        ValueError,
        match=saying(
            "weight_decay must be finite and at least 0", f"got {weight_decay}"
        ),
    ):
        jorge(0.1, weight_decay=weight_decay)


BY_INTEGER = {
    "learning_rate": lambda value: jorge(value),
    "weight_decay": lambda value: jorge(0.1, weight_decay=value),
    "SGD.scale": lambda value: jorge(0.1, grafting=lengths.SGD(scale=value)),
    "Adam.scale": lambda value: jorge(0.1, grafting=lengths.Adam(scale=value)),
    "Adam.eps": lambda value: jorge(0.1, grafting=lengths.Adam(eps=value)),
    "Shape.others": lambda value: jorge(0.1, grafting=lengths.Shape(others=value)),
}


@pytest.mark.parametrize("kind", [int, np.int64])
@pytest.mark.parametrize("option", BY_INTEGER)
def test_integers_that_int32_does_not_hold_are_numbers(option, kind):
    params = arrays(w=(3, 2), b=(3,))

    def step(value):
        optimizer = BY_INTEGER[option](value)
        return jax.jit(optimizer.update)(params, optimizer.init(params), params)[0]

    expected = step(2.0**32)
    chex.assert_trees_all_equal(step(kind(2**32)), expected)
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(expected))
    differs(*(jax.tree.map(lambda x: x / scale, t) for t in (step(2.0**33), expected)))


@pytest.mark.parametrize("option", ["eps", "damping", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", ["1e-6", None])
def test_options_that_are_no_numbers(option, value):
    with pytest.raises(TypeError, match=saying(f"{option} must be a number", "got")):
        jorge(0.1, **{option: value})


# Traced values pass.


def test_schedules_over_traced_values_pass():
    def train(rate):
        optimizer = jorge(lambda count: rate / (1 + count), update_interval=interval)
        return optimizer.update(params, optimizer.init(params))[0]

    def interval(count):
        return jnp.where(count < 2, 1, 3)

    params = arrays(w=(3, 2))
    chex.assert_trees_all_close(jax.jit(train)(0.1), train(0.1))
    differs(jax.jit(train)(0.2), train(0.1))


def test_traced_values_pass():
    params = arrays(w=(4, 3), b=(2,))
    gradients = [arrays(w=(4, 3), b=(2,)), jax.tree.map(jnp.cos, params)]

    def train(numbers):
        optimizer = jorge(**numbers)
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
        return updates

    numbers = {
        "learning_rate": 0.1,
        "momentum": 0.8,
        "weight_decay": 0.01,
        "eps": 1e-3,
        "update_interval": 1,
        "damping": 1e-3,
    }
    traced = jax.jit(train)
    concrete = jax.jit(lambda: train(numbers))()
    chex.assert_trees_all_close(traced(numbers), concrete, rtol=1e-5)
    for name, other in {"eps": 1.0, "momentum": 0.5, "update_interval": 2}.items():
        differs(traced({**numbers, name: other}), concrete)
