"""Climate of the tests: fixed seeds, no silent rank promotion, float64 on request."""

import jax
import pytest

# Their assertions tell what differs, as those in test modules do.
pytest.register_assert_rewrite("tests.helpers")

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Enables float64 for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
