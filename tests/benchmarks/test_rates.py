"""The search for learning rates, which all studies share."""

import pytest

from benchmarks.harness import rates


@pytest.mark.parametrize("rate", [1e-4, 0.002, 0.05, 0.5, 1.0, 20.0])
def test_rungs_and_rates_are_inverse(rate):
    assert rates.rate_of(rates.rung_of(rate)) == rate


def search(optima, **options):
    """What is tried where the family's run is the better the nearer to its optimum."""
    ran = {name: [] for name in optima}

    def best(name):
        rungs = map(rates.rung_of, ran[name])
        return rates.rate_of(min(rungs, key=lambda rung: abs(rung - optima[name])))

    tried = {name: rates.around(1.0, 2) for name in optima}
    rates.search(tried, lambda name, rate: ran[name].append(rate), best, **options)
    return {name: sorted(rungs) for name, rungs in tried.items()}


SEARCHES = [
    # A best rate inside ends the search; one at an edge widens it until it is inside.
    ({"sgd": 1}, {}, {"sgd": [-2, -1, 0, 1, 2]}),
    ({"sgd": 3}, {}, {"sgd": [-2, -1, 0, 1, 2, 3, 4]}),
    ({"sgd": -2}, {"beyond": 2}, {"sgd": [-4, -3, -2, -1, 0, 1, 2]}),
    # A smoke run does not widen.
    ({"sgd": 9}, {"widen": False}, {"sgd": [-2, -1, 0, 1, 2]}),
    # All families try equally many on the side of their best.
    (
        {"sgd": 2, "adamw": -1, "muon": 1},
        {},
        {
            "sgd": [-2, -1, 0, 1, 2, 3],
            "adamw": [-3, -2, -1, 0, 1, 2],
            "muon": [-2, -1, 0, 1, 2, 3],
        },
    ),
]


@pytest.mark.parametrize(("optima", "options", "tried"), SEARCHES)
def test_rungs_that_a_search_tries(optima, options, tried):
    assert search(optima, **options) == tried
