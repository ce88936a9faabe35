"""Low-precision matrix products for any function, without touching its code."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

# Exponent and mantissa bits to which the inputs of every matrix product are rounded;
# products are accumulated in the inputs' own dtype, as tensor cores do.
ARITHMETICS: dict[str, tuple[int, int] | None] = {
    "float32": None,
    "tf32": (8, 10),
    "bf16": (8, 7),
}


def with_products_in(arithmetic: str, function: Callable) -> Callable:
    """The same function, with the inputs of every ``dot_general`` rounded.

    Args:
      arithmetic: a key of ARITHMETICS.
      function: of arrays or trees of them, traceable; may call jitted functions, have
        conditionals and choose by platform, as a CPU does, but not have loops.

    Returns:
      A function of the same arguments.
    """
    bits = ARITHMETICS[arithmetic]
    if bits is None:
        return function

    def rounded(*args):
        closed, structure = jax.make_jaxpr(function, return_shape=True)(*args)
        outputs = _evaluate(closed, jax.tree.leaves(args), bits)
        return jax.tree.unflatten(jax.tree.structure(structure), outputs)

    return rounded


def _evaluate_flat(closed: core.ClosedJaxpr, bits: tuple[int, int], *args) -> list:
    return _evaluate(closed, list(args), bits)


def _evaluate(closed: core.ClosedJaxpr, args: list, bits: tuple[int, int]) -> list:
    values: dict[Any, Any] = {}

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    jaxpr = closed.jaxpr
    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        primitive, params = equation.primitive, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if isinstance(inner, core.ClosedJaxpr):
            if primitive.name in ("scan", "while"):
                raise NotImplementedError(f"{primitive.name} is not looked into.")
            outputs = _evaluate(inner, inputs, bits)
        elif primitive.name == "cond":
            platforms, branches = params.get("branches_platforms"), params["branches"]
            if platforms is None:
                inner = [functools.partial(_evaluate_flat, b, bits) for b in branches]
                outputs = jax.lax.switch(inputs[0], inner, *inputs[1:])
            else:
                own = (i for i, p in enumerate(platforms) if p is None or "cpu" in p)
                outputs = _evaluate(branches[next(own)], inputs[1:], bits)
        else:
            if primitive.name == "dot_general":
                inputs = [jax.lax.reduce_precision(x, *bits) for x in inputs]
            outputs = primitive.bind(*inputs, **params)
            outputs = outputs if primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
