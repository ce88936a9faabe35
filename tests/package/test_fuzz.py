"""A few hundred random cases, always the same ones; ``make fuzz`` runs thousands."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jorge_optax import jorge
from tests.helpers import fuzz
from tests.helpers.fuzz import SETTINGS
from tests.helpers.plain import Plain

# What takes time is compiling, once for each setting and tree.
SOME = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
seeds, rules = st.integers(0, 2**16), st.sampled_from(fuzz.EQUIVARIANT)
# Each setting in one dtype here; the long run takes all of them.
TOGETHER = [
    (name, setting.dtypes[i % len(setting.dtypes)])
    for i, (name, setting) in enumerate(SETTINGS.items())
]


@pytest.mark.parametrize(("setting", "dtype"), TOGETHER)
@SOME
@given(sequence=fuzz.sequences)
def test_any_sequence_of_gradients_is_survived(setting, dtype, sequence):
    fuzz.survives(setting, "all of these", dtype, sequence)


@SOME
@given(rules, st.sampled_from([-6, 4]), seeds)
def test_scales_permutations_and_transposes_carry_over_to_the_steps(rule, power, seed):
    fuzz.scales(rule, power, seed)
    fuzz.permutes(rule, seed)
    fuzz.transposes(seed)


@SOME
@given(fuzz.options)
def test_any_options_are_refused_by_name_or_run(options):
    fuzz.refuses_or_runs(options)


def test_the_properties_find_faults_that_there_are(monkeypatch):
    sequence = [fuzz.Step("normal", 0, 1), fuzz.Step("normal", 37, 2)]
    fuzz.survives("default", "a matrix", "float32", sequence)
    unguarded = fuzz.Setting(jorge(1.0, rule=Plain()))
    monkeypatch.setitem(SETTINGS, "unguarded", unguarded)
    step = np.ones((3, 2))
    fuzz.assert_as_long(step, -step, "float32", 1e-4)
    fuzz.assert_descends(-step, step)
    for fault in (
        lambda: fuzz.survives("unguarded", "a matrix", "float32", sequence),
        lambda: fuzz.assert_as_long(step, 1.001 * step, "float32", 1e-4),
        lambda: fuzz.assert_descends(step, step),
        lambda: fuzz.transposes(0, rule="series"),
    ):
        with pytest.raises(AssertionError):
            fault()
