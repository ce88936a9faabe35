"""Single-shot tuning: the paper's tables, the schedule, and bad input."""

import copy
import json
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    JorgeConfig,
    Tiling,
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
        "jorge": (0.4, 0.9, 1e-3),
        "decays_at": (30, 60),
        "interval": 50,
    },
    "ResNet-50, batch 256": {
        "sgd": (0.1, 0.9, 1e-4),
        "epochs": 90,
        "warmup_epochs": 0,
        "jorge": (0.1, 0.9, 1e-3),
        "decays_at": (30, 60),
        "interval": 2,
    },
    "DeepLabv3": {
        "sgd": (0.02, 0.9, 1e-4),
        "epochs": 30,
        "warmup_epochs": 0,
        "jorge": (0.02, 0.9, 1e-3),
        "decays_at": (10, 20),
        "interval": 4,
    },
    "Mask R-CNN": {
        "sgd": (0.02, 0.9, 1e-4),
        "epochs": 26,
        "warmup_epochs": 0,
        "jorge": (0.02, 0.9, 1e-3),
        "decays_at": (8, 16),
        "interval": 8,
    },
}
STEPS_PER_EPOCH = 7


def step_decay(config):
    """The schedule of a config; its numbers can be read."""
    assert isinstance(config.learning_rate, StepDecay)
    return config.learning_rate


@pytest.mark.parametrize("benchmark", PAPER)
def test_the_papers_table_for_jorge_follows_from_its_table_for_sgd(benchmark):
    row = PAPER[benchmark]
    rate, momentum, decay = row["sgd"]
    warmup = row["warmup_epochs"] * STEPS_PER_EPOCH
    config = from_sgd(
        rate,
        momentum,
        decay,
        epochs=row["epochs"],
        steps_per_epoch=STEPS_PER_EPOCH,
        warmup_steps=warmup,
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
    faster = config.replace(learning_rate=0.2).optimizer()
    other = faster.update(grads, faster.init(params), params)[0]
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(other, updates[1])


def test_a_configuration_used_as_an_optimizer_says_what_is_missing():
    config = from_adamw(1e-3)
    for name in ("init", "update"):
        with pytest.raises(AttributeError, match=r"config.optimizer\(\) to make one"):
            getattr(config, name)
    with pytest.raises(AttributeError, match="no attribute 'lr'$"):
        config.lr  # noqa: B018
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))


def test_early_refreshes_are_printed_with_the_interval():
    early = "update_interval  10, and 1 in the first 50 steps\n"
    assert early in str(from_adamw(1e-3))
    assert "update_interval  10\n" in str(from_adamw(1e-3, rule=BinomialSeries()))
    assert from_adamw(1e-3).to_dict()["update_interval"] == 10


def test_a_run_without_decay_need_not_say_so():
    schedule = optax.constant_schedule(0.1)
    assert from_sgd(schedule, 0.9) == from_sgd(schedule, 0.9, 0.0)
    assert from_sgd(schedule, 0.9, 1e-4) != from_sgd(schedule, 0.9)


def test_what_is_not_carried_over_is_said():
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90, nesterov=True)
    assert "momentum is heavy ball" in config.notes[0]
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90, nesterov=True, rule=Whitening())
    assert "heavy ball" not in config.notes[0]
    assert "Nesterov's direction of its own" in config.notes[0]
    assert not from_sgd(0.1, 0.9, 1e-4, total_steps=90).notes


# The user's own schedule.

DERIVATIONS = {
    "sgd": lambda rate, **options: from_sgd(rate, 0.9, 1e-4, **options),
    "adamw": from_adamw,
}


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS.keys())
def test_a_schedule_is_kept_and_printed_by_its_values(derive):
    schedule = optax.cosine_decay_schedule(0.1, 1000)
    config = derive(schedule)
    assert config.learning_rate is schedule
    assert config.kwargs()["learning_rate"] is schedule
    text = "a schedule: 0.1 at step 0, 0.09755 at 100, 0 at 1000"
    assert f"learning_rate    {text}\n" in str(config)
    assert json.loads(json.dumps(config.to_dict()))["learning_rate"] == text
    other = derive(optax.cosine_decay_schedule(0.1, 2000))
    assert text not in str(other)


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS.keys())
def test_a_kept_schedule_gives_the_steps_of_jorge_called_with_it(derive):
    schedule = optax.linear_schedule(0.1, 0.0, 4)
    config = derive(schedule)
    by_hand = jorge(
        schedule,
        0.9,
        config.weight_decay,
        rule=config.rule,
        grafting=config.grafting,
    )
    thirds = config.replace(learning_rate=thirds_decay_schedule(0.1, 4)).optimizer()
    params = {"w": jnp.ones((3, 2))}
    grads = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))}

    def last_update(tx):
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(grads, state, params)
        return updates

    ours = last_update(config.optimizer())
    chex.assert_trees_all_equal(ours, last_update(by_hand))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours, last_update(thirds))


def test_a_replaced_rate_is_what_runs_and_what_is_printed():
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90)
    assert "0.1, times 0.1 at steps 30, 60" in str(config)
    schedule = optax.cosine_decay_schedule(0.1, 90)
    kept = config.replace(learning_rate=schedule)
    assert kept == from_sgd(schedule, 0.9, 1e-4)
    assert "times 0.1" not in str(kept)
    assert "learning_rate    0.2\n" in str(config.replace(learning_rate=0.2))
    growing = config.replace(update_interval=growing_interval_schedule(50))
    assert "update_interval  a schedule: 1 at step 0, 8 at 100, " in str(growing)


@pytest.mark.parametrize("name", ["learning_rate", "rule", "weight_decay_mask"])
def test_overrides_that_print_would_not_show_are_sent_to_replace(name):
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90)
    message = f"config.replace\\({name}=...\\).optimizer"
    with pytest.raises(TypeError, match=message):
        config.optimizer(**{name: None})
    # Options that a configuration does not have may be passed.
    state = config.optimizer(root_dtype="bfloat16").init({"w": jnp.ones((3, 2))})
    assert optax.tree.get(state, "roots")["3x2"].left.dtype == jnp.bfloat16


def test_decay_that_is_decoupled_already_is_not_divided():
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90, decoupled=True)
    assert config.weight_decay == 1e-4


WRONG = {
    "momentum of one": ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
    "momentum below zero": ({"momentum": -0.1}, r"momentum must lie in \[0, 1\)"),
    "momentum by schedule": (
        {"momentum": optax.constant_schedule(0.9)},
        "momentum must be a number, got a function.*inject_hyperparams",
    ),
    "negative decay": (
        {"weight_decay": -1e-4},
        "weight_decay must be finite and at least 0, got -0.0001",
    ),
    "no length": ({"total_steps": None}, "Pass the length of training.*schedule"),
    "two lengths": ({"epochs": 90}, "Pass the length of training"),
    "half a length": (
        {"total_steps": None, "epochs": 90},
        "Pass the length of training",
    ),
    "too short": ({"total_steps": 2}, "total_steps must be an integer of at least 3"),
    "two epochs": (
        {"total_steps": None, "epochs": 2, "steps_per_epoch": 5},
        "epochs must be an integer of at least 3 .*got 2. .*total_steps",
    ),
    "fractional epoch": (
        {"total_steps": None, "epochs": 9, "steps_per_epoch": 10.5},
        "steps_per_epoch must be an integer of at least 1 .*got 10.5. .*batch_size",
    ),
    "fractional length": ({"total_steps": 90.5}, "total_steps must be an integer"),
    "long warm-up": ({"warmup_steps": 31}, "warmup_steps must lie in .0, 30."),
    "fractional warm-up": ({"warmup_steps": 1.5}, "warmup_steps must be an integer"),
    "no rate": ({"learning_rate": None}, "learning_rate must be a number or a sched"),
    "rate of zero": ({"learning_rate": 0.0}, "learning_rate must be positive"),
    "negative rate": ({"learning_rate": -0.1}, "learning_rate must be finite and"),
    "a transformation": (
        {"learning_rate": optax.sgd(0.1)},
        "learning_rate must be .* got an optax transformation. Pass the arguments",
    ),
    "a schedule and a length": (
        {"learning_rate": optax.cosine_decay_schedule(0.1, 90)},
        "total_steps.* belongs to step decay in thirds.*keep your schedule.*largest",
    ),
    "a schedule and a warm-up": (
        {
            "learning_rate": optax.cosine_decay_schedule(0.1, 90),
            "total_steps": None,
            "warmup_steps": 5,
        },
        "warmup_steps belongs to step decay in thirds",
    ),
    "a schedule of words": (
        {"learning_rate": lambda step: "no number", "total_steps": None},
        "learning_rate must be .* one number",
    ),
    "interval of zero": (
        {"update_interval": 0},
        "update_interval must be an integer of at least 1 .*got 0. The roots are",
    ),
    "a rule's class": ({"rule": Whitening}, r"write rule=Whitening\(\)"),
    "a rule's name": ({"rule": "whitening"}, r"write rule=Whitening\(\)"),
    "a mask's name": ({"weight_decay_mask": "kernel"}, "weight_decay_mask must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gets_a_clear_answer(name):
    arguments, message = WRONG[name]
    good = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    with pytest.raises((ValueError, TypeError), match=message):
        from_sgd(**{**good, "total_steps": 90, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"learning_rate": optax.adamw(0.1)},
            r"got an optax transformation.*for optax.adamw\(1e-3\), from_adamw\(1e-3\)",
        ),
        ({"learning_rate": -0.1}, "learning_rate must be finite and at least 0"),
        ({"update_interval": 0}, "update_interval must be an integer"),
        ({"rule": Whitening}, "rule must be"),
        ({"leave_out": "embed"}, r"leave_out must be a tuple.*leave_out=\('embed',\)"),
    ],
)
def test_wrong_input_to_from_adamw_and_to_replace(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_adamw(**{"learning_rate": 0.1, **arguments})
    with pytest.raises((ValueError, TypeError), match=message):
        from_adamw(0.1).replace(**arguments)


def test_only_options_of_jorge_are_injected():
    schedule = optax.constant_schedule(0.9)
    with pytest.raises(TypeError, match=r"b1 must be a number.* Pass a number.$"):
        from_adamw(0.1, b1=schedule)
    with pytest.raises(TypeError, match=r"inject_hyperparams\(jorge\).*momentum=sched"):
        from_sgd(0.1, schedule, 1e-4, total_steps=90)


def test_step_decay_rejects_nonsense():
    with pytest.raises(ValueError, match=r"warmup_steps must lie in \[0, 30\]"):
        thirds_decay_schedule(0.1, 90, warmup_steps=31)
    for total in (0, 2, 90.5):
        message = f"total_steps must be an integer of at least 3.*got {total}"
        with pytest.raises(ValueError, match=message):
            thirds_decay_schedule(0.1, total)
    with pytest.raises(TypeError, match="peak_value must be a number, got a function"):
        thirds_decay_schedule(optax.constant_schedule(0.1), 90)
    shortest = thirds_decay_schedule(0.1, 3)
    assert isinstance(shortest, StepDecay)
    assert shortest.boundaries == (1, 2)


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
    with pytest.raises(ValueError, match="refreshes must be an integer of at least 1"):
        growing_interval_schedule(4, refreshes=0)


def test_from_adamw_grafts_onto_adams_length():
    rng = np.random.default_rng(0)
    params = {"w": jnp.ones((6, 5)), "b": jnp.ones(5)}
    config = from_adamw(0.1, 0.8, 0.95, 1e-6, weight_decay=0.01)
    assert config.grafting == lengths.Adam(0.95, 1e-6, scale=2)
    entries = json.loads(json.dumps(config.to_dict()))
    assert entries["grafting"] == "Adam(b2=0.95, eps=1e-06, scale=2.0)"
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
        # The others twice its length, decay apart, but not its direction.
        decay = 0.1 * 0.01 * params["w"]
        norms = [jnp.linalg.norm(u["w"] + decay) for u in updates.values()]
        chex.assert_trees_all_close(norms[0], 2 * norms[1], rtol=1e-5)
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
    # From AdamW, whitened steps are twice as long, those of the paper's rule are not.
    assert getattr(config.grafting, "scale", 1) == (2 if derive is from_adamw else 1)
    series = derive(**arguments, rule=BinomialSeries())
    assert getattr(series.grafting, "scale", 1) == 1
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


def test_a_tiling_leaves_out_what_the_configuration_leaves_out():
    params = {"embedding": jnp.ones((6, 4)), "dense": jnp.ones((6, 4))}
    config = from_adamw(0.1, weight_decay_mask={"embedding": False, "dense": True})
    for options, expected in ({}, {"6x4": 1}), ({"tiling": Tiling(3)}, {"3x2": 4}):
        state = config.optimizer(**options).init(params)
        roots = optax.tree.get(state, "roots")
        assert {key: len(sides.left) for key, sides in roots.items()} == expected


# --- from nothing --------------------------------------------------------------------


def test_from_scratch_needs_the_length_of_training_alone():
    config = from_scratch(200)
    assert config.rule == Whitening()
    assert config.grafting == lengths.Shape()
    assert config.weight_decay == 0
    rates = [float(config.learning_rate(step)) for step in (0, 100, 200)]
    np.testing.assert_allclose(rates, [0.04, 0.02, 0], atol=1e-8)
    warm = from_scratch(200, warmup_steps=20, learning_rate=0.1).learning_rate
    np.testing.assert_allclose(
        [float(warm(step)) for step in (0, 10, 20, 110, 200)],
        [0, 0.05, 0.1, 0.05, 0],
        atol=1e-8,
    )


def test_from_scratch_prints_its_schedule():
    text = "cosine from 0.04 to 0 at step 200"
    assert f"learning_rate    {text}\n" in str(from_scratch(200))
    warm = from_scratch(200, warmup_steps=20)
    assert f"learning_rate    {text}, warm-up of 20 steps\n" in str(warm)
    expected = optax.warmup_cosine_decay_schedule(0.0, 0.04, 20, 200)
    for step in (0, 7, 20, 100, 200):
        assert warm.learning_rate(step) == expected(step)


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
        (dict(total_steps=0), "total_steps must be an integer of at least 1"),
        (dict(total_steps=90.5), "total_steps must be an integer"),
        (
            dict(total_steps=90, learning_rate=optax.constant_schedule(0.1)),
            r"from_scratch\(\.\.\.\).replace\(learning_rate=schedule\)",
        ),
        (dict(total_steps=10, warmup_steps=10), "longer than its warm-up"),
        (dict(total_steps=10, learning_rate=-0.1), "learning_rate must be"),
        (dict(total_steps=10, momentum=1.0), "momentum must lie in"),
        (dict(total_steps=10, weight_decay=-1.0), "weight_decay must be"),
    ],
)
def test_from_scratch_refuses_nonsense(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_scratch(**arguments)
