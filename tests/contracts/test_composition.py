"""jorge is what its pieces make: graft, scale_by_jorge and transformations of optax."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Tiling, default_view, graft, jorge, scale_by_jorge
from tests.helpers.trees import close, differs, normal, trainer, tree

STEPS = 12
MOMENTUM, DECAY = 0.8, 0.05


def train(optimizer: Any, params: Any, gradients: Any) -> Any:
    """The updates of all steps; ``gradients`` have a leading axis of steps."""
    return trainer(optimizer)(params, gradients)


def schedule(count: Any) -> Any:
    return 0.1 / (1 + count)


def masked(params: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, params)


def decayed_at(step: Any) -> Any:
    return optax.chain(
        step,
        optax.add_decayed_weights(DECAY, masked),
        optax.scale_by_learning_rate(schedule),
    )


def options(tiling: Tiling | None) -> dict[str, Any]:
    return dict(eps=1e-3, update_interval=3, tiling=tiling)


def whole(tiling: Tiling | None, **other: Any) -> Any:
    arguments = dict(momentum=MOMENTUM, weight_decay=DECAY, weight_decay_mask=masked)
    return jorge(schedule, **{**arguments, **options(tiling), **other})


def average() -> Any:
    return optax.ema(MOMENTUM, debias=False)


def labels(params: Any) -> Any:
    return jax.tree.map(
        lambda leaf: "matrix" if default_view(leaf.shape) else "rest", params
    )


def explicit(tiling: Tiling | None) -> Any:
    """jorge in optax's own pieces."""
    direction = optax.chain(scale_by_jorge(**options(tiling)), average())
    return decayed_at(
        optax.partition(
            {
                "matrix": graft(
                    optax.trace(MOMENTUM), direction, tiling=tiling or Tiling()
                ),
                "rest": optax.trace(MOMENTUM),
            },
            labels,
        )
    )


def trained(optimizer: Any) -> Any:
    return train(optimizer, tree(0), tree(10, STEPS))


@functools.cache
def trained_by_jorge(tiling: Tiling | None) -> Any:
    return trained(whole(tiling))


@pytest.mark.parametrize(
    ("tiling", "other"),
    [(None, Tiling(3)), (Tiling(3), None)],
    ids=["untiled", "tiled"],
)
def test_jorge_equals_its_explicit_form(tiling, other):
    expected = trained(explicit(tiling))
    close(trained_by_jorge(tiling), expected)
    differs(close, trained_by_jorge(other), expected)


def test_equality_with_the_explicit_form_sees_interval_and_mask():
    other = trained(whole(None, update_interval=4, weight_decay_mask=None))
    expected = trained_by_jorge(None)
    differs(close, other["matrix"], expected["matrix"])
    differs(close, other["bias"], expected["bias"])


def test_jorge_without_grafting_equals_its_explicit_form():
    tiling = Tiling(3)
    step = optax.chain(scale_by_jorge(**options(tiling)), average())
    expected = trained(decayed_at(step))
    close(trained(whole(tiling, grafting=None)), expected)
    differs(close, trained_by_jorge(tiling), expected)


def test_grafting_on_sgd_by_name_and_by_transformation_agree():
    tiling = Tiling(3)
    expected = trained_by_jorge(tiling)
    for sgd in (optax.trace(MOMENTUM), optax.sgd(1.0, MOMENTUM)):
        close(trained(whole(tiling, grafting=sgd)), expected)
    differs(close, trained(whole(tiling, grafting=optax.sgd(1.0, 0.5))), expected)


def test_grafting_on_sgd_by_name_and_by_transformation_agree_without_tiles():
    trace = whole(None, grafting=optax.trace(MOMENTUM))
    close(trained(trace), trained_by_jorge(None))
    differs(close, trained_by_jorge(Tiling(3)), trained_by_jorge(None))


def test_grafting_on_sgd_and_on_its_trace_agree():
    def updates_at(magnitude):
        return trained(graft(magnitude, optax.scale_by_rms(), tiling=Tiling(3)))

    trace = updates_at(optax.trace(0.9))
    close(updates_at(optax.sgd(1.0, 0.9)), trace)
    differs(close, updates_at(optax.sgd(1.0, 0.8)), trace)


def test_leaves_without_roots_take_sgd_steps():
    shapes = {
        "bias": (5,),
        "scale": (),
        "column": (7, 1),
        "row": (1, 7),
        "left": (4, 4),
    }
    params = {key: normal(i, shape) for i, (key, shape) in enumerate(shapes.items())}
    gradients = {key: normal(9, (STEPS, *shape)) for key, shape in shapes.items()}

    def view(path, shape):
        return None if path == "left" else default_view(shape)

    everywhere = optax.chain(
        optax.trace(MOMENTUM),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_learning_rate(schedule),
    )
    expected = train(everywhere, params, gradients)
    updates = train(whole(Tiling(view=view), weight_decay_mask=None), params, gradients)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    with_roots = train(whole(None, weight_decay_mask=None), params, gradients)
    differs(chex.assert_trees_all_close, with_roots["left"], expected["left"])

    # Without decay this is optax.sgd itself; decoupled, decay adds its own term.
    sgd = train(optax.sgd(schedule, MOMENTUM), params, gradients)
    undecayed = train(whole(Tiling(view=view), weight_decay=0.0), params, gradients)
    chex.assert_trees_all_close(undecayed, sgd, rtol=1e-6)
    differs(chex.assert_trees_all_close, updates, sgd)
    rates = np.asarray([schedule(count) for count in range(STEPS)])
    for key, shape in shapes.items():
        steps = np.asarray(updates[key], np.float64)
        before = np.asarray(params[key]) + np.cumsum(steps, 0) - steps
        rate = rates.reshape(-1, *(1,) * len(shape))
        by_hand = np.asarray(sgd[key]) - rate * DECAY * before
        np.testing.assert_allclose(steps, by_hand, rtol=1e-4, atol=1e-6)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(steps, sgd[key], rtol=1e-4, atol=1e-6)
