"""Finds the best polynomials for an inverse root of a given number of products.

Question: a composition of polynomials p_0, p_1, ... is to approximate x^(-1/order) for
x from l to 1. Which ones have the least relative error?
Method: with y = x^(1/order), one stage turns y into y p(y^order), a combination of
y, y^(1 + order), y^(1 + 2 order), ..., which should be 1. A Remez exchange finds the
combination whose largest distance t from 1 on [lo, 1] is least. Each stage but the last
is divided by 1 + t, so that it maps [lo, 1] into [(1 - t) / (1 + t), 1], where the next
one takes over. The error of the whole is the t of the last stage.
Answer: the tables and the coefficients that this prints. ``POLYNOMIALS`` of
``inverse_root.py`` are those of ``CHOSEN``.

    python -m benchmarks.numerics.design
"""

import numpy as np

from benchmarks.numerics.inverse_root import POLYNOMIALS, Polynomial, count_products

GRID = 200_000
EIGENVALUES = (1e-2, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6)
CHOSEN = {  # by order: the polynomials in use, smallest eigenvalue and degrees
    2: (POLYNOMIALS[2], 3e-5, (4, 4, 4)),
    4: (POLYNOMIALS[4], 3e-5, (1, 4, 4)),
}
DEGREES = (
    (2,),
    (4,),
    (2, 2),
    (3, 3),
    (4, 4),
    (2, 2, 2),
    (1, 4, 4),
    (2, 4, 4),
    (4, 4, 4),
)


def best_stage(lo: float, degree: int, order: int = 4) -> tuple[np.ndarray, float]:
    """Returns the best p for y in [lo, 1], and its ``max |1 - y p(y^order)|``."""
    if not 0 < lo < 1 - 1e-6:
        raise ValueError(f"lo must lie in (0, 1 - 1e-6), got {lo}: nothing is left.")
    y = np.geomspace(lo, 1, GRID)
    return _remez(y[:, None] ** (1 + order * np.arange(degree + 1)), np.ones(GRID))


def best_series(terms: int) -> tuple[np.ndarray, float]:
    """Factors of x, x^2, ... for the paper's rule, best on [0, 1], and their error.

    The error is the largest ``|1 - (1 + x)^(1/4) p(x)|``, p being 1 at 0.
    """
    x = np.linspace(0, 1, GRID + 1)[1:]
    fourth_root = (1 + x) ** 0.25
    powers = x[:, None] ** np.arange(1, terms + 1)
    return _remez(fourth_root[:, None] * powers, 1 - fourth_root)


def design(
    smallest: float, degrees: tuple[int, ...], order: int = 4
) -> tuple[tuple, float]:
    """The best stages one after the other.

    Args:
      smallest: the smallest eigenvalue aimed at, over the largest.
      degrees: of each polynomial.

    Returns:
      The polynomials, each a tuple of coefficients of 1, x, x^2, ..., and the largest
      relative error of their composition on [smallest, 1].
    """
    lo = smallest ** (1 / order)
    polynomials = []
    error = 0.0
    for stage, degree in enumerate(degrees):
        coefficients, error = best_stage(lo, degree, order)
        if stage + 1 < len(degrees):
            coefficients = coefficients / (1 + error)
            lo = (1 - error) / (1 + error)
        polynomials.append(tuple(map(float, coefficients)))
    return tuple(polynomials), error


def composite_scalar(
    x: np.ndarray, polynomials: tuple[Polynomial, ...], order: int = 4
) -> np.ndarray:
    """What the polynomials make of numbers x: about ``x^(-1/order)``."""
    root = np.ones_like(x)
    for polynomial in polynomials:
        factor = np.polynomial.polynomial.polyval(x, polynomial)
        root, x = root * factor, x * factor**order
    return root


def largest_error(
    smallest: float, polynomials: tuple[Polynomial, ...], order: int = 4
) -> float:
    """The largest relative error on [smallest, 1], by brute force."""
    x = np.geomspace(smallest, 1, 1_000_003)
    return float(
        np.max(np.abs(1 - x ** (1 / order) * composite_scalar(x, polynomials, order)))
    )


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
    """Prints the tables, and the coefficients in use beside those found here."""
    for order in (4, 2):
        print(f"order {order}: largest error by smallest eigenvalue")
        print(f"{'degrees':<12} products", *(f"{x:>8.0e}" for x in EIGENVALUES))
        for degrees in DEGREES:
            found = [design(x, degrees, order) for x in EIGENVALUES]
            products = count_products(found[0][0], order)
            names = ", ".join(map(str, degrees))
            errors = (f"{error:8.3g}" for _, error in found)
            print(f"{names:<12} {products:>8}", *errors)
    for order, (used, smallest, degrees) in CHOSEN.items():
        polynomials, error = design(smallest, degrees, order)
        print(f"\norder {order}, l = {smallest:g}, degrees {degrees}: {error:.3f}")
        for found, in_use in zip(polynomials, used, strict=True):
            print("  found ", *(f"{c:.5f}" for c in found))
            print("  in use", *(f"{c:.5f}" for c in in_use))


if __name__ == "__main__":
    main()
