"""A few hundred random cases, always the same ones; ``make fuzz`` runs thousands."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jorge_optax import _guards
from tests.helpers import fuzz
from tests.helpers.fuzz import SETTINGS, TREES

# What takes time is compiling, once for each setting and tree.
SOME = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
seeds = st.integers(0, 2**16)
# Each setting with one tree and dtype here; the long run takes all of them.
TOGETHER = [
    (name, [*TREES][i % len(TREES)], setting.dtypes[i // 3 % len(setting.dtypes)])
    for i, (name, setting) in enumerate(SETTINGS.items())
]


@pytest.mark.parametrize(("setting", "tree", "dtype"), TOGETHER)
@SOME
@given(sequence=fuzz.sequences)
def test_any_sequence_of_gradients_is_survived(setting, tree, dtype, sequence):
    fuzz.survives(setting, tree, dtype, sequence)


@SOME
@given(st.sampled_from([*fuzz.EQUIVARIANT]), st.integers(-8, 8), seeds)
def test_scaled_gradients_scale_the_steps(rule, power, seed):
    fuzz.scales(rule, 2 * (power // 4), seed)


@SOME
@given(st.sampled_from([*fuzz.EQUIVARIANT]), seeds)
def test_permuted_gradients_permute_the_steps(rule, seed):
    fuzz.permutes(rule, seed)


@SOME
@given(seeds)
def test_transposed_gradients_transpose_the_steps_of_whitening(seed):
    fuzz.transposes(seed)


@SOME
@given(fuzz.options)
def test_any_options_are_refused_by_name_or_run(options):
    fuzz.refuses_or_runs(options)


# The properties find faults that there are.


def test_the_fuzzer_finds_a_missing_guard(monkeypatch):
    sequence = [fuzz.Step("normal", 0, 1), fuzz.Step("normal", 37, 2)]
    fuzz.survives("default", "a matrix", "float32", sequence)
    monkeypatch.setattr(_guards, "keep_descent", lambda roots, matrix, made: made)
    fuzz.runner.cache_clear()
    with pytest.raises(AssertionError):
        fuzz.survives("default", "a matrix", "float32", sequence)
    fuzz.runner.cache_clear()


def test_the_fuzzer_finds_a_wrong_length_and_an_ascent():
    step = np.ones((3, 2))
    fuzz._assert_as_long(step, -step, "float32", 1e-4)
    with pytest.raises(AssertionError):
        fuzz._assert_as_long(step, 1.001 * step, "float32", 1e-4)
    fuzz._assert_descends(-step, step)
    with pytest.raises(AssertionError):
        fuzz._assert_descends(step, step)


def test_the_fuzzer_finds_what_is_not_equivariant():
    with pytest.raises(AssertionError):
        fuzz.transposes(0, rule="series")
