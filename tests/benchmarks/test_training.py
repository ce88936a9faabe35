"""Steps to a target, their ratios, and the trainer of the small problems."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.harness import summary
from benchmarks.problems.problem import Problem
from benchmarks.problems.training import trainer


def test_steps_to_a_target():
    curve = [0.1, None, 0.5, 0.4, 0.9]
    up = dict(larger_is_better=True, every=4)
    assert summary.steps_to(0.4, curve, **up) == 12
    assert summary.steps_to(0.5, curve, **up) == 20  # it had fallen behind again
    assert summary.steps_to(0.95, curve, **up) is None
    assert summary.steps_to(0.4, [0.5, None], **up) is None  # it diverged
    down = dict(larger_is_better=False, every=3)
    assert summary.steps_to(0.45, [0.9, 0.4], **down) == 6
    assert summary.steps_to(0.45, [0.4, 0.9], **down) is None


def test_ratios_are_paired_by_seed():
    ours, theirs = {0: 50, 1: 110, 2: 90}, {0: 100, 1: 200, 2: 200}
    assert summary.paired_ratio(ours, theirs).startswith("0.50 [0.39, 0.64]")
    assert "1 of 3 seeds unpaired" in summary.paired_ratio({**ours, 1: None}, theirs)
    assert summary.paired_ratio({0: 5}, {0: 5}).startswith("too few")


def test_trainer_reports_each_percent_and_stops_at_nan():
    problem = Problem(
        name="parabola",
        steps=100,
        init=lambda seed: ({"w": jnp.full((2, 2), 1.0 + seed)}, ()),
        loss=lambda params, state, batch: (jnp.sum(params["w"] ** 2), state),
        batches=lambda seed: iter(np.zeros(100)),
        evaluate=lambda params, state: jnp.sum(params["w"] ** 2),
        metric="loss",
        larger_is_better=False,
        central_rate=0.1,
        adamw_leaves=(),
    )
    train = trainer(problem, lambda rate: optax.sgd(rate))
    curve = train(0.1, 0)
    assert curve[0] == pytest.approx(4 * 0.8**2, abs=1e-4)
    assert len(curve) == 100
    assert curve[-1] == 0.0
    diverged = train(1e3, 0)
    assert diverged[0] is not None
    assert diverged[-1] is None
    assert len(diverged) == 100
