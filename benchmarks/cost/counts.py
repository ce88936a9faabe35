"""Counts matrix products, their operations and bytes, exactly."""

import math
from typing import NamedTuple

import jax
import numpy as np
import optax


class Flops(NamedTuple):
    """Floating-point operations of matrix products, in each step and in a refresh."""

    plain: int
    refresh: int


class Products(NamedTuple):
    """The matrix products and convolutions of a traced function, and its conditionals.

    Products inside a conditional belong to the refresh: the branch that keeps the roots
    has no products. A choice by platform does not count as a conditional, since
    compilers know the platform; the default branch is counted, not the one for CPUs.
    Products in a scan count once for each of its steps, those in a loop of unknown
    length once.

    Attributes:
      plain: operations of each product that every step computes.
      refresh: operations of each additional product of a refresh.
      conditionals: number of conditionals.
    """

    plain: list[int]
    refresh: list[int]
    conditionals: int

    @property
    def flops(self) -> Flops:
        """Sums of the operations."""
        return Flops(sum(self.plain), sum(self.refresh))


def count_products(jaxpr) -> Products:
    """Finds all products, including those of inner functions."""
    plain, refresh, conditionals = [], [], 0
    of_platform = set()  # variables that hold the index of the platform
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (lhs, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            contracted = math.prod(shape[axis] for axis in lhs)
            plain.append(2 * contracted * equation.outvars[0].aval.size)
        elif equation.primitive.name == "conv_general_dilated":
            plain.append(convolution_flops(equation))
        elif equation.primitive.name == "platform_index":
            of_platform.add(id(equation.outvars[0]))
        elif equation.primitive.name == "clamp" and (
            id(equation.invars[1]) in of_platform  # jax 0.6
        ):
            of_platform.add(id(equation.outvars[0]))
        elif equation.primitive.name == "cond" and (
            id(equation.invars[0]) not in of_platform
        ):
            found = [count_products(b.jaxpr) for b in equation.params["branches"]]
            largest = max(found, key=lambda branch: sum(branch.flops))
            refresh += largest.plain + largest.refresh
            conditionals += 1 + sum(branch.conditionals for branch in found)
        else:
            times = (
                equation.params["length"] if equation.primitive.name == "scan" else 1
            )
            for inner in _inner_jaxprs(equation):
                more = count_products(inner)
                plain += times * more.plain
                refresh += times * more.refresh
                conditionals += more.conditionals
    return Products(plain, refresh, conditionals)


def convolution_flops(equation) -> int:
    """Counts two operations for each multiplication of numbers that are not padding.

    The zeros that dilation inserts do not count either: thus a convolution and its two
    gradients, for the input and for the kernel, have the same number of operations.
    """
    options, (image, kernel) = equation.params, [v.aval.shape for v in equation.invars]
    out = equation.outvars[0].aval.shape
    image_axes, kernel_axes, out_axes = options["dimension_numbers"]
    total = 2 * out[out_axes[0]] * out[out_axes[1]] * kernel[kernel_axes[1]]
    windows = zip(
        image_axes[2:],
        kernel_axes[2:],
        out_axes[2:],
        options["window_strides"],
        options["padding"],
        options["lhs_dilation"],
        options["rhs_dilation"],
        strict=True,
    )
    for i, k, o, stride, (low, _), spread, dilation in windows:
        at = np.arange(out[o])[:, None] * stride - low
        at = at + np.arange(kernel[k])[None] * dilation
        inside = (at >= 0) & (at <= (image[i] - 1) * spread) & (at % spread == 0)
        total *= int(inside.sum())
    return total


def _inner_jaxprs(equation):
    parameters = equation.params
    if equation.primitive.name == "cond":  # by platform: the default is the last
        parameters = parameters["branches"][-1]
    for value in jax.tree.leaves(parameters):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield inner


def matmul_flops(function, *structs) -> Flops:
    """Counts the operations of all matrix products of a traced function."""
    return count_products(jax.make_jaxpr(function)(*structs).jaxpr).flops


def tree_bytes(tree) -> int:
    """Returns the bytes of all arrays, or shapes of arrays, of a tree."""
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def least_bytes(state, params) -> dict[str, int]:
    """Returns the bytes that an update must read or write, except gradients.

    Parameters and state are read and written; on a plain step roots are read only, and
    the statistics that a rule keeps beside them rest.
    """
    roots = optax.tree.get(state, "roots", ())
    rest = tree_bytes(
        [
            leaf
            for path, leaf in jax.tree_util.tree_flatten_with_path(roots)[0]
            if jax.tree_util.keystr(path[-1:], simple=True) == "statistic"
        ]
    )
    all_ = 2 * (tree_bytes(params) + tree_bytes(state))
    return {"plain": all_ - tree_bytes(roots) - rest, "refresh": all_}
