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


def test_a_best_rate_inside_ends_the_search():
    assert search({"sgd": 1}) == {"sgd": [-2, -1, 0, 1, 2]}


def test_it_goes_beyond_an_edge_until_the_best_is_inside():
    assert search({"sgd": 3}) == {"sgd": [-2, -1, 0, 1, 2, 3, 4]}
    assert search({"sgd": 3}, beyond=2) == {"sgd": [-2, -1, 0, 1, 2, 3, 4]}
    assert search({"sgd": -2}, beyond=2) == {"sgd": [-4, -3, -2, -1, 0, 1, 2]}


def test_all_families_try_equally_many_on_the_side_of_their_best():
    tried = search({"sgd": 2, "adamw": -1, "muon": 1})
    assert tried["adamw"] == [-3, -2, -1, 0, 1, 2]
    assert tried["muon"] == tried["sgd"] == [-2, -1, 0, 1, 2, 3]


def test_a_smoke_run_does_not_widen():
    assert search({"sgd": 9}, widen=False) == {"sgd": [-2, -1, 0, 1, 2]}
