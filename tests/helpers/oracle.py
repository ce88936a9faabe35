"""The paper's algorithm in float64 NumPy loops; shares no code with the package.

Lines named "A2:n" are those of Algorithm 2 (Jorge), "A3:n" those of Algorithm 3 of the
appendix (the weight update with SGD grafting), "A.1" its appendix on beta2.

The paper speaks of one matrix per layer. Where a parameter is cut into tiles, each
tile is treated as such a matrix of its own, its grafted norm included.
"""

import numpy as np


class TileOracle:
    """One m x n parameter matrix, or one tile of it."""

    def __init__(self, m, n, eps):
        self.left = eps ** (-1 / 4) * np.eye(m)  # A2:1
        self.right = eps ** (-1 / 4) * np.eye(n)  # A2:1
        self.m = np.zeros((m, n))
        self.m_sgd = np.zeros((m, n))

    def update_preconditioners(self, g):
        """Lines A2:5 to A2:8."""
        self.left = refresh(self.left, g @ g.T)  # A2:5, A2:6
        self.right = refresh(self.right, g.T @ g)  # A2:7, A2:8

    def precondition(self, g):
        """Line A2:11."""
        return self.left @ g @ self.right

    def grafted(self, g, beta1):
        """Lines A3:2 to A3:5, without the learning rate."""
        self.m = beta1 * self.m + (1 - beta1) * self.precondition(g)  # A3:2
        self.m_sgd = beta1 * self.m_sgd + g  # A3:3
        length = np.sqrt(np.sum(self.m**2))
        if length == 0:
            return np.zeros_like(g)
        return np.sqrt(np.sum(self.m_sgd**2)) * self.m / length  # A3:5

    def plain(self, g, beta1):
        """Lines A2:14 and A2:15, without the learning rate."""
        self.m = beta1 * self.m + (1 - beta1) * self.precondition(g)  # A2:14
        return self.m


def refresh(root, gram):
    """One line of A2:5-6 or A2:7-8, with the beta2 of A.1."""
    x = root @ root @ root @ root @ gram  # A2:5
    norm = np.sqrt(np.sum(x**2))
    if norm == 0:
        return root
    beta2 = norm / (norm + 1)  # A.1
    factor = np.eye(len(root))
    factor = factor - (1 - beta2) / (4 * beta2) * x
    factor = factor + 5 * (1 - beta2) ** 2 / (32 * beta2**2) * (x @ x)
    return beta2 ** (-1 / 4) * root @ factor  # A2:6


class JorgeOracle:
    """Jorge on one parameter of any shape.

    Args:
      shape: shape of the parameter.
      row_cuts: lengths of the tiles along the rows of the matrix view.
      column_cuts: the same along the columns.
      learning_rate, beta1, weight_decay, eps, interval: hyperparameters.
      grafting: whether Algorithm 3 replaces lines 14 and 15 of Algorithm 2.
      rule: what refreshes the roots of a tile.
    """

    def __init__(
        self,
        shape,
        row_cuts=None,
        column_cuts=None,
        *,
        learning_rate=0.1,
        beta1=0.9,
        weight_decay=0.0,
        eps=1e-6,
        interval=1,
        grafting=True,
        rule=TileOracle,
    ):
        self.learning_rate, self.beta1 = learning_rate, beta1
        self.weight_decay, self.interval = weight_decay, interval
        self.grafting = grafting
        self.step_number = 0
        columns = shape[-1] if shape else 1
        rows = int(np.prod(shape)) // columns if shape else 1
        self.matrix_shape = (rows, columns)
        self.has_roots = rows >= 2 and columns >= 2
        self.m_sgd = np.zeros(shape)
        self.m = np.zeros(shape)
        self.tiles = []
        if self.has_roots:
            top = 0
            for height in row_cuts or (rows,):
                left = 0
                for width in column_cuts or (columns,):
                    place = slice(top, top + height), slice(left, left + width)
                    self.tiles.append((place, rule(height, width, eps)))
                    left += width
                assert left == columns
                top += height
            assert top == rows

    def update(self, gradient, parameter):
        """What is to be added to the parameter."""
        gradient = np.asarray(gradient, np.float64)
        if self.has_roots:
            step = np.zeros(self.matrix_shape)
            matrix = gradient.reshape(self.matrix_shape)
            for place, tile in self.tiles:
                if self.step_number % self.interval == 0:
                    tile.update_preconditioners(matrix[place])
                rule = tile.grafted if self.grafting else tile.plain
                step[place] = rule(matrix[place], self.beta1)
            step = step.reshape(gradient.shape)
        else:
            # No roots: the preconditioned gradient is the gradient, and so the grafted
            # step is SGD's.
            self.m_sgd = self.beta1 * self.m_sgd + gradient
            self.m = self.beta1 * self.m + (1 - self.beta1) * gradient
            step = self.m_sgd if self.grafting else self.m
        self.step_number += 1
        decay = self.weight_decay * np.asarray(parameter, np.float64)
        return -self.learning_rate * (step + decay)
