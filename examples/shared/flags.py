"""Command-line flags that all examples have, and what they start."""

import argparse
import ast
import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from examples.shared import compare, loop, optimizers
from examples.shared.config import Config, Run

MakeTask = Callable[..., loop.Task]


def launch(description: str, configs: dict[str, Config], make_task: MakeTask) -> None:
    """Reads the flags and runs; `make_task(config, seed=..., folder=...)`."""
    args = _parse(description, configs)
    config = configs[args.config]
    for assignment in args.set:
        config = override(config, assignment)
    folder = args.out or pathlib.Path("runs") / args.config
    options: dict[str, Any] = {"steps": args.steps, "devices": args.devices}

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
                **options,
            )
            print(
                f"\n{compare.table(result)}\n\nWrote {folder}/compare.png, .txt, .json"
            )
            return
        for seed in args.seeds:
            place = folder / f"{args.optimizer.replace('/', '-')}-{seed}"
            rows = loop.train(
                task(seed), config, Run(args.optimizer, seed, place, **options)
            )
            print(rows[-1])
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


def override(config: Any, assignment: str) -> Any:
    """A copy with one field changed, as in "batch_size=64" or "sgd.momentum=0.8"."""
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


def _parse(description: str, configs: dict[str, Config]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", choices=configs, default=next(iter(configs)), help="the workload")
    names = ", ".join(optimizers.OPTIMIZERS)
    add("--optimizer", default="jorge", help=f"one of {names}; default jorge")
    add("--compare", nargs="+", metavar="NAME", help="run several, one table, one plot")
    add("--seeds", nargs="+", type=int, default=[0], help="one run for each")
    add("--steps", type=int, help="length of a run, if not the configuration's epochs")
    add("--data", type=pathlib.Path, help="folder of the data set")
    add("--out", type=pathlib.Path, help="folder of the results; default runs/CONFIG")
    add("--devices", type=int, default=1, help="share each batch among so many")
    add("--target", type=float, help="for --compare, if not 0.99 of SGD's mean")
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the configuration, e.g. batch_size=64, bf16=True, "
        "sgd.learning_rate=0.05; may be given several times",
    )
    return parser.parse_args()
