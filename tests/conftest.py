"""Climate of the tests: fixed seeds, no silent rank promotion, float64 on request."""

import gc

import jax
import pytest

# Their assertions tell what differs, as those in test modules do.
pytest.register_assert_rewrite("tests.helpers")

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="module")
def free_programs():
    """Frees compiled programs after each module.

    Each takes maps of memory, of which Linux allows a process 65,530: thousands of
    programs later, the next compilation crashes.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def x64():
    """Enables float64 for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
