"""The demo: its parts at a small size, and what it reports."""

import json
import math
import sys

import pytest

from examples.language_model import configs, input_pipeline, main, report, train

SMALL = configs.Config(
    context=8,
    width=8,
    heads=2,
    layers=1,
    batch_size=2,
    held_out=2,
    steps=4,
    warmup=1,
    eval_every=2,
)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Runs the demo at a small size, twice; returns outputs and folder."""
    folder = tmp_path_factory.mktemp("demo")
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(main, "Config", lambda: SMALL)
        patch.setattr(sys, "argv", ["main", "--seeds", "0", "1"])
        for _ in range(2):
            said: list[str] = []
            patch.setattr(
                "builtins.print", lambda text, said=said, **_: said.append(text)
            )
            main.main()
            outputs.append("\n".join(said))
    return outputs, folder


def test_the_demo_writes_a_table_a_plot_and_the_curves_once(demo):
    (output, again), folder = demo
    for name in configs.OPTIMIZERS:
        assert f"{name}, seed 1: loss " in output
    assert configs.NOTE in output
    assert "The seeds of one optimizer differ by at most " in output
    assert (folder / "demo.png").read_bytes().startswith(PNG_SIGNATURE)
    curves = json.loads((folder / "runs/language_model/curves.json").read_text())
    assert len(curves["runs"]) == 8
    for curve in curves["runs"].values():
        assert [step for step, _ in curve] == [2, 4]
        assert all(math.isfinite(loss) for _, loss in curve)
    # What has run is not run again.
    assert again.partition("optimizer ")[2] == output.partition("optimizer ")[2] != ""


def test_text_to_validate_with_is_not_trained_on():
    training, validation = input_pipeline.text()
    assert len(training) > 5 * len(validation) > 5 * 100_000
    piece = validation[1000:1200].tobytes()
    assert piece in validation.tobytes()
    assert piece not in training.tobytes()


def curve(*losses: float) -> train.Curve:
    return [(10 * (number + 1), loss) for number, loss in enumerate(losses)]


def test_the_target_is_reached_where_the_loss_stays_below():
    assert report.reached(curve(3.0, 2.0, 2.5, 2.0, 1.0), 2.0) == 40
    assert report.reached(curve(3.0, 2.0, 2.5), 2.0) is None
    assert report.reached(curve(1.0, float("nan"), 1.0), 2.0) == 30
    assert report.reached(curve(1.0, float("nan")), 2.0) is None


RUNS = {
    "adamw": [curve(3.0, 2.0), curve(3.0, 2.1)],
    "jorge-whitening": [curve(2.05, 1.5), curve(2.5, 1.7)],
}


def test_the_table_and_the_margins_are_by_seed():
    rows = [line.split("  ") for line in report.table(RUNS).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0][2] == "steps until it stays below 2.050, adamw's mean, by seed"
    assert cells[2:] == [
        ["adamw", "2.050 (2.000 to 2.100)", "20, never"],
        ["jorge-whitening", "1.600 (1.500 to 1.700)", "10, 20"],
    ]
    assert report.margins(RUNS).splitlines() == [
        "jorge-whitening ends 0.450 nats below adamw (0.400 to 0.500 by seed).",
        "The seeds of one optimizer differ by at most 0.200.",
    ]
    worse = {"adamw": RUNS["jorge-whitening"], "jorge-whitening": RUNS["adamw"]}
    assert report.margins(worse).startswith("jorge-whitening ends 0.450 nats above")
