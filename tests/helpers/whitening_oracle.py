"""The whitening rule in float64 NumPy; shares no code with the package.

docs/whitening.md has the formulas. A function of a symmetric matrix is that function of
its eigenvalues: here the polynomial only ever sees numbers.
"""

import numpy as np
from numpy.polynomial import Chebyshev


class WhiteningTile:
    """One m x n parameter matrix, or one tile of it."""

    beta2, reach = 0.9, 10
    ridge = 2.974420251254486e-4  # 1 / c^2, where 0.1 (c + 1)^2 / (4 c) = 1.5

    def __init__(self, m, n):
        self.m, self.n = m, n
        self.a, self.b = np.eye(m), np.eye(n)
        self.s = np.zeros((m, n))  # SGD's momentum

    def refresh(self, g):
        """Corrects both roots by the gradient that they have whitened."""
        if not np.any(g):
            return
        g = g / np.sqrt(np.mean(g**2))
        d = self.a @ g @ self.b
        left = d @ d.T / self.n
        energy = np.sum((g @ self.b) ** 2) / self.n
        left = left + self.ridge * energy * self.a @ self.a
        right = d.T @ d / self.m
        energy = np.sum((self.a @ g) ** 2) / self.m
        right = right + self.ridge * energy * self.b @ self.b
        self.a, self.b = self.correct(self.a, left), self.correct(self.b, right)
        balance = np.sqrt(np.mean(np.diag(self.b)) / np.mean(np.diag(self.a)))
        self.a, self.b = self.a * balance, self.b / balance

    def correct(self, root, w):
        """About the inverse square root of root^-2 + a root^-1 w root^-1."""
        values, vectors = np.linalg.eigh(w)
        bound = np.sum(values**4) ** 0.25
        a = min((1 - self.beta2) / self.beta2, self.reach / bound)

        def power(x):
            return (1 + a * x) ** -0.25

        factors = Chebyshev.interpolate(power, 4, domain=[0, bound])(values)
        f = (vectors * factors) @ vectors.T
        return np.sqrt(1 + a) * f @ root @ f

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
