"""Muon, from optax, with the dimension numbers of convolution kernels."""

from typing import Any

import optax
from optax import contrib

ADAM_RATIO = 0.1


def dimension_numbers(leaf: Any) -> Any:
    """Views a kernel, HWIO or IO, as a matrix, outputs last; None for vectors."""
    last = leaf.ndim - 1
    if last < 1:
        return None
    return contrib.MuonDimensionNumbers(tuple(range(last)), last)


def muon(
    learning_rate: optax.Schedule,
    dimension_numbers: Any,
    momentum: float = 0.9,
    adam_learning_rate: optax.Schedule | None = None,
) -> optax.GradientTransformation:
    """Muon, and Adam for leaves without dimension numbers. No weight decay.

    Args:
      learning_rate: Muon's, a schedule.
      dimension_numbers: tree of :class:`optax.contrib.MuonDimensionNumbers` or None,
        or a function of the parameters that returns one.
      momentum: of both.
      adam_learning_rate: Adam's. None is a tenth of Muon's, as Muon's usual rate is
        0.02 and Adam's for small models some 0.002.

    Returns:
      The optimizer.
    """
    return contrib.muon(
        learning_rate,
        beta=momentum,
        adam_b1=momentum,
        adam_b2=0.95,
        adam_learning_rate=adam_learning_rate
        or (lambda count: ADAM_RATIO * learning_rate(count)),
        muon_weight_dimension_numbers=dimension_numbers,
    )
