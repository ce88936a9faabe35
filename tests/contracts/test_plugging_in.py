"""What trainers ask of an optimizer from outside, without the trainers."""

import dataclasses
import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix
import pytest

from jorge_optax import JorgeState, Tiling, Whitening, from_adamw, jorge
from tests.helpers.contract import (
    assert_agrees,
    assert_close,
    assert_differs,
    each,
    random_tree,
    random_trees,
    train,
)


@each()
def test_a_transformation_is_hashable_and_fits_a_frozen_configuration(tx):
    assert {tx: "as a key"}[tx] == "as a key"
    holder = dataclasses.make_dataclass("Holder", ["optimizer"], frozen=True)
    assert hash(holder(tx)) == hash(holder(tx))
    assert holder(tx) == holder(tx)


# Trainers read a key of digits as a position in a chain, and these as Adam's moments.
RESERVED = {"mu", "nu"}


def own_keys(state):
    """Names of what our states keep, down to arrays; not of the state of others."""

    def is_own(node):
        return isinstance(node, JorgeState)

    def without_others(node):
        return node._replace(others=()) if is_own(node) else node

    own = jax.tree.map(without_others, state, is_leaf=is_own)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(own)[0]]
    keys = (key for path in paths for key in path if not hasattr(key, "idx"))
    return {jax.tree_util.keystr((key,), simple=True) for key in keys}


@each()
def test_keys_of_our_states_are_never_digits_or_moments_of_adam(tx):
    keys = own_keys(tx.init(random_tree(0)))
    assert {"roots", "left", "unit"} <= keys
    assert not {key for key in keys if key.isdigit()} | keys & RESERVED


def test_reserved_keys_would_be_found():
    state = optax.adam(0.1).init({"0": jnp.ones(2)})
    assert RESERVED | {"0"} <= own_keys(state)


# One nested call, as in kauldron's files of configuration.
NESTED: dict[str, Any] = {
    "name": "jorge_optax.from_adamw",
    "learning_rate": {
        "name": "optax.warmup_cosine_decay_schedule",
        "init_value": 0.0,
        "peak_value": 0.05,
        "warmup_steps": 2,
        "decay_steps": 9,
    },
    "rule": {"name": "jorge_optax.Whitening", "beta2": 0.8},
    "tiling": {"name": "jorge_optax.Tiling", "max_dim": 4},
}


def resolve(config):
    if not isinstance(config, dict):
        return config
    arguments = {key: resolve(value) for key, value in config.items() if key != "name"}
    module, _, name = config["name"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


def test_one_nested_call_returns_the_transformation():
    params, *gradients = random_trees(4)
    tx = resolve(NESTED)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, 2, 9)
    options = dict(rule=Whitening(0.8), tiling=Tiling(4))
    expected = train(from_adamw(schedule, **options), params, gradients)
    assert_agrees(train(tx, params, gradients), expected)
    other = resolve(NESTED | {"tiling": None})
    assert_differs(assert_close, train(other, params, gradients)[0], expected[0])


# Optimistix keeps a transformation as a pytree: functions, and the arrays in them.
RATED: dict[str, Any] = {"adam": optax.adam, "jorge": jorge, "from_adamw": from_adamw}
rated = pytest.mark.parametrize("name", RATED)
TARGET = jnp.arange(6.0).reshape(3, 2) / 5
START = {"w": jnp.zeros((3, 2))}
STEPS = 12


def distance(params, target):
    return jnp.sum((params["w"] - target) ** 2)


def solver_of(tx):
    return optimistix.OptaxMinimiser(tx, rtol=1e-9, atol=1e-9)


def solve(solver, start=START, loss=distance):
    options: Any = dict(args=TARGET, max_steps=STEPS, throw=False)
    return optimistix.minimise(loss, solver, start, **options).value


def by_hand(tx):
    """The same minimisation, in a plain loop."""

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(distance)(params, TARGET), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (START, tx.init(START)), length=STEPS)[0][0]


@rated
def test_optimistix_minimises_inside_jit_outside_and_as_an_argument(name):
    tx = RATED[name](0.02)
    solver, expected = solver_of(tx), by_hand(tx)
    outside = solve(solver)
    inside = jax.jit(lambda start: solve(solver, start))(START)
    for result in (outside, inside, eqx.filter_jit(solve)(solver)):
        assert_agrees(result, expected, tolerance=1e-3)
    other = by_hand(RATED[name](0.01))
    assert_differs(assert_close, outside, other, tolerance=1e-3)


@rated
def test_optimistix_does_not_trace_a_new_rate_again(name):
    traced = []

    def counted(params, target):
        traced.append(1)
        return distance(params, target)

    solve_any = eqx.filter_jit(lambda solver: solve(solver, loss=counted))
    for rate in (0.01, 0.02):
        result = solve_any(solver_of(RATED[name](jnp.float32(rate))))
        assert_agrees(result, by_hand(RATED[name](rate)), tolerance=1e-3)
        assert len(traced) == 1
