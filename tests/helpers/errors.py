"""Transformations that refuse bad input alike, and patterns of their messages."""

import re

import pytest

from jorge_optax import Whitening, jorge, lengths, scale_by_jorge

TRANSFORMATIONS = {
    "sgd": lambda **options: jorge(0.1, **options),
    "adam": lambda **options: jorge(0.1, grafting=lengths.Adam(), **options),
    "ungrafted": lambda **options: jorge(0.1, grafting=None, **options),
    "whitening": lambda **options: jorge(0.1, rule=Whitening(), **options),
    "scale_by_jorge": scale_by_jorge,
}
every_transformation = pytest.mark.parametrize(
    "make", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys()
)


def saying(*parts: str) -> str:
    """A pattern of the parts, in this order, each taken literally."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)
