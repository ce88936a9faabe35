"""A task for the examples' loop that trains in milliseconds."""

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from examples.shared import loop
from examples.shared.classification import count, score
from examples.shared.config import SGD, AdamW, Config, Run, Schedule
from examples.shared.loop import Task

CONFIG = Config(
    dataset="toy",
    model="toy",
    batch_size=16,
    epochs=2,
    sgd=SGD(0.1, 1e-4, Schedule("cosine")),
    adamw=AdamW(0.01, 0.01),
    update_interval=3,
    eval_every=5,
)
STEPS_PER_EPOCH = 10
_TRUTH = np.random.default_rng(0).normal(size=(8, 4))


class Net(nnx.Module):
    """With all that a run must carry over: batch statistics and dropout."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(8, 12, rngs=rngs)
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.dropout = nnx.Dropout(0.2)
        self.last = nnx.Linear(12, 4, rngs=rngs)

    def __call__(self, x, rngs=None):
        x = nnx.relu(self.norm(self.first(x)))
        return self.last(self.dropout(x, rngs=rngs))


def batch(seed: int, index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((seed, index))
    x = rng.normal(size=(16, 8)).astype(np.float32)
    return {"image": x, "label": (x @ _TRUTH).argmax(1).astype(np.int32)}


def loss(model, batch, key):
    logits = model(batch["image"], rngs=nnx.Rngs(dropout=key))
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["label"]
    ).mean()


def make_task(seed: int, on_batch=lambda step: None) -> Task:
    """`on_batch` is told of each batch, counted from 0, before it is handed out."""

    def train(first_step):
        step = first_step
        while True:
            on_batch(step)
            yield batch(seed, step)
            step += 1

    return Task(
        model=Net,
        loss=loss,
        count=count,
        score=score,
        train=train,
        test=lambda: [batch(10**6, index) for index in range(3)],
        steps_per_epoch=STEPS_PER_EPOCH,
        metric="accuracy",
    )


def saved_state(folder, step):
    """All that is saved, as plain arrays, wherever it was saved."""
    path = (folder / "checkpoints" / str(step) / "default").absolute()
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(path).item_metadata.tree
    plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return checkpointer.restore(path, restore_args=plain)["state"]


def assert_same_bits(one, other):
    """Compares two trees of arrays."""
    jax.tree.map(np.testing.assert_array_equal, one, other)


def train(folder, optimizer="jorge", seed=0, config=CONFIG, **options):
    """Trains the task, or resumes."""
    on_batch = options.pop("on_batch", lambda step: None)
    task = make_task(seed, on_batch)
    return loop.train(task, config, Run(optimizer, seed, folder, **options))
