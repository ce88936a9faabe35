"""A comparison: its runs, its table, and when a run has reached its target."""

import itertools
import json
import re

import numpy as np
import pytest

from examples.shared import compare
from tests.examples import toy_task


def run(*accuracy, step_ms=1.0, compile_seconds=1.0):
    """Makes the rows of a run with these accuracies, evaluated every ten steps."""
    return [
        {
            "step": step,
            "seconds": step * step_ms / 1000,
            "compile_seconds": compile_seconds,
            "accuracy": value,
        }
        for step, value in zip(itertools.count(10, 10), accuracy)  # noqa: B905
    ]


@pytest.mark.parametrize(
    ("values", "target", "step"),
    [
        ((0.5, 0.99, 0.98, 1.0), 0.98, 20),
        ((0.5, 0.99, 0.98, 1.0), 0.99, 40),  # it fell below the target again
        ((0.5, 1.0, 0.98), 0.99, None),
        ((0.9, 0.95, None), 0.9, None),
        ((), 0.9, None),
    ],
)
def test_a_target_is_reached_where_the_run_stays_at_it_or_above(values, target, step):
    row = compare.crossing(run(*values), "accuracy", target)
    assert (row and row["step"]) == step


def test_a_comparison_trains_and_draws(tmp_path):
    task = toy_task.make_task, toy_task.CONFIG
    result = compare.compare(
        *task, ["sgd", "distributed-shampoo"], [0, 1], tmp_path, steps=5
    )
    finals = [rows[-1]["accuracy"] for rows in result.runs["sgd"]]
    assert result.target == pytest.approx(0.99 * np.mean(finals))
    assert (
        json.loads((tmp_path / "compare.json").read_text())["target"] == result.target
    )
    assert compare.table(result) in (tmp_path / "compare.txt").read_text()
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    gone = [{**row, "accuracy": None} for row in result.runs["sgd"][0]]
    broken = result._replace(runs={**result.runs, "jorge": [gone, gone]})
    compare.plot(broken, tmp_path / "plot.png")  # it leaves the diverged ones out
    with pytest.raises(ValueError, match="--target"):
        compare.compare(*task, ["jorge"], [0], tmp_path)
    with pytest.raises(ValueError, match="No optimizer 'sdg'"):
        compare.compare(*task, ["sdg"], [0], tmp_path, target=0.5)


def test_the_table_has_a_row_for_each_optimizer():
    runs = {
        "sgd": [run(0.9, 0.98, step_ms=200.0), run(0.9, 0.99, step_ms=200.0)],
        "adamw": [run(0.9, 0.9, compile_seconds=2.04), run(0.8, 0.8)],
        "jorge": [
            run(0.99, 0.99, step_ms=324.0, compile_seconds=9.96),
            run(0.9, 1.0, step_ms=100.04, compile_seconds=9.96),
        ],
    }
    table = compare.table(compare.Comparison("accuracy", 0.99, runs))
    header, _, *rows = (re.split(r" {2,}", line) for line in table.splitlines())
    assert header == [
        "optimizer",
        "steps to 0.9900",
        "seconds to it",
        "final accuracy",
        "ms per step",
        "compile s",
    ]
    assert rows == [
        ["sgd", "miss 20", "miss 4", "0.9850 (0.9800 to 0.9900)", "200.0", "1.0"],
        ["adamw", "miss miss", "miss miss", "0.8500 (0.8000 to 0.9000)", "1.0", "1.5"],
        ["jorge", "10 20", "3 2", "0.9950 (0.9900 to 1.0000)", "212.0", "10.0"],
    ]


def test_margins_are_paired_by_seed_and_say_if_seeds_agree():
    runs = {
        "sgd": [run(0.90), run(0.80)],
        "adamw": [run(0.91), run(0.79)],
        "jorge": [run(0.92), run(0.81)],  # the worse seed is below sgd's better one
        "shampoo": [run(0.95), run(None)],
    }
    text = compare.margins(compare.Comparison("accuracy", 0.99, runs))
    assert text.splitlines() == [
        "adamw ends +0.0000 above sgd on average, -0.0100 to +0.0100 by seed: "
        "the seeds do not agree which is better.",
        "jorge ends +0.0150 above sgd on average, +0.0100 to +0.0200 by seed.",
        "shampoo or sgd diverged.",
    ]
    single = {name: seeds[:1] for name, seeds in runs.items()}
    text = compare.margins(compare.Comparison("accuracy", 0.99, single))
    assert text.count("one seed does not tell that from chance") == 3
    # It says where a task is saturated, too.
    runs = {"sgd": [run(0.99), run(0.98)], "jorge": [run(1.0), run(0.99)]}
    text = compare.margins(compare.Comparison("accuracy", 0.98, runs))
    assert text.splitlines()[-1].startswith("sgd ends at 0.9850, of at most 1: little")
    runs["sgd"][0] = run(0.96)
    text = compare.margins(compare.Comparison("accuracy", 0.98, runs))
    assert "little is left" not in text
