"""Single-shot tuning: the paper's tables, the schedule, and bad input."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    JorgeConfig,
    Whitening,
    from_adamw,
    from_scratch,
    from_sgd,
    growing_interval_schedule,
    jorge,
    lengths,
    thirds_decay_schedule,
)
from jorge_optax._schedules import StepDecay

# The paper's appendix: SGD's table, and Jorge's, for the same four benchmarks.
PAPER = {
    "ResNet-50, batch 1024": {
        "sgd": (0.4, 0.9, 1e-4),
        "epochs": 90,
        "warmup_epochs": 5,
        "sgd_schedule": "warm-up, then steps at 30 and 60",
        "jorge": (0.4, 0.9, 1e-3),
        "decays_at": (30, 60),
        "interval": 50,
    },
    "ResNet-50, batch 256": {
        "sgd": (0.1, 0.9, 1e-4),
        "epochs": 90,
        "warmup_epochs": 0,
        "sgd_schedule": "steps at 30 and 60",
        "jorge": (0.1, 0.9, 1e-3),
        "decays_at": (30, 60),
        "interval": 2,
    },
    "DeepLabv3": {
        "sgd": (0.02, 0.9, 1e-4),
        "epochs": 30,
        "warmup_epochs": 0,
        "sgd_schedule": "polynomial",
        "jorge": (0.02, 0.9, 1e-3),
        "decays_at": (10, 20),
        "interval": 4,
    },
    "Mask R-CNN": {
        "sgd": (0.02, 0.9, 1e-4),
        "epochs": 26,
        "warmup_epochs": 0,
        "sgd_schedule": "steps at 16 and 22",
        "jorge": (0.02, 0.9, 1e-3),
        "decays_at": (8, 16),
        "interval": 8,
    },
}
STEPS_PER_EPOCH = 7


def sgd_schedule(row):
    """SGD's learning rate over the steps, as the paper's table has it."""
    peak, total = row["sgd"][0], row["epochs"] * STEPS_PER_EPOCH
    warmup = row["warmup_epochs"] * STEPS_PER_EPOCH
    if row["sgd_schedule"] == "polynomial":
        return optax.polynomial_schedule(peak, 0.0, 0.9, total)
    epochs = (16, 22) if "16" in row["sgd_schedule"] else (30, 60)
    drops = {epoch * STEPS_PER_EPOCH: 0.1 for epoch in epochs}
    steps = optax.piecewise_constant_schedule(peak, drops)
    if not warmup:
        return steps
    return lambda count: jnp.where(count < warmup, peak * count / warmup, steps(count))


def step_decay(config):
    """The schedule of a config; its numbers can be read."""
    assert isinstance(config.learning_rate, StepDecay)
    return config.learning_rate


@pytest.mark.parametrize("form", ["number", "schedule"])
@pytest.mark.parametrize("benchmark", PAPER)
def test_the_papers_table_for_jorge_follows_from_its_table_for_sgd(benchmark, form):
    row = PAPER[benchmark]
    rate, momentum, decay = row["sgd"]
    warmup = row["warmup_epochs"] * STEPS_PER_EPOCH
    config = from_sgd(
        rate if form == "number" else sgd_schedule(row),
        momentum,
        decay,
        epochs=row["epochs"],
        steps_per_epoch=STEPS_PER_EPOCH,
        warmup_steps=warmup if form == "number" else None,
    )
    schedule = step_decay(config)
    found = schedule.peak_value, config.momentum, config.weight_decay
    assert found == row["jorge"]
    assert schedule.boundaries == tuple(e * STEPS_PER_EPOCH for e in row["decays_at"])
    assert schedule.warmup_steps == warmup
    for number, epoch in enumerate(row["decays_at"]):
        step = epoch * STEPS_PER_EPOCH
        chex.assert_trees_all_close(float(schedule(step - 1)), rate * 0.1**number)
        chex.assert_trees_all_close(float(schedule(step)), rate * 0.1 ** (number + 1))
    # Negative control: another number of epochs decays elsewhere.
    other = from_sgd(
        rate, momentum, decay, epochs=row["epochs"] + 3, steps_per_epoch=STEPS_PER_EPOCH
    )
    assert step_decay(other).boundaries != schedule.boundaries


def test_schedule_is_exact_at_its_boundaries_and_in_its_warmup():
    schedule = thirds_decay_schedule(0.4, 90, warmup_steps=5, warmup_from=0.1)
    expected = {0: 0.1, 1: 0.16, 4: 0.34, 5: 0.4, 29: 0.4, 30: 0.04, 59: 0.04}
    expected |= {60: 0.004, 89: 0.004, 10_000: 0.004}
    for step, rate in expected.items():
        chex.assert_trees_all_close(float(schedule(step)), rate, rtol=1e-6)
    jitted = jax.jit(schedule)
    for step in (0, 4, 5, 29, 30, 60):
        chex.assert_trees_all_close(jitted(jnp.int32(step)), schedule(step))


def test_schedule_does_what_join_schedules_does_not():
    """optax.join_schedules restarts the count: the decay would come 5 steps late."""
    joined = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.1, 5), thirds_decay_schedule(0.1, 90)], [5]
    )
    ours = thirds_decay_schedule(0.1, 90, warmup_steps=5)
    assert float(ours(30)) == pytest.approx(0.01)
    assert float(joined(30)) == pytest.approx(0.1)


def test_config_prints_goes_to_json_can_be_changed_and_trains():
    mask = {"w": True}
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90, weight_decay_mask=mask)
    assert "weight_decay     0.001" in str(config)
    entries = json.loads(json.dumps(config.to_dict()))
    assert entries["learning_rate"] == "0.1, times 0.1 at steps 30, 60"
    assert entries["rule"] == "BinomialSeries()"
    assert entries["grafting"] == "sgd"
    assert "weight_decay_mask" not in entries
    assert config.replace(update_interval=3).update_interval == 3
    with pytest.raises(AttributeError):
        config.momentum = 0.5
    params = {"w": jnp.ones((3, 2))}
    grads = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))}
    by_hand = jorge(thirds_decay_schedule(0.1, 90), 0.9, 1e-3, mask, update_interval=10)
    updates = [
        tx.update(grads, tx.init(params), params)[0]
        for tx in (by_hand, config.optimizer())
    ]
    chex.assert_trees_all_equal(updates[0], updates[1])
    faster = config.optimizer(learning_rate=0.2)
    other = faster.update(grads, faster.init(params), params)[0]
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(other, updates[1])


def test_what_is_not_carried_over_is_said():
    config = from_sgd(
        optax.cosine_decay_schedule(0.1, 90), 0.9, 1e-4, total_steps=90, nesterov=True
    )
    assert any("Nesterov" in note for note in config.notes)
    assert any("step decay in thirds" in note for note in config.notes)
    warm = optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 90)
    config = from_sgd(warm, 0.9, 1e-4, total_steps=90)
    assert step_decay(config).warmup_steps == 10
    assert step_decay(config).peak_value == 0.1
    assert any("warm-up" in note for note in config.notes)


def test_decay_that_is_decoupled_already_is_not_divided():
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90, decoupled=True)
    assert config.weight_decay == 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must lie in \[0, 1\)"),
        (
            {"weight_decay": -1e-4},
            "weight_decay must be finite and at least 0, got -0.0001",
        ),
        ({"total_steps": None}, "Pass the length of training"),
        ({"epochs": 90}, "Pass the length of training"),
        ({"total_steps": None, "epochs": 90}, "Pass the length of training"),
        ({"total_steps": 2}, "total_steps must be at least 3"),
        (
            {"total_steps": None, "epochs": 2, "steps_per_epoch": 5},
            "at least 3 epochs",
        ),
        ({"learning_rate": 0.0}, "must be finite, and positive"),
        ({"learning_rate": lambda step: step * jnp.nan}, "must be finite"),
        ({"learning_rate": lambda step: "no number"}, "cannot be transferred"),
        ({"learning_rate": lambda step: jnp.ones(3)}, "cannot be transferred"),
        (
            {"learning_rate": optax.linear_schedule(0.0, 0.1, 90)},
            "reaches beyond the first decay",
        ),
    ],
)
def test_wrong_input_gets_a_clear_answer(arguments, message):
    good = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    with pytest.raises(ValueError, match=message):
        from_sgd(**{**good, "total_steps": 90, **arguments})


def test_step_decay_rejects_a_warmup_beyond_its_first_boundary():
    with pytest.raises(ValueError, match=r"warmup_steps must lie in \[0, 30\]"):
        thirds_decay_schedule(0.1, 90, warmup_steps=31)
    with pytest.raises(ValueError, match="total_steps must be at least 1"):
        thirds_decay_schedule(0.1, 0)


def refresh_steps(interval, steps):
    return [step for step in range(steps) if step % int(interval(step)) == 0]


@pytest.mark.parametrize(("last", "first", "refreshes"), [(50, 1, 10), (64, 4, 3)])
def test_growing_interval_refreshes_often_early_and_rarely_later(
    last, first, refreshes
):
    interval = growing_interval_schedule(last, first=first, refreshes=refreshes)
    steps = refresh_steps(interval, 3000)
    gaps = np.diff(steps)
    assert gaps[0] == first
    assert gaps[-1] == last
    assert np.all(gaps >= first)
    assert np.all(gaps <= last)
    # It never shrinks, but once where `last` is no multiple of the interval before.
    assert np.sum(np.diff(gaps) < 0) <= (last == 50)
    doublings = np.log2(last / first)
    constant = 3000 / last
    assert len(steps) < constant + (refreshes + 2) * (doublings + 2)


def test_growing_interval_drives_the_optimizer():
    optimizer = jorge(0.1, update_interval=growing_interval_schedule(4, refreshes=2))
    state = optimizer.init(jnp.zeros((4, 3)))
    update = jax.jit(optimizer.update)
    refreshed = []
    for step in range(16):
        before = optax.tree.get(state, "roots")
        _, state = update(jax.random.normal(jax.random.key(step), (4, 3)), state)
        after = optax.tree.get(state, "roots")
        if (before["4x3"].left != after["4x3"].left).any():
            refreshed.append(step)
    assert refreshed == refresh_steps(growing_interval_schedule(4, refreshes=2), 16)


def test_growing_interval_rejects_nonsense():
    with pytest.raises(ValueError, match="1 <= first <= last"):
        growing_interval_schedule(4, first=8)
    with pytest.raises(ValueError, match="refreshes must be at least 1"):
        growing_interval_schedule(4, refreshes=0)


def test_from_adamw_grafts_onto_adams_length():
    rng = np.random.default_rng(0)
    params = {"w": jnp.ones((6, 5)), "b": jnp.ones(5)}
    config = from_adamw(0.1, 0.8, 0.95, 1e-6, weight_decay=0.01)
    assert config.grafting == lengths.Adam(0.95, 1e-6)
    entries = json.loads(json.dumps(config.to_dict()))
    assert entries["grafting"] == "Adam(b2=0.95, eps=1e-06)"
    optimizers = {
        "jorge": config.optimizer(),
        "adamw": optax.adamw(0.1, 0.8, 0.95, 1e-6, weight_decay=0.01),
    }
    states = {name: tx.init(params) for name, tx in optimizers.items()}
    for _ in range(5):
        grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
        updates = {}
        for name, tx in optimizers.items():
            updates[name], states[name] = tx.update(grads, states[name], params)
        # Leaves without roots take AdamW's own step.
        chex.assert_trees_all_close(
            updates["jorge"]["b"], updates["adamw"]["b"], rtol=1e-5
        )
        # The others its length, decay apart, but not its direction.
        decay = 0.1 * 0.01 * params["w"]
        norms = [jnp.linalg.norm(u["w"] + decay) for u in updates.values()]
        chex.assert_trees_all_close(*norms, rtol=1e-5)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(updates["jorge"], updates["adamw"], rtol=1e-2)


def test_from_adamw_keeps_a_schedule_and_rejects_nonsense():
    schedule = optax.cosine_decay_schedule(0.1, 100)
    config = from_adamw(schedule)
    assert config.kwargs()["learning_rate"] is schedule
    assert "a schedule" in str(config)
    with pytest.raises(ValueError, match=r"b2 must lie in \[0, 1\), got 1.0"):
        from_adamw(0.1, b2=1.0)
    with pytest.raises(ValueError, match="weight_decay must be finite and at least 0"):
        from_adamw(0.1, weight_decay=-1)


@pytest.mark.parametrize("derive", [from_sgd, from_adamw])
def test_a_rule_is_passed_on_and_printed_by_what_differs_from_its_defaults(derive):
    length = {"total_steps": 90} if derive is from_sgd else {}
    arguments = {"learning_rate": 0.1, "weight_decay": 1e-4, **length}
    if derive is from_sgd:
        arguments["momentum"] = 0.9
    rule = Whitening(beta2=0.8, early_refreshes=5)
    config = derive(**arguments, rule=rule)
    assert isinstance(config, JorgeConfig)
    assert config.kwargs()["rule"] is rule
    text = "Whitening(beta2=0.8, early_refreshes=5)"
    assert config.to_dict()["rule"] == text
    assert f"rule             {text}" in str(config)
    assert "rule=Whitening(beta2=0.8" in repr(config)
    default = BinomialSeries() if derive is from_sgd else Whitening()
    assert derive(**arguments).rule == default
    state = config.optimizer().init({"w": jnp.ones((3, 2))})
    assert optax.tree.get(state, "roots")["3x2"].left.shape == (1, 3, 3)


def test_left_out_parameters_take_the_step_of_adam():
    rng = np.random.default_rng(1)
    params = {"embedding": jnp.ones((6, 5)), "dense": jnp.ones((6, 5))}
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
    config = from_adamw(0.1)
    assert "leave_out        ['embed', 'position']" in str(config)
    ours, adamw = (
        tx.update(grads, tx.init(params), params)[0]
        for tx in (config.optimizer(), optax.adamw(0.1))
    )
    chex.assert_trees_all_close(ours["embedding"], adamw["embedding"], rtol=1e-5)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours["dense"], adamw["dense"], rtol=1e-2)
    everywhere = config.replace(leave_out=())
    assert "leave_out" not in str(everywhere)
    tx = everywhere.optimizer()
    updates, _ = tx.update(grads, tx.init(params), params)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(updates["embedding"], adamw["embedding"], rtol=1e-2)


# --- from nothing --------------------------------------------------------------------


def test_from_scratch_needs_the_length_of_training_alone():
    config = from_scratch(200)
    assert config.rule == Whitening()
    assert config.grafting == lengths.Shape()
    assert config.weight_decay == 0
    rates = [float(config.learning_rate(step)) for step in (0, 100, 200)]
    np.testing.assert_allclose(rates, [0.05, 0.025, 0], atol=1e-8)
    warm = from_scratch(200, warmup_steps=20, learning_rate=0.1).learning_rate
    np.testing.assert_allclose(
        [float(warm(step)) for step in (0, 10, 20, 110, 200)],
        [0, 0.05, 0.1, 0.05, 0],
        atol=1e-8,
    )


def test_from_scratch_trains_and_leaves_out_what_it_names():
    target = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)))
    params = {"w": jnp.zeros((6, 4)), "head": jnp.zeros((4, 3))}

    def loss(params):
        return jnp.sum((params["w"] - target) ** 2) + jnp.sum(params["head"] ** 2)

    leave_out = ("head",)
    optimizer = from_scratch(200, learning_rate=0.2, leave_out=leave_out).optimizer()
    state = optimizer.init(params)
    assert set(optax.tree.get(state, "roots")) == {"6x4"}
    update = jax.jit(lambda g, s, p: optimizer.update(g, s, p))
    for _ in range(200):
        updates, state = update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    assert loss(params) < 0.01 * jnp.sum(target**2)
    kept = from_scratch(200).optimizer().init(params)
    assert set(optax.tree.get(kept, "roots")) == {"6x4", "4x3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(total_steps=0), "total_steps=0"),
        (dict(total_steps=10, warmup_steps=10), "longer than its warm-up"),
        (dict(total_steps=10, learning_rate=-0.1), "learning_rate must be"),
        (dict(total_steps=10, momentum=1.0), "momentum must lie in"),
        (dict(total_steps=10, weight_decay=-1.0), "weight_decay must be"),
    ],
)
def test_from_scratch_refuses_nonsense(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_scratch(**arguments)
