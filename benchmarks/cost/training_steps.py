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
from jax.typing import DTypeLike

from examples.detection.models import make_model as make_detector
from examples.detection.train import loss as detection_loss
from examples.segmentation.models import make_model as make_segmenter
from examples.segmentation.train import loss as segmentation_loss
from examples.shared.classification import loss as classification_loss
from examples.shared.classification import make_model as make_classifier

Tree = Any
BOXES = 20  # true ones in an image of Mask R-CNN; COCO's have 7 on average


class Model(NamedTuple):
    """A model that is trained.

    Attributes:
      make: makes the module.
      loss: of module, batch and key.
      classes: of labels.
      size: pixels of a side, as in the paper.
      batch: images for each device, as in the paper.
      arrays: of a batch besides the images: shapes without the batch, by name.
    """

    make: Callable[[nnx.Rngs], nnx.Module]
    loss: Callable[[Any, Any, jax.Array], jax.Array]
    classes: int
    size: int
    batch: int
    arrays: Callable[[int], dict[str, tuple[tuple[int, ...], DTypeLike]]]


def _boxes(size: int) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
    """Describes `BOXES` true boxes of an image, with masks of COCO's cells."""
    del size
    return {
        "size": ((2,), jnp.int32),
        "boxes": ((BOXES, 4), jnp.float32),
        "label": ((BOXES,), jnp.int32),
        "masks": ((BOXES, 56, 56), jnp.uint8),
    }


MODELS = {
    "resnet50": Model(
        lambda rngs: make_classifier("resnet50", classes=1000, rngs=rngs),
        classification_loss,
        classes=1000,
        size=224,
        batch=64,
        arrays=lambda size: {"label": ((), jnp.int32)},
    ),
    "deeplabv3_resnet50": Model(
        lambda rngs: make_segmenter("deeplabv3-resnet50", classes=21, rngs=rngs),
        segmentation_loss,
        classes=21,
        size=520,
        batch=16,
        arrays=lambda size: {"label": ((size, size), jnp.int32)},
    ),
    # The paper does not say how many GPUs shared its batch of 32: 8 here.
    "maskrcnn_resnet50_fpn": Model(
        lambda rngs: make_detector("maskrcnn-resnet50", classes=91, rngs=rngs),
        detection_loss,
        classes=91,
        size=1344,
        batch=4,
        arrays=_boxes,
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
    arrays = {"image": ((size, size, 3), jnp.float32), **model.arrays(size)}
    structs = {
        name: struct((batch, *shape), dtype) for name, (shape, dtype) in arrays.items()
    }
    return TrainingStep(step, state, structs)


def start(name: str, optimizer: optax.GradientTransformation) -> State:
    """Returns the state at the start of a run."""
    module = MODELS[name].make(nnx.Rngs(0))
    _, params, stats = nnx.split(module, nnx.Param, ...)
    return State(params, stats, optimizer.init(params))


def random_batch(name: str, structs: Tree, seed: int = 0) -> Tree:
    """Draws normal images, uniform labels, and boxes with masks if there are any."""
    rng = np.random.default_rng(seed)
    size = structs["image"].shape[1]

    def draw(key: str, struct: jax.ShapeDtypeStruct) -> np.ndarray:
        shape = struct.shape
        if key == "image":
            return rng.normal(size=shape)
        if key == "size":
            return np.full(shape, size)
        if key == "boxes":
            corners = rng.uniform(0, 0.9 * size, (*shape[:-1], 2))
            sides = rng.uniform(0.05 * size, 0.5 * size, (*shape[:-1], 2))
            return np.concatenate([corners, np.minimum(corners + sides, size)], -1)
        if key == "masks":
            return 255 * rng.integers(2, size=shape)
        return rng.integers("boxes" in structs, MODELS[name].classes, size=shape)

    return {
        key: jnp.asarray(draw(key, struct), struct.dtype)
        for key, struct in structs.items()
    }


def _structs(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
