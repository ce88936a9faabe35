"""Trains one model with one optimizer: steps, evaluations, logs, checkpoints.

Seconds count the steps and their data, but not compilation and evaluation.

A run is a function of its configuration and seed. The batch of a step and its dropout
depend on the seed and the step alone, so a run that was killed and resumed ends with
the same bits as one that was not.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from examples.shared import devices, optimizers, run_folder
from examples.shared.checkpoints import Checkpoints
from examples.shared.clock import clock
from examples.shared.config import Config, Run
from examples.shared.log import Log, Row, read
from jorge_optax import describe, diagnostics, reshard_state

Batch = dict[str, Any]
SUMMARY = "summary.txt"  # written last: a run that has it is complete


def add_up(counts: list[Any]) -> Any:
    """Returns the sum of trees of arrays."""
    return jax.tree.map(lambda *parts: np.sum(parts, 0), *counts)


class Task(NamedTuple):
    """A model, its data, and its score.

    Attributes:
      model: makes the model.
      loss: of a model in training mode, a batch, and a key for dropout.
      count: what evaluation keeps of a batch.
      score: metrics from what `combine` makes of all counts.
      train: batches from a step on, without end.
      test: batches of one evaluation.
      steps_per_epoch: whole batches in the training set.
      metric: the name of the score that counts; larger is better.
      finish: called at the end of a run with the model, in evaluation mode, and the
        run's folder.
      combine: makes one count of those of all batches; their sum by default.
    """

    model: Callable[[nnx.Rngs], nnx.Module]
    loss: Callable[[Any, Batch, jax.Array], jax.Array]
    count: Callable[[Any, Batch], Any]
    score: Callable[[Any], dict[str, float]]
    train: Callable[[int], Iterator[Batch]]
    test: Callable[[], Iterable[Batch]]
    steps_per_epoch: int
    metric: str
    finish: Callable[[Any, pathlib.Path], None] = lambda model, folder: None
    combine: Callable[[list[Any]], Any] = add_up


class TrainState(NamedTuple):
    """Everything a step changes."""

    step: jax.Array  # int32 []
    params: nnx.State
    batch_stats: nnx.State
    opt_state: optax.OptState


def train(
    task: Task,
    config: Config,
    run: Run,
    build: Callable[..., optimizers.Built] = optimizers.build,
) -> list[Row]:
    """Trains, or resumes the run in the folder; returns a row for each evaluation.

    A complete run is not run again. `build` makes the optimizer of the run's name, as
    `optimizers.build` does.
    """
    with contextlib.ExitStack() as cleanup:
        # Of several processes, the first has the run's folder, but for checkpoints.
        own = run
        if jax.process_index():
            folder = run.folder / f"process-{jax.process_index()}"
            own = dataclasses.replace(run, folder=folder)
        cleanup.enter_context(run_folder.locked(own.folder))
        return _train(task, config, own, build, cleanup, run.folder)


def _train(
    task: Task,
    config: Config,
    run: Run,
    build: Callable[..., optimizers.Built],
    cleanup: contextlib.ExitStack,
    shared: pathlib.Path,
) -> list[Row]:
    steps = run.steps or config.epochs * task.steps_per_epoch
    if config.batch_size % run.devices:
        raise ValueError(
            f"A batch of {config.batch_size} cannot be shared by {run.devices} devices."
        )
    placement = devices.place(run.devices)
    what = f"{run.optimizer}, seed {run.seed}"
    spread = run.spread or optimizers.spreads(run.optimizer)
    options = {"sharding": placement.split} if spread else {}
    built = build(
        run.optimizer,
        config,
        steps=steps,
        steps_per_epoch=task.steps_per_epoch,
        **options,
    )
    identity = {"optimizer": run.optimizer, "seed": run.seed, "steps": steps}
    run_folder.claim(run.folder, {**identity, **config.to_dict()})
    if (run.folder / SUMMARY).exists():
        rows = read(run.folder)
        if rows and rows[-1]["step"] == steps:
            tqdm.write(f"{run.folder} is complete; remove it to run it again.")
            return rows
    with clock(f"{what}: initializing"):
        graph, state = _start(task, built.transformation, run.seed, placement.whole)
    if not spread:
        state = devices.put(state, placement.whole)
    checkpoints = Checkpoints(shared, task.metric, keep=run.keep)
    cleanup.callback(checkpoints.close)  # or its threads keep a failed run from exiting
    fit = None if built.rooted is None else functools.partial(_fit, built.rooted)
    saved = checkpoints.restore({"state": state, "seconds": np.float64(0)}, fit)
    first, seconds = 0, 0.0
    if saved:
        state, seconds = saved[0]["state"], float(saved[0]["seconds"])
        first = saved[1]
        tqdm.write(f"Resuming {run.folder} at step {first} of {steps}.")
    else:
        _introduce(run, built, steps, state)
    log = Log(run.folder, after_step=first)
    cleanup.callback(log.close)
    batches = (devices.put(b, placement.split) for b in task.train(first))
    batch = next(batches)
    with clock(f"{what}: compiling the step"):
        step_fn, compile_seconds = _compile(
            _make_step(
                task,
                graph,
                built.transformation,
                run.seed,
                placement.whole,
                jax.tree.map(lambda leaf: leaf.sharding, state),
            ),
            state,
            batch,
        )
    count_fn = _make_count(task, graph)

    def evaluate() -> dict[str, float]:
        variables = state.params, state.batch_stats
        counts = [
            count_fn(*variables, devices.put(batch, placement.split))
            for batch in task.test()
        ]
        return task.score(task.combine(counts))

    save_every = config.checkpoint_every or config.eval_every
    losses: list[jax.Array] = []
    bar = _bar(what, first, steps)
    with bar, _Interrupt() as interrupt:
        start = time.perf_counter()
        for step in range(first + 1, steps + 1):
            state, loss = step_fn(state, batch)
            losses.append(loss)
            if step < steps:
                batch = next(batches)
            bar.update()
            at_end = step == steps
            if not (at_end or step % config.eval_every == 0 or interrupt.asked):
                continue
            mean_loss = float(jnp.mean(jnp.stack(losses)))
            seconds += time.perf_counter() - start
            carried = {"state": state, "seconds": np.float64(seconds)}
            if interrupt.asked and not at_end and step % config.eval_every:
                checkpoints.save(step, carried, None)
            else:
                score = evaluate()
                row: Row = {
                    "step": step,
                    "epoch": step / task.steps_per_epoch,
                    "seconds": seconds,
                    "compile_seconds": compile_seconds,
                    "loss": mean_loss,
                    "learning_rate": float(built.learning_rate(step - 1)),
                    **score,
                }
                log.write({name: _finite(value) for name, value in row.items()})
                if run.diagnose and built.rooted is not None:
                    report = _diagnose(state, built.rooted)
                    log.write_board(step, report.scalars(), "roots")
                if at_end or interrupt.asked or step % save_every == 0:
                    checkpoints.save(step, carried, score)
                bar.set_postfix(
                    refresh=False,  # at the bar's own pace
                    loss=f"{mean_loss:.3f}",
                    **{task.metric: f"{score[task.metric]:.4f}"},
                )
            losses.clear()
            if interrupt.asked and not at_end:
                bar.close()
                tqdm.write(
                    f"Saved step {step} to {run.folder}; the same command resumes."
                )
                raise KeyboardInterrupt
            start = time.perf_counter()
    task.finish(_merge(graph, state.params, state.batch_stats, "eval"), run.folder)
    if run.diagnose and built.rooted is not None:
        report = _diagnose(state, built.rooted)
        run_folder.write_whole(run.folder / "roots.txt", f"{report}\n")
    run_folder.write_whole(
        run.folder / SUMMARY, f"{summarize(what, log.rows, task.metric)}\n"
    )
    return log.rows


def summarize(what: str, rows: list[Row], metric: str) -> str:
    """Returns the result of a run in a few lines."""
    last = rows[-1]
    best = max(rows, key=lambda row: -math.inf if row[metric] is None else row[metric])
    steps, seconds = last["step"], last["seconds"]
    final = "diverged" if last[metric] is None else f"{last[metric]:.4f}"
    lines = [f"{what}: {metric} {final} after {steps} steps"]
    if best[metric] is not None and best is not last:
        lines.append(f"  best {metric} {best[metric]:.4f}, at step {best['step']}")
    if last["loss"] is not None:
        lines.append(f"  training loss {last['loss']:.4f} since the evaluation before")
    lines.append(
        f"  {seconds:.1f} s of training, {1000 * seconds / steps:.1f} ms a step, and "
        f"{last['compile_seconds']:.1f} s to compile it"
    )
    return "\n".join(lines)


def _make_step(
    task: Task, graph: Any, optimizer: Any, seed: int, whole: Any, places: Any = None
) -> Any:
    keys = jax.random.key(seed)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        def loss_fn(params: nnx.State) -> tuple[jax.Array, Any]:
            model = _merge(graph, params, state.batch_stats, "train")
            loss = task.loss(model, batch, jax.random.fold_in(keys, state.step))
            return loss, nnx.split(model, nnx.Param, ...)[2]

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, stats, opt_state), loss

    # Pinned, or the compiler may choose to spread some of the state.
    return jax.jit(step, donate_argnums=0, out_shardings=(places or whole, whole))


def make_step_and_state(
    task: Task, optimizer: optax.GradientTransformation, seed: int
) -> tuple[Any, TrainState]:
    """Returns the jitted step of training on one device, and the state at its start."""
    graph, state = _start(task, optimizer, seed)
    whole = devices.place(1).whole
    return _make_step(task, graph, optimizer, seed, whole), devices.put(state, whole)


def _compile(step: Any, *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    compiled = step.lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def _make_count(task: Task, graph: Any) -> Any:
    return jax.jit(
        lambda params, stats, batch: task.count(
            _merge(graph, params, stats, "eval"), batch
        )
    )


def _start(
    task: Task, optimizer: Any, seed: int, whole: Any = None
) -> tuple[Any, TrainState]:
    model = task.model(nnx.Rngs(seed))
    graph, params, batch_stats = nnx.split(model, nnx.Param, ...)
    step = jnp.zeros((), jnp.int32)
    if whole is not None:
        step, params, batch_stats = devices.put((step, params, batch_stats), whole)
    opt_state = jax.jit(optimizer.init)(params)  # compiled once, not number by number
    return graph, TrainState(step, params, batch_stats, opt_state)


def _diagnose(state: TrainState, rooted: Any) -> Any:
    return diagnostics(state.opt_state, state.params, None, rooted)


def _fit(rooted: Any, saved: Any, like: Any) -> Any:
    """Fits what was saved on another number of devices to this one."""
    old, new = saved["state"], like["state"]
    opt_state = reshard_state(old.opt_state, rooted, new.params)
    return {**saved, "state": old._replace(opt_state=opt_state)}


def _merge(graph: Any, params: Any, batch_stats: Any, mode: str) -> Any:
    model = nnx.merge(graph, params, batch_stats, copy=True)
    model.train() if mode == "train" else model.eval()
    return model


def _introduce(run: Run, built: Any, steps: int, state: TrainState) -> None:
    """Prints the settings of the run, and writes them to the folder."""
    lines = [f"{run.optimizer}, seed {run.seed}, {steps} steps, in {run.folder}"]
    if built.rooted is None:
        lines += [f"  {name}: {_text(value)}" for name, value in built.settings.items()]
    else:
        lines += [str(built.rooted), "", str(describe(state.params, built.rooted))]
    size = sum(_device_bytes(leaf) for leaf in jax.tree.leaves(state.opt_state))
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    each = " on each device" if run.devices > 1 else ""
    lines.append(
        f"optimizer state{each}: {size / weights:.2f} times the parameters' bytes"
    )
    text = "\n".join(lines)
    run_folder.write_whole(run.folder / "start.txt", text + "\n")
    tqdm.write(text)


def _device_bytes(leaf: jax.Array) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _bar(description: str, first: int, steps: int) -> tqdm:
    """Returns a progress bar, which updates less often when written to a file."""
    return tqdm(
        total=steps,
        initial=first,
        unit="step",
        desc=description,
        mininterval=0.1 if sys.stderr.isatty() else 10,
    )


class _Interrupt:
    """Turns the first Ctrl-C (or SIGTERM) into a flag; a second one has its effect."""

    def __enter__(self) -> "_Interrupt":
        self.asked = False
        try:
            signals = (signal.SIGINT, signal.SIGTERM)
            self._before = {s: signal.signal(s, self._ask) for s in signals}
        except ValueError:  # not in the main thread
            self._before = {}
        return self

    def _ask(self, number: int, frame: Any) -> None:
        del frame
        self.asked = True
        signal.signal(number, self._before[number])

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _finite(value: Any) -> Any:
    """Returns None for NaN and infinities, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return ", ".join(f"{name} {entry}" for name, entry in fields if entry)
    return str(value)
