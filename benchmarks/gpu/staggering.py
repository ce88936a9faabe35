"""Compiles staggered refreshes for GPUs, and bounds the time of every step.

Question: with staggered refreshes, by how much does the slowest step of an interval
exceed a step without a refresh, and what does the device launch and copy?
Method: that of compile.py, for ResNet-50 at interval 10, the update alone. Products are
counted in the traced program, each conditional at the steps where it is true, and those
of forward and backward pass are added, so that the bound is that of a whole training
step. The first steps, at which the whitening rule refreshes all roots, are left out.
Needs the extras `gpu` and `examples`, but no GPU. Rows that the JSON has are not
compiled again.
Answer: docs/results/gpu.md, from benchmarks/results/gpu_staggering.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.staggering
"""

import functools
import itertools
import sys

import jax
import optax

from benchmarks.cost import counts, training_steps
from benchmarks.cost import updates as alone
from benchmarks.gpu import programs, target
from benchmarks.gpu.compile import SIZES, least_bytes
from benchmarks.harness import results
from jorge_optax import BinomialSeries, Rule, Whitening, jorge
from jorge_optax._staggering import cut_into_parts

INTERVAL = 10
RULES: dict[str, Rule] = {"jorge": BinomialSeries(), "whitening": Whitening()}
MODELS = ("resnet50",)


def optimizer_of(rule: str) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer with staggered refreshes."""
    return jorge(
        0.1,
        0.9,
        1e-3,
        rule=RULES[rule],
        update_interval=INTERVAL,
        stagger=True,
    )


def flops_of_slots(optimizer, params, slots: int, *, early: bool) -> list[int]:
    """Counts the products of an update at each step of an interval.

    Args:
      optimizer: with staggered refreshes.
      params: the parameters.
      slots: the interval.
      early: whether the first conditional is that of the first steps.

    Returns:
      Operations at the steps 0, 1, ... of an interval.
    """
    state = jax.eval_shape(optimizer.init, params)
    jaxpr = jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr
    always, conditional = counts.count_conditionals(jaxpr)
    roots = optax.tree.get(state, "roots")
    parts = cut_into_parts(
        {key: len(sides.left) for key, sides in roots.items()}, slots
    )
    groups = dict.fromkeys(
        (own.number, own.first) for own in parts.values() if own.number < slots
    )
    conditional = conditional[early:]
    if len(conditional) != len(groups):
        raise ValueError(f"{len(conditional)} conditionals of {len(groups)} groups.")
    flops = [always] * slots
    for (number, first), own in zip(groups, conditional, strict=True):
        for i in range(number):
            flops[(first + i) % slots] += own
    return flops


@functools.cache
def model_flops(model: str) -> int:
    """Counts the products and convolutions of forward and backward pass."""
    step = training_steps.make(model, optax.sgd(0.1), **SIZES[model])
    return counts.matmul_flops(step.function, step.state, step.batch).plain


def measure(model: str, rule: str, device: str) -> dict:
    """Returns a row."""
    optimizer, params = optimizer_of(rule), alone.MODELS[model]()
    plain = jorge(0.1, 0.9, 1e-3, rule=RULES[rule], update_interval=INTERVAL)
    early = rule == "whitening"
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(alone.update, optimizer)
    program = target.compile_for(device, step, (params, state, params), (0, 1))
    flops = flops_of_slots(optimizer, params, INTERVAL, early=early)
    at_once = counts.matmul_flops(plain.update, params, state, params)
    least = least_bytes(state, params)
    gradients = counts.tree_bytes(params)
    bound = functools.partial(
        target.bound_seconds,
        device,
        tf32=model_flops(model),
        bytes_=least["refresh"] + gradients,
    )
    return {
        "model": model,
        "optimizer": rule,
        "device": device,
        **programs.staggered(program.text, early=early),
        "temporary_bytes": program.temporary_bytes,
        "compile_seconds": round(program.seconds, 1),
        **programs.graph_counts(program.thunks),
        "flops_of_steps": flops,
        "flops_at_once": at_once._asdict(),
        "whole_step_bound_seconds": {
            "without refresh": bound(float32=at_once.plain),
            "all at once": bound(float32=sum(at_once)),
            "staggered": [bound(float32=each) for each in flops],
        },
    }


def main() -> None:
    """Compiles everything and writes the JSON."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    devices = results.sized(tuple(target.DEVICES), ("A100",))
    names = results.sized(tuple(RULES), ("jorge",))
    rows = results.rows("gpu_staggering")
    known = {(row["device"], row["model"], row["optimizer"]) for row in rows}
    for device, model, name in itertools.product(devices, MODELS, names):
        if (device, model, name) not in known:
            rows.append(measure(model, name, device))
            print(rows[-1], flush=True)
            results.write("gpu_staggering", rows, update_interval=INTERVAL)


if __name__ == "__main__":
    main()
