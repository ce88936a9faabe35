"""Recipes: what they derive from a tuned run, what they print, and what runs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Tiling,
    Whitening,
    describe,
    from_adamw,
    from_scratch,
    from_sgd,
    from_sgd_as_published,
    jorge,
    lengths,
    scale_by_jorge,
    tuning,
    views,
)
from tests.helpers.trees import QUICK, arrays, close, differs, saying, structs

COSINE = optax.cosine_decay_schedule(0.1, 1000)
# One stack of two tiles, and one parameter without roots.
PARAMS = {"dense": (6, 4), "conv": (2, 1, 3, 4), "bias": (5,)}
EMBEDDINGS = ("wte", "pos_emb", "patch_embed", "position")
LAST_LAYERS = ("lm_head", "head")


def rates(tx, steps, length="sgd"):
    """The learning rate of each step, by the steps of a bias."""

    def run(tx):
        def step(state, _):
            update, state = tx.update(bias, state, 0 * bias)
            return state, update

        return jax.lax.scan(step, tx.init(bias), length=steps)[1]

    bias = jnp.ones(1)
    unit = jorge(1.0, grafting=length)
    return np.asarray(jax.jit(lambda: run(tx) / run(unit))()).ravel()


# The paper's appendix: rate and decay of SGD, epochs, of these warm-up, decays.
PAPER = {
    "ResNet-50, batch 1024": (0.4, 1e-4, 90, 5, (30, 60)),
    "DeepLabv3": (0.02, 1e-4, 30, 0, (10, 20)),
    "Mask R-CNN": (0.02, 1e-4, 26, 0, (8, 16)),
}


@pytest.mark.parametrize("benchmark", PAPER)
def test_the_papers_table_for_jorge_follows_from_its_table_for_sgd(benchmark):
    rate, decay, epochs, warmup, decays = PAPER[benchmark]
    options = {"epochs": epochs, "steps_per_epoch": 7, "warmup_steps": 7 * warmup}
    tx = from_sgd_as_published(rate, 0.9, decay, **options)
    first, second = (7 * epoch for epoch in decays)
    assert f"divides by ten at steps {first} and {second}." in str(tx)
    lines = {"momentum         0.9", "weight_decay     0.001"}
    assert {*lines, "rule             BinomialSeries()"} <= {*str(tx).splitlines()}
    expected = rate * np.ones(7 * epochs)
    expected[first:] /= 10
    expected[second:] /= 10
    expected[: 7 * warmup] *= np.arange(7 * warmup) / (7 * max(warmup, 1))
    found = rates(tx, 7 * epochs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    differs(np.testing.assert_allclose, found[1:], expected[:-1])


WHITENING, SERIES = {"rule": Whitening()}, BinomialSeries()
ADAM = lengths.Adam(0.95, 1e-6, scale=2.0)
# A recipe, and the same by hand.
BY_HAND = {
    "sgd": (from_sgd(COSINE, 0.8, 1e-4), jorge(COSINE, 0.8, 5e-4, **WHITENING)),
    "sgd, decoupled": (
        from_sgd(0.1, 0.8, 1e-4, decoupled=True, nesterov=True),
        jorge(0.1, 0.8, 1e-4, **WHITENING),
    ),
    "the paper's": (from_sgd(0.1, 0.8, 1e-4, rule=SERIES), jorge(0.1, 0.8, 5e-4)),
    "published": (
        from_sgd_as_published(0.1, 0.9, 1e-4, total_steps=90),
        jorge(tuning.thirds_decay_schedule(0.1, 90), 0.9, 1e-3),
    ),
    "adamw": (
        from_adamw(COSINE, 0.8, 0.95, eps=1e-6, weight_decay=0.01),
        jorge(COSINE, 0.8, 0.01, grafting=ADAM, **WHITENING),
    ),
    "adamw, the paper's": (
        from_adamw(0.1, rule=SERIES),
        jorge(0.1, 0.9, 1e-4, grafting=lengths.Adam()),
    ),
}


def third_update(tx, params):
    """The update after three steps, by gradients that change."""
    state, updates = tx.init(params), params
    for k in (1, 2, 3):
        gradient = jax.tree.map(lambda p, k=k: jnp.cos(k * p), params)
        updates, state = tx.update(gradient, state, params)
    return updates


def last_update(tx, params):
    """The same, compiled."""
    train = functools.partial(third_update, tx)
    return jax.jit(train, compiler_options=QUICK)(params)


def program(tx):
    """The operations of an update, constants included."""
    params = structs(**PARAMS)
    state = jax.eval_shape(tx.init, params)
    text = str(jax.make_jaxpr(tx.update)(params, state, params))
    return re.sub("0x[0-9a-f]+", "", text)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_recipe_is_jorge_with_what_it_derived(name):
    ours, by_hand = BY_HAND[name]
    assert program(ours) == program(by_hand)
    assert program(ours) != program(jorge(0.1, 0.8, 5e-3, rule=Whitening()))


def test_from_scratch_whitens_by_shape_and_follows_a_cosine():
    lines = str(from_scratch(40)).splitlines()
    assert {"rule             Whitening()", "grafting         Shape()"} <= {*lines}
    found = rates(from_scratch(40, warmup_steps=4), 40, lengths.Shape())
    expected = optax.warmup_cosine_decay_schedule(0.0, 0.0425, 4, 40)
    np.testing.assert_allclose(found, [expected(n) for n in range(40)], atol=1e-7)
    differs(np.testing.assert_allclose, found[1:], found[:-1])


# What is printed.

CAREFUL = Whitening(beta2=0.8, early_refreshes=5)
GROWING = tuning.growing_interval_schedule(50)
OPTIONS = {"tiling": Tiling(64), "numerics": "reduced", "others": optax.adam(1e-3)}
NESTEROV = from_sgd(0.1, nesterov=True, rule=BinomialSeries())
# A transformation, words that are printed, words that are not.
PRINTED = (
    (from_sgd(COSINE), "learning_rate    a schedule: 0.1 at 0, 0 at 1000", "none"),
    (from_sgd(0.1, 0.9, 1e-4), "weight_decay     0.001\n", "0.00100"),
    (from_sgd(0.1, 0.9, 1e-4, decoupled=True), "weight_decay     0.0001\n", "over 1"),
    (from_sgd(0.1, update_interval=GROWING), "a schedule: 1 at 0, 50 at 1000", "none"),
    (from_sgd(0.1, rule=CAREFUL), "Whitening(beta2=0.8, early_refreshes=5)\n", "none"),
    (from_adamw(jnp.float32(0.5), b2=0.95), "Adam(b2=0.95, scale=2.0)\n", "Array"),
    (scale_by_jorge(), "BinomialSeries()", "learning_rate"),
    (from_sgd(0.1, **OPTIONS), "Numerics(roots='bfloat16', momenta='bfloat16'", "none"),
    (from_sgd(0.1, nesterov=True), "rule             Whitening()\n", "Nesterov"),
    (NESTEROV, "note: Nesterov's momentum is not carried over", "none"),
    (from_adamw(0.1), "without roots, by the recipe: embeddings, last layers", "til"),
    (from_adamw(0.1, leave_out=views.only("r")), "leave_out=('r',)", "by the recipe"),
    (from_scratch(200, warmup_steps=20), "0.0425", "none"),
    (from_sgd_as_published(0.1, total_steps=90), "at steps 30 and 60.", "embeddings"),
)


@pytest.mark.parametrize(("tx", "present", "absent"), PRINTED)
def test_printing_shows_what_runs_and_why(tx, present, absent):
    text = f"{tx}\n"
    assert text == f"{tx!r}\n"
    assert present in text
    assert absent not in text


# What is left out.

ALL, DENSE = {*EMBEDDINGS, *LAST_LAYERS}, ("dense",)
LEFT_OUT = (
    (from_adamw(0.1), ALL),
    (from_sgd(0.1), {*EMBEDDINGS}),
    (from_adamw(0.1, leave_out=("DENSE",)), {*ALL, "dense"}),
    (from_adamw(0.1, leave_out=views.only("dense")), {"dense"}),
    (from_sgd(0.1, tiling=Tiling(leave_out=DENSE)), {*EMBEDDINGS, "dense"}),
    (jorge(0.1, tiling=Tiling(leave_out=("head",))), {*LAST_LAYERS, "multihead"}),
    (jorge(0.1, tiling=Tiling(leave_out=("/head/",))), {"head"}),
)


@pytest.mark.parametrize(("tx", "expected"), LEFT_OUT)
def test_leave_out_adds_to_what_the_recipe_leaves_out(tx, expected):
    names = (*ALL, "dense", "multihead")
    table = describe({key: {"kernel": jnp.ones((6, 5))} for key in names}, tx)
    left_out = [x.path for x in table.leaves if x.preconditioned == "no: left out"]
    assert {*left_out} == {f"{name}/kernel" for name in expected}


def test_a_word_that_no_parameter_has_is_refused_with_the_nearest_names():
    params = structs(dense=(6, 5), lm_head=(6, 5), bias=(5,))
    tx = from_adamw(0.1, leave_out=("dense", "lmhead"))
    message = saying(
        "leave_out: no parameter has 'lmhead' in its path",
        "The nearest names are 'lm_head'",
        "describe(params) shows them all",
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(tx.init, params)
    # Not in a tree that is a part of the parameters.
    mask = {"dense": True, "lm_head": False, "bias": True}
    jax.eval_shape(optax.masked(tx, mask).init, params)


def test_others_is_a_complete_optimizer_of_its_own():
    params = arrays(**PARAMS, embed=(6, 4))
    own = optax.adamw(optax.linear_schedule(0.3, 0.1, 3), weight_decay=0.5)
    plain, ours, expected = (
        last_update(tx, params)
        for tx in (from_sgd(0.1, 0.9, 0.01), from_sgd(0.1, 0.9, 0.01, others=own), own)
    )
    for name in params:
        is_matrix = name in ("dense", "conv")
        close(ours[name], (plain if is_matrix else expected)[name])
        differs(close, ours[name], (expected if is_matrix else plain)[name])


# Traced numbers.

RATE = {"learning_rate": 0.1, "weight_decay": 1e-3}
# Adam's b2 and eps go into a dataclass.
INJECTED = {
    from_sgd: {**RATE, "momentum": 0.8},
    from_adamw: {**RATE, "b1": 0.8, "b2": 0.95, "eps": 0.1},
}


@pytest.mark.parametrize("recipe", INJECTED)
def test_numbers_are_injected_without_static_args(recipe):
    params, numbers = arrays(**PARAMS), INJECTED[recipe]
    tx = optax.inject_hyperparams(recipe, hyperparam_dtype=jnp.float32)(**numbers)
    assert numbers.keys() <= tx.init(params).hyperparams.keys()

    def run(numbers):
        def init(params):
            state = tx.init(params)
            return state._replace(hyperparams={**state.hyperparams, **numbers})

        return third_update(optax.GradientTransformation(init, tx.update), params)

    run = jax.jit(run, compiler_options=QUICK)
    numbers = {key: jnp.float32(number) for key, number in numbers.items()}
    updates = run(numbers)
    close(updates, last_update(recipe(**INJECTED[recipe]), params))
    for key, number in numbers.items():
        differs(close, run({**numbers, key: 0.5 * number}), updates)


COUNTS = (
    ("total_steps", from_scratch, {}),
    ("warmup_steps", from_scratch, {"total_steps": 90}),
    ("total_steps", from_sgd_as_published, {"learning_rate": 0.1}),
    ("epochs", from_sgd_as_published, {"learning_rate": 0.1, "steps_per_epoch": 7}),
)


@pytest.mark.parametrize(("name", "recipe", "options"), COUNTS)
def test_a_traced_count_of_steps_is_refused(name, recipe, options):
    message = saying(f"{name} counts steps", f"static_args=('{name}',)")
    with pytest.raises(TypeError, match=message):
        jax.eval_shape(lambda n: recipe(**options, **{name: n}).init(jnp.ones(2)), 9)
    static = ["total_steps", "warmup_steps", name, *options]
    tx = optax.inject_hyperparams(recipe, static_args=static)(**options, **{name: 9})
    state = jax.eval_shape(tx.init, structs(**PARAMS))
    assert not state.hyperparams.keys() & {*static}


def test_what_follows_b2_is_given_by_name():
    with pytest.raises(TypeError, match="positional arguments"):
        from_adamw(1e-3, 0.9, 0.95, 0.1)  # pyright: ignore[reportCallIssue]
