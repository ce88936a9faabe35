"""Trains on a problem with any optimizer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.problems.problem import Problem

Curve = list[float | None]
MakeOptimizer = Callable[[jax.typing.ArrayLike], optax.GradientTransformation]


def make_step(problem: Problem, make_optimizer: MakeOptimizer) -> Callable[..., Any]:
    """Compiles a step of parameters, model state, optimizer state, batch and rate."""

    # No scan over steps: on CPUs XLA's convolutions are ten times slower in a loop.
    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, model_state, state, batch, rate):
        gradient = jax.grad(problem.loss, has_aux=True)
        grads, model_state = gradient(params, model_state, batch)
        updates, state = make_optimizer(rate).update(grads, state, params)
        return optax.apply_updates(params, updates), model_state, state

    return step


def trainer(
    problem: Problem, make_optimizer: MakeOptimizer, evaluations: int = 100
) -> Callable[[float, int], Curve]:
    """Returns a function of learning rate and seed that trains; it compiles once.

    Args:
      problem: what to train.
      make_optimizer: from a learning rate, which may be traced, to an optimizer.
      evaluations: how often in a run the metric is taken, in equal steps.

    Returns:
      A function that returns the metric at each evaluation, and None once a number is
      not finite.
    """
    every = max(1, problem.steps // evaluations)
    step = make_step(problem, make_optimizer)

    def train(rate: float, seed: int) -> Curve:
        params, model_state = problem.init(seed)
        state = make_optimizer(rate).init(params)
        curve: Curve = []
        for i, batch in enumerate(problem.batches(seed), 1):
            params, model_state, state = step(params, model_state, state, batch, rate)
            if i % every == 0:
                metric = float(problem.evaluate(params, model_state))
                if not np.isfinite(metric + float(optax.tree.norm(params))):
                    break
                curve.append(round(metric, 5))
        return curve + [None] * (problem.steps // every - len(curve))

    return train
