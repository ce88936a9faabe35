"""Command-line flags that all examples have, and the runs that they start."""

import argparse
import ast
import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from examples.shared import compare, devices, loop, optimizers
from examples.shared.config import Config, Run

MakeTask = Callable[..., loop.Task]


def launch(
    description: str,
    configs: dict[str, Config],
    make_task: MakeTask,
    **defaults: Any,
) -> None:
    """Reads the flags and runs what they ask for.

    Args:
      description: Of the example, for `--help`.
      configs: The workloads by name; the first is the default.
      make_task: Called as `make_task(config, seed=..., folder=...)`.
      **defaults: Of the flags, where they differ from those of other examples.
    """
    args = _parse(description, configs, defaults)
    if args.coordinator:
        devices.join(args.coordinator, args.processes, args.process)
    config = configs[args.config]
    for assignment in args.set:
        config = override(config, assignment)
    name = f"{args.config}-quick" if args.quick else args.config
    folder = args.out or pathlib.Path("runs") / name
    options: dict[str, Any] = {
        "steps": args.steps,
        "devices": args.devices,
        "diagnose": args.diagnose,
        "spread": args.spread,
    }

    def task(seed: int) -> loop.Task:
        return make_task(config, seed=seed, folder=args.data)

    try:
        if args.compare:
            result = compare.compare(
                task,
                config,
                args.compare,
                args.seeds,
                folder,
                target=args.target,
                figure=args.figure,
                **options,
            )
            print(f"\n{compare.table(result)}\n\n{compare.margins(result)}\n")
            figure = args.figure or folder / "compare.png"
            print(f"Wrote {figure}, and compare.txt and compare.json to {folder}.")
            return
        for seed in args.seeds:
            place = folder / f"{args.optimizer.replace('/', '-')}-{seed}"
            run = Run(args.optimizer, seed, place, **options)
            loop.train(task(seed), config, run)
            print(f"\n{(place / loop.SUMMARY).read_text()}  in {place}")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def override(config: Any, assignment: str) -> Any:
    """Returns a copy with one field changed, e.g. by "sgd.momentum=0.8"."""
    name, equals, text = assignment.partition("=")
    first, _, rest = name.partition(".")
    fields = [field.name for field in dataclasses.fields(config)]
    if not equals or first not in fields:
        raise SystemExit(
            f"error: --set {assignment}: write field=value; the fields are "
            f"{', '.join(fields)}."
        )
    if rest:
        value = override(getattr(config, first), f"{rest}={text}")
    else:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
    return dataclasses.replace(config, **{first: value})


def _parse(
    description: str, configs: dict[str, Config], defaults: dict[str, Any]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", choices=configs, default=next(iter(configs)), help="the workload")
    names = ", ".join(optimizers.OPTIMIZERS)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--optimizer", help=f"one of {names}; default jorge")
    which.add_argument(
        "--compare", nargs="+", metavar="NAME", help="run several, one table, one plot"
    )
    add("--seeds", nargs="+", type=int, default=[0], help="one run for each")
    add("--steps", type=int, help="length of a run; default the configuration's epochs")
    add("--quick", action="store_true", help="one seed of 10 steps, to try it out")
    add("--data", type=pathlib.Path, help="folder of the data set")
    add("--out", type=pathlib.Path, help="folder of the results; default runs/CONFIG")
    add("--devices", type=int, default=1, help="share each batch among this many")
    add(
        "--diagnose",
        action="store_true",
        help="send norms, condition numbers and more of the roots to TensorBoard",
    )
    add("--spread", action="store_true", help="share the roots among them, too")
    add("--coordinator", help="host:port of process 0, if there are several")
    add("--processes", type=int, default=1, help="how many there are")
    add("--process", type=int, default=0, help="the number of this one, from 0")
    add("--target", type=float, help="of --compare; default 0.99 of SGD's mean")
    add(
        "--figure", type=pathlib.Path, help="for --compare, if not compare.png in --out"
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the configuration, e.g. batch_size=64, bf16=True, "
        "sgd.learning_rate=0.05; may be given several times",
    )
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    if args.optimizer:
        args.compare = None
    args.optimizer = args.optimizer or "jorge"
    if args.quick:
        args.steps, args.seeds = 10, args.seeds[:1]
    return args
