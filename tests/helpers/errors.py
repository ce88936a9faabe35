"""Transformations, trees and messages for tests of errors."""

import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import jorge, scale_by_jorge

TRANSFORMATIONS = {
    "sgd": lambda **options: jorge(0.1, **options),
    "adam": lambda **options: jorge(0.1, grafting=optax.scale_by_adam(), **options),
    "ungrafted": lambda **options: jorge(0.1, grafting=None, **options),
    "scale_by_jorge": scale_by_jorge,
}
every_transformation = pytest.mark.parametrize(
    "make", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys()
)


def saying(*parts: str) -> str:
    """A pattern of the parts, in this order, each taken literally."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


def arrays(**shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        key: jnp.asarray(rng.normal(size=shape).astype(np.float32))
        for key, shape in shapes.items()
    }


def differs(*trees: Any) -> None:
    """The negative control: the equality does not hold for everything."""
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(*trees)
