"""Training one model with one optimizer, in the functional style of nnx."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from digits.data import Batches, Digits
from digits.model import ResNet


class TrainState(NamedTuple):
    """Everything a step changes."""

    params: nnx.State
    batch_stats: nnx.State
    opt_state: optax.OptState


class Run(NamedTuple):
    """What was measured; the lists have one entry for each evaluation."""

    steps: list[int]
    accuracy: list[float]  # on the test images
    loss: list[float]  # mean training loss since the last evaluation
    step_ms: list[float]  # mean time of a step since the last evaluation
    compile_s: float


def train(
    optimizer: optax.GradientTransformation,
    data: Digits,
    batches: Batches,
    *,
    seed: int,
    eval_every: int,
    on_eval: Callable[[int, float], None],
) -> Run:
    """Trains on every batch; calls `on_eval(step, accuracy)` at each evaluation."""
    graph, params, batch_stats = nnx.split(
        ResNet(nnx.Rngs(seed)), nnx.Param, nnx.BatchStat
    )
    state = TrainState(params, batch_stats, optimizer.init(params))
    start = time.perf_counter()
    train_step = compile_train_step(graph, optimizer, state, batches)
    run = Run([], [], [], [], compile_s=time.perf_counter() - start)

    total = len(batches.labels)
    for first in range(0, total, eval_every):
        last = min(first + eval_every, total)
        losses = []
        start = time.perf_counter()
        for step in range(first, last):
            state, loss = train_step(state, batches.images[step], batches.labels[step])
            losses.append(loss)
        jax.block_until_ready(state)
        elapsed = time.perf_counter() - start

        hits = count_hits(
            graph, state.params, state.batch_stats, data.test_images, data.test_labels
        )
        run.steps.append(last)
        run.accuracy.append(int(hits) / len(data.test_labels))
        run.loss.append(float(np.mean(losses)))
        run.step_ms.append(1e3 * elapsed / (last - first))
        on_eval(last, run.accuracy[-1])
    return run


def compile_train_step(
    graph: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batches: Batches,
) -> Callable[..., tuple[TrainState, jax.Array]]:
    """Compiles `(state, images, labels) -> (state, loss)`; donates the state."""

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

    jitted = jax.jit(step, donate_argnums=0)
    return jitted.lower(state, batches.images[0], batches.labels[0]).compile()


@partial(jax.jit, static_argnums=0)
def count_hits(graph, params, batch_stats, images, labels):
    """Counts the test images that the model names rightly."""
    model = nnx.merge(graph, params, batch_stats)
    model.eval()
    return jnp.sum(jnp.argmax(model(images), axis=-1) == labels)
