"""Measures the two roots of one tile."""

from typing import Any

import numpy as np

from jorge_optax import Sides


def figures(
    roots: Sides, same: Sides, shampoo: Sides, gradient: np.ndarray, known: Sides | None
) -> dict[str, Any]:
    """Returns all figures; the docstring of accuracy.py defines them."""
    direction = roots.left @ gradient @ roots.right
    if not all(np.all(np.isfinite(side)) for side in roots):
        # What eigh and svd would refuse.
        roots = Sides(*(np.full_like(side, np.nan) for side in roots))
    row = {
        "cosine": cosine(direction, shampoo.left @ gradient @ shampoo.right),
        "error": max(map(_distance, roots, same)),
        "shampoo_error": max(
            _distance(_unit(root), _unit(exact))
            for root, exact in zip(roots, shampoo, strict=True)
        ),
        "condition": max(map(_condition, roots)),
        "asymmetry": max(_distance(root.T, root) for root in roots),
        "smallest": min(map(_smallest, roots)),
        "direction_norm": np.linalg.norm(direction),
    }
    if known is not None:
        row["known_cosine"] = cosine(direction, known.left @ gradient @ known.right)
    return row


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Of the angle between two matrices; NaN if one is zero."""
    norms = np.linalg.norm(x) * np.linalg.norm(y)
    return float(np.sum(x * y) / norms) if norms > 0 else float("nan")


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def _condition(root: np.ndarray) -> float:
    return float(np.linalg.cond(root)) if np.all(np.isfinite(root)) else float("nan")


def _smallest(root: np.ndarray) -> float:
    if not np.all(np.isfinite(root)):
        return float("nan")
    values = np.linalg.eigvalsh((root + root.T) / 2)
    return float(values[0] / values[-1])


def rounded(row: dict[Any, Any]) -> dict[Any, Any]:
    """Numbers with 4 digits; None for those that are not finite."""

    def short(value):
        if isinstance(value, bool | int | str | None):
            return value
        return float(f"{value:.4g}") if np.isfinite(value) else None

    return {key: short(value) for key, value in row.items()}
