"""Which polynomials make the best inverse fourth root of a given number of products?

Question: a composition of polynomials p_0, p_1, ... is to approximate x^(-1/4) for x
from l to 1. Which ones have the least relative error?
Method: with y = x^(1/4), one stage turns y into y p(y^4), a combination of y, y^5,
y^9, ..., which should be 1. A Remez exchange finds the combination whose largest
distance t from 1 on [lo, 1] is least. Each stage but the last is divided by 1 + t, so
that it maps [lo, 1] into [(1 - t) / (1 + t), 1], where the next one takes over. The
error of the whole is the t of the last stage.
Answer: the table and the coefficients that this prints; the package's
``jorge_optax._polynomials.POLYNOMIALS`` are those of l = 3e-5 with degrees (1, 4, 4).

    python -m benchmarks.numerics.design
"""

import numpy as np

from jorge_optax._polynomials import POLYNOMIALS, Polynomial, count_products

GRID = 200_000
EIGENVALUES = (1e-2, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6)
DEGREES = ((2,), (4,), (2, 2), (3, 3), (4, 4), (2, 2, 2), (1, 4, 4), (4, 4, 4))


def best_stage(lo: float, degree: int) -> tuple[np.ndarray, float]:
    """Coefficients of the best p on y in [lo, 1], and its ``max |1 - y p(y^4)|``."""
    if not 0 < lo < 1 - 1e-6:
        raise ValueError(f"lo must lie in (0, 1 - 1e-6), got {lo}: nothing is left.")
    y = np.geomspace(lo, 1, GRID)
    return _remez(y[:, None] ** (1 + 4 * np.arange(degree + 1)), np.ones(GRID))


def best_series(terms: int) -> tuple[np.ndarray, float]:
    """Factors of x, x^2, ... for the paper's rule, best on [0, 1], and their error.

    The error is the largest ``|1 - (1 + x)^(1/4) p(x)|``, p being 1 at 0.
    """
    x = np.linspace(0, 1, GRID + 1)[1:]
    fourth_root = (1 + x) ** 0.25
    powers = x[:, None] ** np.arange(1, terms + 1)
    return _remez(fourth_root[:, None] * powers, 1 - fourth_root)


def design(smallest: float, degrees: tuple[int, ...]) -> tuple[tuple, float]:
    """The best stages one after the other.

    Args:
      smallest: the smallest eigenvalue aimed at, over the largest.
      degrees: of each polynomial.

    Returns:
      The polynomials, each a tuple of coefficients of 1, x, x^2, ..., and the largest
      relative error of their composition on [smallest, 1].
    """
    lo = smallest**0.25
    polynomials = []
    error = 0.0
    for stage, degree in enumerate(degrees):
        coefficients, error = best_stage(lo, degree)
        if stage + 1 < len(degrees):
            coefficients = coefficients / (1 + error)
            lo = (1 - error) / (1 + error)
        polynomials.append(tuple(map(float, coefficients)))
    return tuple(polynomials), error


def composite_scalar(x: np.ndarray, polynomials: tuple[Polynomial, ...]) -> np.ndarray:
    """What the polynomials make of numbers x: about ``x^(-1/4)``."""
    root = np.ones_like(x)
    for polynomial in polynomials:
        factor = np.polynomial.polynomial.polyval(x, polynomial)
        root, x = root * factor, x * factor**4
    return root


def largest_error(smallest: float, polynomials: tuple[Polynomial, ...]) -> float:
    """The largest relative error on [smallest, 1], by brute force."""
    x = np.geomspace(smallest, 1, 1_000_003)
    return float(np.max(np.abs(1 - x**0.25 * composite_scalar(x, polynomials))))


def _remez(basis: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """The combination of columns nearest to the target, and its largest error.

    Exchanges points until the error at as many points as there are unknowns, its own
    size included, alternates in sign and is as large as anywhere.
    """
    rows, count = basis.shape[0], basis.shape[1] + 1
    nodes = (1 - np.cos(np.pi * np.arange(count) / (count - 1))) / 2
    points = np.round(nodes * (rows - 1)).astype(int)
    signs = (-1.0) ** np.arange(count)
    for _ in range(100):
        system = np.column_stack([basis[points], signs])
        *coefficients, level = np.linalg.solve(system, target[points])
        error = target - basis @ np.asarray(coefficients)
        largest = float(np.max(np.abs(error)))
        peaks = _alternating_peaks(error, count)
        if largest <= abs(level) + 1e-13 or np.array_equal(peaks, points):
            return np.asarray(coefficients), largest
        if len(peaks) < count:
            raise RuntimeError("Too ill-conditioned: choose a lower degree.")
        points = peaks
    raise RuntimeError("The exchange of points did not come to an end.")


def _alternating_peaks(error: np.ndarray, count: int) -> np.ndarray:
    """Indices of the largest error of each run of one sign; at most count of them."""
    runs = np.split(np.arange(len(error)), np.flatnonzero(np.diff(np.sign(error))) + 1)
    peaks = np.array([run[np.argmax(np.abs(error[run]))] for run in runs])
    while len(peaks) > count:
        ends = np.abs(error[peaks[[0, -1]]])
        peaks = peaks[1:] if ends[0] < ends[1] else peaks[:-1]
    return peaks


def main() -> None:
    """Prints the table, and the package's coefficients beside those found here."""
    print(
        f"{'smallest':>8}  {'degrees':<10} {'products':>8} {'error':>10} {'grid':>10}"
    )
    for smallest in EIGENVALUES:
        for degrees in DEGREES:
            polynomials, error = design(smallest, degrees)
            found = largest_error(smallest, polynomials)
            products = count_products(polynomials)
            names = ", ".join(map(str, degrees))
            print(
                f"{smallest:8.0e}  {names:<10} {products:>8} {error:>10.3g} "
                f"{found:>10.3g}"
            )
    polynomials, error = design(3e-5, (1, 4, 4))
    print(f"\nl = 3e-5, degrees (1, 4, 4), error {error:.3f}:")
    for found, package in zip(polynomials, POLYNOMIALS, strict=True):
        print("  found  ", *(f"{c:.5f}" for c in found))
        print("  package", *(f"{c:.5f}" for c in package))


if __name__ == "__main__":
    main()
