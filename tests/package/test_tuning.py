"""The choice of the interval, on given times and on real steps."""

import io
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import Tiling, Whitening, jorge, tuning
from jorge_optax.tuning import _Bar, _choose, choose_update_interval


def times(sgd, plain, refresh, noise=0.0, rounds=50, seed=0):
    rng = np.random.default_rng(seed)
    medians = np.array([sgd, plain, refresh])
    return medians * (1 + noise * rng.exponential(size=(rounds, 3)))


@pytest.mark.parametrize(
    ("sgd", "plain", "refresh", "expected"),
    [
        (1.0, 1.0, 1.05, 1),  # every step is within 10% already
        (1.0, 1.0, 2.0, 10),  # 1 + 1/k <= 1.1
        (1.0, 1.02, 5.0, 50),  # 1.02 + 3.98/k <= 1.1
        (1.0, 1.05, 1.05, 1),
        (1.0, 0.99, 0.98, 1),
    ],
)
def test_smallest_interval_within_the_tolerance(sgd, plain, refresh, expected):
    choice = _choose(times(sgd, plain, refresh), 0.1)
    assert choice.interval == choice.low == choice.high == expected
    average = plain + max(refresh - plain, 0) / expected
    assert average <= 1.1 * sgd + 1e-9
    if expected > 1:
        assert plain + (refresh - plain) / (expected - 1) > 1.1 * sgd
    assert f"Refresh every {expected} steps" in choice.sentence
    assert "<-" in str(choice)


def test_noise_widens_the_confidence_interval_and_keeps_the_answer_near():
    quiet = _choose(times(1.0, 1.0, 2.0, noise=0.001), 0.1)
    noisy = _choose(times(1.0, 1.0, 2.0, noise=0.05), 0.1)
    assert quiet.high - quiet.low <= noisy.high - noisy.low
    assert noisy.low <= 10 <= noisy.high
    assert 5 <= noisy.interval <= 20


def test_outliers_do_not_matter():
    measured = times(1.0, 1.0, 2.0)
    measured[::7, 1] *= 30
    assert _choose(measured, 0.1).interval == 10


def test_no_interval_suffices_and_it_says_what_would_help():
    choice = _choose(times(1.0, 1.3, 2.0), 0.1)
    assert not choice.within_tolerance
    assert choice.interval == 7  # 0.7 / 7 = 0.1 of SGD's time
    assert "Refresh every 7 steps" in choice.sentence
    assert "every 7" in str(choice)
    assert choice.high is None
    for help_ in ("max_dim", "precision", "1.30", "larger batch"):
        assert help_ in choice.sentence
    wider = _choose(times(1.0, 1.3, 2.0), 0.5)
    assert wider.interval == 4
    assert wider.within_tolerance
    assert json.dumps(choice.to_dict())


def loss(params, x):
    return jnp.mean((x @ params["w"]) ** 2)


def test_measures_a_loss_within_its_time_and_shows_a_bar(capsys):
    params = {"w": jnp.ones((64, 32))}
    start = time.perf_counter()
    choice = choose_update_interval(
        loss, params, jnp.ones((256, 64)), max_seconds=4, tiling=Tiling(16)
    )
    assert time.perf_counter() - start < 60
    assert choice.rounds >= 3
    assert 0 < choice.sgd_seconds < 1
    assert choice.refresh_seconds > 0
    error = capsys.readouterr().err
    assert error.startswith("choosing the interval, in about 4 s ... ")
    assert error.endswith(f"{choice.rounds} rounds in {error.split()[-2]} s\n")
    assert error.count("\n") == 1


def test_a_terminal_gets_a_bar(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    bar = _Bar(60.0)
    bar.show(30.0)
    bar.close(60.0, 9)
    assert terminal.getvalue() == (
        "\rchoosing the interval [###############               ]   30 s\n"
    )


def test_measures_the_users_own_step_in_turn(capsys):
    """SGD, refresh, SGD, plain; with the cost of each put in by the test."""
    calls = []

    def make_step(optimizer):
        state = optimizer.init({"w": jnp.ones((4, 3))})
        is_jorge = len(jax.tree.leaves(state)) > 1

        def step(carry):
            count = carry + 1
            refreshes = is_jorge and carry % 2 == 0
            calls.append("refresh" if refreshes else "plain" if is_jorge else "sgd")
            time.sleep(0.02 if refreshes else 0.01)
            return count

        return step, 0

    choice = choose_update_interval(make_step=make_step, max_seconds=1, progress=False)
    assert calls[:4] == ["sgd", "refresh", "sgd", "plain"]
    assert choice.refresh_seconds / choice.sgd_seconds == pytest.approx(2, rel=0.2)
    assert choice.interval >= 4
    assert capsys.readouterr().err == ""


def test_a_real_choice_trains():
    params = {"w": jnp.ones((16, 8))}
    choice = choose_update_interval(
        loss, params, jnp.ones((8, 16)), max_seconds=1, progress=False, tolerance=50
    )
    assert choice.interval == 1
    assert isinstance(choice.table()[0], tuple)


def test_wrong_input():
    with pytest.raises(ValueError, match="Pass either loss, params and batch"):
        choose_update_interval()
    with pytest.raises(ValueError, match="tolerance must be positive"):
        choose_update_interval(loss, {"w": jnp.ones((2, 2))}, tolerance=0)


def test_early_refreshes_are_not_taken_for_plain_steps(monkeypatch):
    rules = []

    def recorded(*args, rule, **options):
        rules.append(rule)
        return jorge(*args, rule=rule, **options)

    monkeypatch.setattr(tuning, "jorge", recorded)
    tuning.choose_update_interval(
        lambda params: jnp.sum(params["w"] ** 2),
        {"w": jnp.ones((4, 4))},
        rule=Whitening(beta2=0.8),
        max_seconds=0,
        progress=False,
    )
    assert rules == [Whitening(beta2=0.8, early_refreshes=0)]
