"""Single-shot tuning: the paper's tables, what carries over, and bad input."""

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
    left_out = ("embedding", "head", "lm_head")
    params = {name: jnp.ones((6, 5)) for name in (*left_out, "dense", "heads")}
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
    config = from_adamw(0.1)
    assert "leave_out        ['embed', 'position', '/head/', 'lm_head']" in str(config)
    ours, adamw = (
        tx.update(grads, tx.init(params), params)[0]
        for tx in (config.optimizer(), optax.adamw(0.1))
    )
    for name in left_out:
        chex.assert_trees_all_close(ours[name], adamw[name], rtol=1e-5)
    for name in ("dense", "heads"):
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(ours[name], adamw[name], rtol=1e-2)
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
    np.testing.assert_allclose(rates, [0.0425, 0.02125, 0], atol=1e-8)
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
