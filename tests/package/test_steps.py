"""The two ways to a step: guards one after another, and in one pass, as on a GPU."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Whitening, _steps, jorge
from tests.helpers.lengths import norm64
from tests.helpers.trees import differs, tree

RULES = {
    "series": BinomialSeries(),
    "momentum": BinomialSeries(preconditions="momentum"),
    "nesterov": BinomialSeries(preconditions="nesterov"),
    "whitening": Whitening(),
}
# Scales of the gradients of consecutive steps.
SEQUENCES = {
    "as usual": (1.0,) * 6,
    "from 1e-30 to 1e9": (1e-30, 1e9, 1e9),
    "from 1e-37 to 100": (1e-37, 100, 100),
    "from 1 to 1e37": (1, 1e37, 1e37, 1e37),
    "from 1e37 to 1e-36": (1e37, 1e-36, 1e-36),
    "up": tuple(10.0**k for k in range(-36, 38, 6)),
    "down": tuple(10.0**k for k in range(36, -38, -6)),
    "with zeros": (0, 1e-30, 0, 1e30, 0, 0, 1),
    "1e-37 without a refresh": (0, 1e-37),
}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Runs what GPUs run; what is traced meanwhile stays so."""

    def default(*args, **platforms):
        return platforms["default"](*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", default)


PARAMS = {"matrix": jnp.zeros((6, 4)), "bias": jnp.zeros(5)}
# Quick to compile rather than quick to run.
QUICK = {"xla_backend_optimization_level": 0}


def runner(optimizer):
    """A function of scales: steps and states of such gradients, and SGD's steps."""
    sgd = optax.trace(0.9)
    update = jax.jit(optimizer.update, compiler_options=QUICK)

    def run(scales):
        state, sgd_state = optimizer.init(PARAMS), sgd.init(PARAMS)
        rng, found = np.random.default_rng(0), []
        for scale in scales:
            gradient = {
                key: jnp.asarray(scale * rng.uniform(-1, 1, size=x.shape), "f4")
                for key, x in PARAMS.items()
            }
            step, state = update(gradient, state)
            expected, sgd_state = sgd.update(gradient, sgd_state)
            found.append((step, state, expected))
        return found

    return run


def assert_as_long_as_sgds(found):
    for step, state, expected in found:
        chex.assert_tree_all_finite((step, state))
        for own, sgds in zip(*map(jax.tree.leaves, (step, expected)), strict=True):
            least = float(jnp.finfo(jnp.float32).tiny) * np.sqrt(own.size)
            assert abs(norm64(own) - norm64(sgds)) <= 1e-5 * norm64(sgds) + least


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("rule", RULES)
def test_one_pass_keeps_sgds_length_at_any_scale(rule):
    run = runner(jorge(1.0, rule=RULES[rule]))
    for sequence in SEQUENCES.values():
        assert_as_long_as_sgds(run(sequence))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_without_the_repair_scales_break_the_state(monkeypatch):
    """The negative control."""
    monkeypatch.setattr(
        jax.lax, "cond", lambda _, keep, repair, *operands: keep(*operands)
    )
    run = runner(jorge(1.0))
    with pytest.raises(AssertionError):
        assert_as_long_as_sgds(run(SEQUENCES["from 1 to 1e37"]))


@pytest.mark.parametrize("rule", RULES)
def test_both_ways_take_the_same_steps(rule, request):
    optimizer = jorge(0.1, rule=RULES[rule], update_interval=2)
    sequence = (1.0, 0.5, 0, 3.0, 1e-3, 0, 1.0)
    with_guards = runner(optimizer)(sequence)
    request.getfixturevalue("as_on_a_gpu")
    in_one_pass = runner(optimizer)(sequence)
    close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=1e-7)
    close(with_guards, in_one_pass)
    differs(close, with_guards[0], with_guards[-1])


@pytest.fixture
def repairs(monkeypatch):
    """Counts the repairs that are run."""
    found = []
    repair = _steps._repair_lengths

    def counted(*args):
        jax.debug.callback(lambda: found.append(1))
        return repair(*args)

    monkeypatch.setattr(_steps, "_repair_lengths", counted)
    return found


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("rule", RULES)
def test_zero_gradients_need_no_repair(rule, repairs):
    """Tiles of an embedding without a token, idle tiles, parameters out of use."""
    run = runner(jorge(1.0, rule=RULES[rule]))
    run((0, 0, 1.0, 0, 0, 2.0))
    jax.effects_barrier()
    assert not repairs
    run((1.0, 1e30))
    jax.effects_barrier()
    assert repairs


def averaged(root, momentum=0.9):
    """Momenta after a step by an ascending direction, in both ways."""
    rng = np.random.default_rng(0)
    gradient, old = (jnp.asarray(rng.normal(size=(2, 3, 4)), "f4") for _ in range(2))
    step = _steps.Step(
        gradients={"": gradient},
        matrices={"": gradient},
        made={"": root * gradient},
        old={"": old},
        new=None,
        length=optax.TraceState({"": old}),
    )

    def guard(matrices, made):
        good = jnp.sum(matrices[""] * made[""], (1, 2), keepdims=True) > 0
        good &= jnp.isfinite(made[""]).all((1, 2), keepdims=True)
        return {"": jnp.where(good, made[""], 2 * matrices[""])}

    def measure(state, gradients, momenta):
        del momenta
        return optax.trace(momentum).update(gradients, state)

    expected = momentum * old + (1 - momentum) * guard(step.matrices, step.made)[""]
    _, momenta, _ = _steps.take_in_one_pass(step, momentum, measure, guard)
    return momenta[""], expected, 2 * (1 - momentum) * gradient


def test_the_momentum_survives_a_direction_that_is_replaced():
    close = chex.assert_trees_all_close
    for root in (1.0, -1.0, jnp.asarray([1.0, -30.0])[:, None, None]):
        momenta, expected, _ = averaged(root)
        close(momenta, expected, rtol=1e-4, atol=1e-5)
    # Of a direction that is far too large, or infinite, nothing remains.
    for root in (-1e20, jnp.inf):
        momenta, expected, alone = averaged(root)
        close(momenta, alone, rtol=1e-6)
        differs(functools.partial(close, rtol=1e-2), momenta, expected)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_one_pass_can_be_differentiated_and_mapped():
    optimizer = jorge(0.1, update_interval=1)
    gradient = {"matrix": tree(1)["matrix"]}
    state = optimizer.init(gradient)

    def step(scale):
        scaled = jax.tree.map(lambda x: scale * x, gradient)
        return optimizer.update(scaled, state)[0]["matrix"]

    slope = jax.jacrev(step)(1.0)
    difference = (step(1.01) - step(0.99)) / 0.02
    chex.assert_trees_all_close(slope, difference, rtol=1e-2, atol=1e-4)
    chex.assert_trees_all_close(
        jax.vmap(step)(jnp.asarray([1.0, 2.0]))[1], step(2.0), rtol=1e-5
    )
