"""The whitening rule in float64 NumPy; shares no code with the package.

docs/whitening.md has the formulas. A function of a symmetric matrix is that function of
its eigenvalues: here the polynomials only ever see numbers.
"""

import numpy as np

POLYNOMIALS = (
    (7.53524, -72.97169, 242.03759, -310.6193, 135.01815),
    (7.05193, -60.73338, 194.19122, -244.78354, 105.27378),
    (4.67257, -18.86779, 42.44896, -43.76413, 16.5399),
)


class WhiteningTile:
    """One m x n parameter matrix, or one tile of it."""

    beta2, start = 0.9, 0.3

    def __init__(self, m, n, exact=False):
        self.m, self.n, self.exact = m, n, exact
        self.a, self.b = np.eye(m), np.eye(n)
        self.l = self.r = None
        self.s = np.zeros((m, n))  # SGD's momentum

    def refresh(self, g):
        """Moves the statistics towards this gradient's, and takes their roots."""
        if not np.any(g):
            return
        g = g / np.sqrt(np.mean(g**2))
        h, k = g @ self.b, self.a @ g  # both roots are identities at first
        left, right = h @ h.T / self.n, k.T @ k / self.m
        if self.l is None:
            left = left + self.start * np.mean(np.diag(left)) * np.eye(self.m)
            right = right + self.start * np.mean(np.diag(right)) * np.eye(self.n)
        else:
            left = self.beta2 * self.l + (1 - self.beta2) * left
            right = self.beta2 * self.r + (1 - self.beta2) * right
        balance = np.sqrt(np.mean(np.diag(right)) / np.mean(np.diag(left)))
        self.l, self.r = left * balance, right / balance
        self.a, self.b = self.root(self.l), self.root(self.r)

    def root(self, statistic):
        """About the inverse square root."""
        values, vectors = np.linalg.eigh(statistic)
        if self.exact:
            return (vectors * values**-0.5) @ vectors.T
        bound = np.sqrt(np.sqrt(np.sum(values**4)))
        x, y = values / bound, np.ones_like(values)
        for polynomial in POLYNOMIALS:
            factor = sum(c * x**k for k, c in enumerate(polynomial))
            y, x = y * factor, x * factor**2
        return (vectors * (y / np.sqrt(bound))) @ vectors.T

    def direction(self, g, beta1):
        """Whitens Nesterov's momentum; its scale is that of an average."""
        self.s = beta1 * self.s + g
        return (1 - beta1) * self.a @ (beta1 * self.s + g) @ self.b

    def step(self, g, beta1, refresh):
        """The direction at the length of SGD's step."""
        if refresh:
            self.refresh(g)
        d = self.direction(g, beta1)
        return d * np.linalg.norm(self.s) / np.linalg.norm(d)
