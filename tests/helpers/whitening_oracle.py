"""The whitening rule in float64 NumPy; shares no code with the package.

Each side is corrected from itself, from D D^T and from the energy |G B|^2 alone, where
B is the root of the other side and D = A G B the whitened gradient. A function of a
symmetric matrix is that function of its eigenvalues: here the polynomial only ever sees
numbers.
"""

import numpy as np
from numpy.polynomial import Chebyshev


class WhiteningTile:
    """One m x n parameter matrix, or one tile of it."""

    beta2, reach = 0.9, 10

    def __init__(self, m, n):
        self.a, self.b = np.eye(m), np.eye(n)
        self.s = np.zeros((m, n))  # SGD's momentum

    def ridge(self):
        """1 / c^2, for the larger root c of (1 - beta2) (c + 1)^2 / (4 c) = 3 / 2."""
        return float(np.max(np.roots([1, 2 - 6 / (1 - self.beta2), 1]))) ** -2

    def refresh(self, g):
        """Corrects both roots by the gradient that they have whitened."""
        if not np.any(g):
            return
        # Only the product of the two scales matters: both sides get the same.
        ratio = np.sqrt(np.mean(np.diag(self.b)) / np.mean(np.diag(self.a)))
        self.a, self.b = self.a * ratio, self.b / ratio
        g = g / np.sqrt(np.sum(g**2))
        d, from_left, from_right = self.a @ g @ self.b, self.a @ g, g @ self.b
        left = self.corrected(self.a, d @ d.T, np.sum(from_right**2))
        right = self.corrected(self.b, d.T @ d, np.sum(from_left**2))
        self.a, self.b = left, right

    def covariance(self, root, product, energy):
        """W: the identity on average, if the gradient is white."""
        return len(root) * (product + self.ridge() * energy * root @ root)

    def corrected(self, root, product, energy):
        """About (root^-2 + a root^-1 W root^-1)^(-1/2), times sqrt(1 + a)."""
        values, vectors = np.linalg.eigh(self.covariance(root, product, energy))
        bound = np.sum(values**4) ** 0.25
        a = min((1 - self.beta2) / self.beta2, self.reach / bound)

        def power(x):
            return (1 + a * x) ** -0.25

        factors = Chebyshev.interpolate(power, 4, domain=[0, bound])(values)
        return self.conjugated((vectors * factors) @ vectors.T, root, a)

    def conjugated(self, f, root, a):
        """The new root."""
        return np.sqrt(1 + a) * f @ root @ f

    def direction(self, g, beta1):
        """Whitens Nesterov's momentum; its scale is that of an average."""
        self.s = beta1 * self.s + g
        return (1 - beta1) * self.a @ (beta1 * self.s + g) @ self.b
