"""The studies of cost: that they measure what they say."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.cost import contenders, memory, steps, training_steps
from examples.shared.classification import make_model as make_classifier

PARAMS = {"kernel": jnp.ones((3, 3, 2, 4)), "dense": jnp.ones((6, 5)), "b": jnp.ones(4)}


@pytest.mark.parametrize(
    "name", [n for n in contenders.contenders() if "psgd" not in n]
)
def test_every_contender_moves_all_parameters(name):
    optimizer = contenders.contenders()[name]
    grads = jax.tree.map(lambda x: 0.1 * x, PARAMS)
    updates, _ = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    chex.assert_trees_all_equal_shapes(updates, PARAMS)
    for update in jax.tree.leaves(updates):
        assert np.all(np.asarray(update) < 0)


def test_steps_are_timed_in_turn_but_for_the_first():
    calls = []

    def runs(name):
        def run(carried, rest):
            calls.append((name, carried))
            return carried + 1, rest

        return run

    programs = {
        name: steps.Program(runs(name), (), lambda: (0, None))
        for name in ("sgd", "jorge")
    }
    part = steps.Part("none", 0, 0, rounds=2, compilations=1)
    compiled = {name: own.function for name, own in programs.items()}
    seconds = steps.time_all(part, programs, compiled)
    lengths = {
        name: {kind: len(values) for kind, values in kinds.items()}
        for name, kinds in seconds.items()
    }
    assert lengths == {"sgd": {"plain": 2}, "jorge": {"plain": 2, "refresh": 2}}
    untimed = [("sgd", 0), ("jorge", 0)]
    # Jorge's steps 1 and 3 are plain, 2 and 4 refresh.
    first, second = [("jorge", 1), ("jorge", 2), ("sgd", 1)], [("sgd", 2), ("jorge", 3)]
    assert calls == [*untimed, *first, *second, ("jorge", 4)]


def test_jorge_refreshes_in_every_second_step():
    """What time_all takes for granted."""
    optimizer = contenders.contenders()["jorge"]
    state, changed = optimizer.init(PARAMS), []
    for _ in range(4):
        before = optax.tree.get(state, "roots").left
        _, state = optimizer.update(PARAMS, state, PARAMS)
        after = optax.tree.get(state, "roots").left
        changed.append(any((before[k].unit != after[k].unit).any() for k in before))
    assert changed == [True, False, True, False]


def test_a_training_step_learns(monkeypatch):
    small = training_steps.MODELS["resnet50"]._replace(
        make=lambda rngs: make_classifier("resnet8-thin", classes=1000, rngs=rngs)
    )
    monkeypatch.setitem(training_steps.MODELS, "small", small)
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = training_steps.make("small", optimizer, batch=4, size=64)
    state = training_steps.start("small", optimizer)
    batch = training_steps.random_batch("small", step.batch)
    run = jax.jit(step.function)
    losses = []
    for _ in range(3):
        state, loss = run(state, batch)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.5


def test_a_step_of_mask_rcnn_has_the_papers_shapes():
    step = training_steps.make("maskrcnn_resnet50_fpn", optax.sgd(0.02))
    state, loss = jax.eval_shape(step.function, step.state, step.batch)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        jax.tree.leaves(state), jax.tree.leaves(step.state)
    )
    assert loss.shape == ()
    assert step.batch["image"].shape == (4, 1344, 1344, 3)


@pytest.mark.parametrize("model", memory.MODELS)
def test_an_option_set_takes_no_more_than_adamw(model):
    """The claim of README and docs, for all models."""
    small = memory.size("whitening, all in bfloat16", model)
    assert small["over_adamw"] < 0.86
    tiles = memory.size("jorge, all in bfloat16, tiles of 64", model)
    assert tiles["over_adamw"] < 1.002
    assert memory.size("jorge", model)["over_adamw"] > 1.9
