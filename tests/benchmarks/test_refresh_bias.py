"""The bias of the paper's refresh."""

import pytest

from benchmarks.numerics.refresh_bias import bias_after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("side", "commuting", "low", "high"),
    [
        (1, True, 0.18, 0.22),
        (4, True, 0.04, 0.14),
        (64, True, 0.005, 0.02),
        (4, False, 0.06, 0.18),
        (64, False, 0.02, 0.05),
    ],
)
def test_bias_of_the_full_refresh_against_exact_roots(side, commuting, low, high):
    """The measured bias (benchmarks/results/refresh_bias.json) is what it was."""
    assert low <= bias_after(200, side, commuting, seed=0) <= high
