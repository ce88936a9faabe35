"""Makes whole training steps of the examples' models at any size, without data.

`make("resnet50", optimizer, batch=64)` gives a function of state and batch, and the
shapes of both: nothing is allocated until :func:`zeros` or :func:`start` is called.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.segmentation.models import make_model as make_segmenter
from examples.segmentation.train import loss as segmentation_loss
from examples.shared.classification import loss as classification_loss
from examples.shared.classification import make_model as make_classifier

Tree = Any


class Model(NamedTuple):
    """A model that is trained.

    Attributes:
      make: makes the module.
      loss: of module, batch and key.
      classes: of labels.
      size: pixels of a side, as in the paper.
      batch: images for each device, as in the paper.
      label: shape of an image's label.
    """

    make: Callable[[nnx.Rngs], nnx.Module]
    loss: Callable[[Any, Any, jax.Array], jax.Array]
    classes: int
    size: int
    batch: int
    label: Callable[[int], tuple[int, ...]]


MODELS = {
    "resnet50": Model(
        lambda rngs: make_classifier("resnet50", classes=1000, rngs=rngs),
        classification_loss,
        classes=1000,
        size=224,
        batch=64,
        label=lambda size: (),
    ),
    "deeplabv3_resnet50": Model(
        lambda rngs: make_segmenter("deeplabv3-resnet50", classes=21, rngs=rngs),
        segmentation_loss,
        classes=21,
        size=520,
        batch=16,
        label=lambda size: (size, size),
    ),
}


class State(NamedTuple):
    """Everything that a step changes."""

    params: Tree
    batch_stats: Tree
    opt_state: Tree


class TrainingStep(NamedTuple):
    """A step, ready to be lowered, and the shapes of its two arguments."""

    function: Callable[[State, Tree], tuple[State, jax.Array]]
    state: State
    batch: Tree


def make(
    name: str,
    optimizer: optax.GradientTransformation,
    *,
    batch: int | None = None,
    size: int | None = None,
) -> TrainingStep:
    """The step of a model; batch and size are the paper's if they are not given."""
    model = MODELS[name]
    batch, size = batch or model.batch, size or model.size
    abstract = nnx.eval_shape(lambda: model.make(nnx.Rngs(0)))
    graph, params, stats = nnx.split(abstract, nnx.Param, ...)
    params, stats = _structs(params), _structs(stats)

    def step(state: State, batch: Tree) -> tuple[State, jax.Array]:
        def loss_fn(params: Tree) -> tuple[jax.Array, Tree]:
            module = nnx.merge(graph, params, state.batch_stats, copy=True)
            module.train()
            loss = model.loss(module, batch, jax.random.key(0))
            return loss, nnx.split(module, nnx.Param, ...)[2]

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, stats, opt_state), loss

    state = State(params, stats, jax.eval_shape(optimizer.init, params))
    struct = jax.ShapeDtypeStruct
    images = {
        "image": struct((batch, size, size, 3), jnp.float32),
        "label": struct((batch, *model.label(size)), jnp.int32),
    }
    return TrainingStep(step, state, images)


def start(name: str, optimizer: optax.GradientTransformation) -> State:
    """Returns the state at the start of a run."""
    module = MODELS[name].make(nnx.Rngs(0))
    _, params, stats = nnx.split(module, nnx.Param, ...)
    return State(params, stats, optimizer.init(params))


def random_batch(name: str, structs: Tree, seed: int = 0) -> Tree:
    """Draws normal images and uniform labels."""
    rng = np.random.default_rng(seed)
    image, label = structs["image"], structs["label"]
    return {
        "image": jnp.asarray(rng.normal(size=image.shape), image.dtype),
        "label": jnp.asarray(rng.integers(MODELS[name].classes, size=label.shape)),
    }


def _structs(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
