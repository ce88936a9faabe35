"""Climate of the tests: fixed seeds, no silent rank promotion, float64 on request."""

import gc
import pathlib

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

# Their assertions tell what differs, as those in test modules do.
pytest.register_assert_rewrite("tests.helpers")

jax.config.update("jax_numpy_rank_promotion", "raise")

# Most of the time of these tests is compilation, and most programs do not change from
# one run to the next. The cache tells programs, options and versions of jax apart.
CACHE = pathlib.Path(__file__).parents[1] / "build" / "jax_cache"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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


@pytest.fixture
def no_compilation_cache():
    """Compiles every program, for a test that counts or times compilations."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether there is one is remembered
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
