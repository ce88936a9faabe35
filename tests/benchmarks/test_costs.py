"""The studies of cost: that they measure what they say."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.cost import contenders, memory, steps, training_steps
from benchmarks.reports import costs
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


def test_muon_orthogonalises_kernels_and_matrices_but_no_vectors():
    numbers = contenders.kernel_dimensions(PARAMS)
    assert numbers["kernel"].reduction_axis == (0, 1, 2)
    assert numbers["kernel"].output_axis == 3
    assert numbers["dense"].output_axis == 1
    assert numbers["b"] is None


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
    # Jorge's steps 1 and 3 are plain, 2 and 4 refresh: see the next test.
    first, second = [("jorge", 1), ("jorge", 2), ("sgd", 1)], [("sgd", 2), ("jorge", 3)]
    assert calls == [*untimed, *first, *second, ("jorge", 4)]


def test_of_two_steps_one_refreshes():
    """What time_all takes for granted: steps 0, 2, ... refresh, 1, 3, ... do not."""
    optimizer = contenders.contenders()["jorge"]
    state = optimizer.init(PARAMS)
    roots = [optax.tree.get(state, "roots")]
    for _ in range(4):
        _, state = optimizer.update(PARAMS, state, PARAMS)
        roots.append(optax.tree.get(state, "roots"))
    same = [
        all(
            np.array_equal(a, b)
            for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
        )
        for x, y in zip(roots, roots[1:], strict=False)
    ]
    assert same == [False, True, False, True]


def test_amortised_is_between_plain_and_refresh():
    row = {
        "optimizer": "jorge",
        "step_seconds": {"plain": [1.0, 3.0, 1.0], "refresh": [6.0, 5.0, 7.0]},
    }
    assert costs._amortised(row, 1) == 6.0
    assert costs._amortised(row, 5) == 2.0
    assert costs._amortised({**row, "optimizer": "psgd"}, 5) == 1.15
    alike = {"optimizer": "sgd", "step_seconds": {"plain": [2.0, 4.0]}}
    assert costs._amortised(alike, 5) == 3.0


def made_up_costs(name):
    """Results of one model, whose update and step take round numbers of seconds."""
    row = {"model": "resnet50", "lower_and_compile_seconds": [[1, 1], [2, 6]]}
    sgd = {**row, "optimizer": "sgd"}
    own = {**row, "optimizer": "jorge", "lower_and_compile_seconds": [[1, 3], [4, 12]]}
    update = {"part": "update", "batch": 0}
    step = {"part": "step", "batch": 64}
    rows = [
        {**sgd, **update, "step_seconds": {"plain": [1.0]}},
        {**own, **update, "step_seconds": {"plain": [2.0], "refresh": [52.0]}},
        {**sgd, **step, "step_seconds": {"plain": [9.0, 10.0, 30.0]}},
        {**own, **step, "step_seconds": {"plain": [90.0], "refresh": [91.0]}},
    ]
    assert name == "step_cost"
    return {"rows": rows}


def test_a_step_by_its_parts(monkeypatch):
    monkeypatch.setattr(costs.results, "read", made_up_costs)
    [step], [update] = (costs._parts(batch=batch) for batch in (True, False))
    # An update of 2 + 50/50 s in place of SGD's of 1 s, in a step of 10 s.
    assert costs._by_parts(step["sgd"], update, "jorge", 50) == 1.2
    assert costs._by_parts(step["sgd"], update, "jorge", 10) == 1.6
    assert costs._by_parts(step["sgd"], update, "sgd", 50) == 1.0
    assert costs._compile_over(update["jorge"], update["sgd"]) == 2.0


def test_a_training_step_learns(monkeypatch):
    small = training_steps.MODELS["resnet50"]._replace(
        make=lambda rngs: make_classifier("resnet8-thin", classes=1000, rngs=rngs)
    )
    monkeypatch.setitem(training_steps.MODELS, "small", small)
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = training_steps.make("small", optimizer, batch=4, size=64)
    state = training_steps.start("small", optimizer)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        jax.tree.leaves(state), jax.tree.leaves(step.state)
    )
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
    batch = training_steps.random_batch(
        "maskrcnn_resnet50_fpn",
        training_steps.make("maskrcnn_resnet50_fpn", optax.sgd(1), size=64).batch,
    )
    boxes = np.asarray(batch["boxes"])
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert boxes.max() <= 64
    assert batch["label"].min() >= 1  # none is background


def test_program_of_the_update_alone_is_the_optimizers():
    optimizer = optax.sgd(0.5)
    part = steps.Part("resnet18", 0, 0, 1, 1)
    program = steps.program(part, optimizer)
    (params, state), grads = program.start()
    (new, _), _ = program.function((params, state), grads)
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    chex.assert_trees_all_close(new, expected, rtol=1e-6)


# --- memory --------------------------------------------------------------------------


@pytest.mark.parametrize("model", memory.MODELS)
def test_an_option_set_takes_no_more_than_adamw(model):
    """The claim of README and docs, for all models."""
    small = memory.size("whitening, all in bfloat16", model)
    assert small["over_adamw"] < 0.86
    tiles = memory.size("jorge, all in bfloat16, tiles of 64", model)
    assert tiles["over_adamw"] < 1.002
    assert memory.size("jorge", model)["over_adamw"] > 1.9
