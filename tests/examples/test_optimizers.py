"""The examples' optimizers: by name, from the configuration alone, as in the paper."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples.classification.configs import CONFIGS as CLASSIFICATION
from examples.detection.configs import CONFIGS as DETECTION
from examples.segmentation import train as segmentation
from examples.segmentation.configs import CONFIGS as SEGMENTATION
from examples.shared import optimizers
from examples.shared.config import SGD, Schedule
from jorge_optax import from_sgd_as_published
from jorge_optax.tuning import thirds_decay_schedule
from tests.examples import toy_task

PARAMS = {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}
GRADS = {"kernel": jnp.arange(12.0).reshape(4, 3) - 5, "bias": jnp.ones(3)}
CONFIG = toy_task.CONFIG


def steps(transformation, count=7, grads=GRADS):
    """The last of so many steps."""
    state, params = transformation.init(PARAMS), PARAMS
    update = jax.jit(transformation.update)
    for _ in range(count):
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return updates


def build(name, config=CONFIG, **options):
    return optimizers.build(name, config, steps=30, steps_per_epoch=10, **options)


def options(built):
    """The options that an optimizer with roots prints."""
    lines = str(built.rooted).splitlines()
    return dict(line.split(maxsplit=1) for line in lines if ":" not in line)


KERNEL_ONLY = {"kernel": True, "bias": False}
EXPECTED = {
    "sgd": optax.chain(
        optax.add_decayed_weights(1e-4, KERNEL_ONLY),
        optax.sgd(optax.cosine_decay_schedule(0.1, 30), 0.9),
    ),
    "jorge": from_sgd_as_published(
        0.1,
        0.9,
        1e-4,
        total_steps=30,
        weight_decay_mask=KERNEL_ONLY,
        update_interval=3,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_optimizers_follow_from_the_settings_of_sgd(name):
    expected = steps(EXPECTED[name])
    found = steps(build(name).transformation)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-8)
    other = dataclasses.replace(CONFIG, sgd=SGD(0.2, 1e-4, Schedule("cosine")))
    changed = steps(build(name, other).transformation)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(changed, expected, rtol=1e-5, atol=1e-8)


def test_runs_too_short_for_thirds_say_so():
    short = {"steps": 2, "steps_per_epoch": 10}
    for name in ("jorge", "jorge-whitening", "sgd/thirds"):
        with pytest.raises(ValueError, match=r"2 steps has no thirds.*--steps of 3"):
            optimizers.build(name, CONFIG, **short)
        optimizers.build(name, CONFIG, **{**short, "steps": 3})
    for name in ("sgd", "adamw", "jorge/sgd-schedule", "shampoo/sgd-schedule"):
        optimizers.build(name, CONFIG, **short)  # which have no thirds
    for name in ("sgd/sgd-schedule", "lion", "jorge/cosine", "jorge/thirds"):
        with pytest.raises(ValueError, match="there are sgd, adamw, shampoo, jorge"):
            optimizers.build(name, CONFIG, **short)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_all_leaves_decay_where_the_configuration_says_so(name):
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    everything = dataclasses.replace(CONFIG, decay_all=True)
    some, every = (
        steps(build(name, config).transformation, 1, zero)
        for config in (CONFIG, everything)
    )
    assert some["kernel"].all()
    assert not some["bias"].any()
    assert every["bias"].all()


def test_the_schedule_of_sgd_can_be_kept():
    kept, thirds = (build(name) for name in ("jorge/sgd-schedule", "jorge"))
    assert kept.learning_rate(15) == pytest.approx(0.05)
    assert thirds.learning_rate(15) == pytest.approx(0.01)
    assert build("sgd/thirds").learning_rate(15) == pytest.approx(0.01)
    assert build("adamw/thirds").learning_rate(15) == pytest.approx(0.001)
    for built in (kept, thirds):
        assert options(built)["weight_decay"] == "0.001"


def test_schedules():
    make = optimizers.schedule
    polynomial = make(Schedule("polynomial"), 1.0, 100, 10)
    np.testing.assert_allclose(polynomial(50), 0.5**0.9, rtol=1e-6)
    drops = make(Schedule("steps", drops=(3, 6), warmup_epochs=2), 1.0, 100, 10)
    rates = [float(drops(step)) for step in (0, 9, 19, 29, 31, 59, 61)]
    np.testing.assert_allclose(rates, [0.05, 0.5, 1, 1, 0.1, 0.1, 0.01], rtol=1e-5)
    with pytest.raises(ValueError, match="No schedule 'linear'"):
        make(Schedule("linear"), 1.0, 100, 10)


def test_a_part_may_have_a_larger_learning_rate():
    config = dataclasses.replace(CONFIG, learning_rate_factors=(("bias", 10.0),))
    for name in ("sgd", "jorge"):
        plain, scaled = (
            steps(build(name, c).transformation, 1) for c in (CONFIG, config)
        )
        np.testing.assert_allclose(scaled["bias"], 10 * plain["bias"], rtol=1e-6)
        np.testing.assert_array_equal(scaled["kernel"], plain["kernel"])


# The paper's tables of hyperparameters. Steps in an epoch do not matter: take 7.
PAPER = [
    (CLASSIFICATION["resnet50-1024"], 0.4, (30, 60), 5, 50, (0.004, 0.1)),
    (CLASSIFICATION["resnet50-256"], 0.1, (30, 60), 0, 2, (0.001, 0.1)),
    (SEGMENTATION["deeplabv3-64"], 0.02, (10, 20), 0, 4, (0.0002, 0.01)),
    (DETECTION["maskrcnn-32"], 0.02, (8, 16), 0, 8, (0.0002, 0.01)),
]


@pytest.mark.parametrize(("config", "rate", "drops", "warmup", "k", "adamw"), PAPER)
def test_full_size_configurations_are_the_papers(config, rate, drops, warmup, k, adamw):
    total = 7 * config.epochs
    built = optimizers.build("jorge", config, steps=total, steps_per_epoch=7)
    boundaries = tuple(7 * epoch for epoch in drops)
    expected = thirds_decay_schedule(
        rate, total, warmup_steps=7 * warmup, boundaries=boundaries
    )
    every = np.arange(total)
    np.testing.assert_array_equal(built.learning_rate(every), expected(every))
    assert config.sgd.learning_rate == rate
    assert config.sgd.weight_decay == 1e-4
    assert options(built)["weight_decay"] == "0.001"
    assert options(built)["update_interval"] == str(k)
    assert (config.adamw.learning_rate, config.adamw.weight_decay) == adamw
    assert config.adamw.schedule.kind == "cosine"


# Scoring of segmentation.


class Fixed:
    """A model whose prediction is its input."""

    def __call__(self, image):
        return jax.nn.one_hot(image[..., 0].astype(int), 3), None


def test_the_confusion_matrix_counts_labelled_pixels():
    truth = np.array([[[0, 0, 1], [2, 2, -1]]])
    guess = np.array([[[0, 1, 1], [2, 0, 2]]])
    batch = {"image": guess[..., None].astype(np.float32), "label": truth}
    total = segmentation.confusion(Fixed(), batch, 3)
    np.testing.assert_array_equal(total, [[1, 1, 0], [0, 1, 0], [1, 0, 1]])
    score = segmentation.score(np.asarray(total))
    assert score["mean_iou"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
    assert score["pixel_accuracy"] == pytest.approx(3 / 5)
    absent = np.array([[5, 0, 0], [0, 5, 0], [0, 0, 0]])  # a class that does not occur
    assert segmentation.score(absent)["mean_iou"] == 1


def test_the_loss_leaves_pixels_without_label_out():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 3, 4)))
    labels = jnp.array([[[0, 1, 2], [3, -1, -1]]])
    changed = logits.at[0, 1, 1:].add(7.0)
    loss = segmentation._cross_entropy
    np.testing.assert_array_equal(loss(logits, labels), loss(changed, labels))
    assert loss(logits, labels) != loss(logits.at[0, 0, 0, 0].add(7.0), labels)
    assert loss(logits, jnp.full_like(labels, -1)) == 0
