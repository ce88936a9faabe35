"""Training one model with one optimizer, in the functional style of nnx."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits.data import Batches, Digits
from digits.model import ResNet
from flax import nnx


class TrainState(NamedTuple):
    """Everything a step changes."""

    params: nnx.State
    batch_stats: nnx.State
    opt_state: optax.OptState


class CompiledStep(NamedTuple):
    """A compiled `(state, images, labels) -> (state, loss)`; donates the state."""

    call: Callable[..., tuple[TrainState, jax.Array]]
    seconds: float


class Run(NamedTuple):
    """What was measured; the lists have one entry for each evaluation."""

    steps: list[int]
    accuracy: list[float]  # on the test images
    loss: list[float]  # mean training loss since the last evaluation
    step_ms: list[float]  # mean time of a step since the last evaluation


def train(
    optimizer: optax.GradientTransformation,
    train_step: CompiledStep,
    data: Digits,
    batches: Batches,
    *,
    seed: int,
    eval_every: int,
    on_steps: Callable[[int], object],
) -> Run:
    """Trains on every batch; calls `on_steps(how many)` after each evaluation."""
    state, graph = make_state(optimizer, seed)
    run = Run([], [], [], [])
    total = len(batches.labels)
    for first in range(0, total, eval_every):
        last = min(first + eval_every, total)
        losses = []
        start = time.perf_counter()
        for step in range(first, last):
            state, loss = train_step.call(
                state, batches.images[step], batches.labels[step]
            )
            losses.append(loss)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - start

        hits = count_hits(
            graph, state.params, state.batch_stats, data.test_images, data.test_labels
        )
        run.steps.append(last)
        run.accuracy.append(int(hits) / len(data.test_labels))
        run.loss.append(float(np.mean(losses)))
        run.step_ms.append(1e3 * seconds / (last - first))
        on_steps(last - first)
    return run


def make_state(
    optimizer: optax.GradientTransformation, seed: int
) -> tuple[TrainState, nnx.GraphDef]:
    """Returns the start of a run, the same weights for each optimizer."""
    graph, params, batch_stats = nnx.split(
        ResNet(nnx.Rngs(seed)), nnx.Param, nnx.BatchStat
    )
    return TrainState(params, batch_stats, jax.jit(optimizer.init)(params)), graph


def compile_step(
    optimizer: optax.GradientTransformation, batches: Batches
) -> CompiledStep:
    """Compiles one step of training, for all seeds."""
    state, graph = make_state(optimizer, seed=0)

    def loss_fn(params, batch_stats, images, labels):
        model = nnx.merge(graph, params, batch_stats, copy=True)
        model.train()
        losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
        return jnp.mean(losses), nnx.state(model, nnx.BatchStat)

    def step(state, images, labels):
        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, state.batch_stats, images, labels
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, batch_stats, opt_state), loss

    start = time.perf_counter()
    jitted = jax.jit(step, donate_argnums=0)
    compiled = jitted.lower(state, batches.images[0], batches.labels[0]).compile()
    return CompiledStep(compiled, time.perf_counter() - start)


@partial(jax.jit, static_argnums=0)
def count_hits(graph, params, batch_stats, images, labels):
    """Counts the test images that the model names rightly."""
    model = nnx.merge(graph, params, batch_stats)
    model.eval()
    return jnp.sum(jnp.argmax(model(images), axis=-1) == labels)
