"""The choice of the update interval, on a clock of the test's own and on real steps."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jorge_optax import Whitening, tuning


class Clock:
    """A clock that only the steps that it makes move forward."""

    def __init__(self, monkeypatch, sgd, plain, refresh):
        self.now, self.calls, self.optimizers = 0.0, [], []
        self.seconds = {"sgd": sgd, "plain": plain, "refresh": refresh}
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def make_step(self, optimizer):
        self.optimizers.append(optimizer)
        is_jorge = len(self.optimizers) == 2

        def step(carry):
            kind = ("refresh", "plain")[carry % 2] if is_jorge else "sgd"
            self.calls.append(kind)
            # A few steps take far longer, which medians do not see.
            self.now += self.seconds[kind] * (1 if len(self.calls) % 9 else 30)
            return carry + 1

        return step, 0

    def choose(self, **options):
        options = {"make_step": self.make_step, "max_seconds": 400.0, **options}
        return tuning.choose_update_interval(**options)


CHOICES = (
    ((1.0, 1.0, 1.05), 0.1, 1),  # every step is within 10% already
    ((1.0, 1.0, 2.0), 0.1, 10),  # 1 + 1/k <= 1.1
    ((1.0, 1.02, 5.0), 0.1, 50),  # 1.02 + 3.98/k <= 1.1
    ((1.0, 0.99, 0.98), 0.1, 1),
    ((1.0, 1.3, 2.0), 0.5, 4),
)


@pytest.mark.parametrize(("times", "tolerance", "expected"), CHOICES)
def test_smallest_interval_within_the_tolerance(
    monkeypatch, times, tolerance, expected
):
    clock = Clock(monkeypatch, *times)
    choice = clock.choose(tolerance=tolerance)
    assert clock.calls[:5] == ["sgd", "refresh", "sgd", "plain", "sgd"]
    assert choice.within_tolerance
    assert choice.interval == expected
    assert choice.rounds == len(clock.calls) // 4 - 1  # the first round compiles
    found = choice.sgd_seconds, choice.plain_seconds, choice.refresh_seconds
    assert found == pytest.approx(times)
    assert choice.seconds(expected) <= (1 + tolerance) * times[0] + 1e-9
    assert expected == 1 or choice.seconds(expected - 1) > (1 + tolerance) * times[0]
    said = f"at an interval of {expected} (medians of {choice.rounds} rounds)."
    assert said in str(choice)


def test_no_interval_suffices_and_it_says_what_would_help(monkeypatch):
    choice = Clock(monkeypatch, 1.0, 1.3, 2.0).choose()
    assert not choice.within_tolerance
    assert choice.interval == 7  # 0.7 / 7 = 0.1 of SGD's time
    for words in ("interval of 7", "1.300", "max_dim", "precision", "larger batch"):
        assert words in str(choice)


def test_options_reach_the_optimizer_and_early_refreshes_are_over(monkeypatch):
    """They would be taken for plain steps."""
    clock = Clock(monkeypatch, 1.0, 1.0, 2.0)
    clock.choose(rule=Whitening(beta2=0.8), momentum=0.5, max_seconds=0)
    sgd, ours = (tx.init({"w": jnp.ones((4, 3))}) for tx in clock.optimizers)
    counts = [count for _, count in optax.tree.get_all_with_path(ours, "count")]
    assert len(counts) == 1
    assert counts[0] >= Whitening().early_refreshes
    assert counts[0] % 2 == 0
    assert jax.tree.structure(sgd) == jax.tree.structure(
        optax.sgd(0.1, 0.5).init({"w": 1})
    )
    assert len(clock.calls) == 4 * 4  # three rounds, and one that compiles


def test_a_loss_is_measured():
    def loss(params, x):
        return jnp.mean((x @ params["w"]) ** 2)

    arguments = loss, {"w": jnp.ones((16, 8))}, jnp.ones((8, 16))
    choice = tuning.choose_update_interval(*arguments, max_seconds=0, tolerance=50)
    assert choice.interval == 1
    assert choice.rounds >= 3
    assert 0 < choice.sgd_seconds < 1
    assert choice.refresh_seconds > 0
