"""The study of how costs grow: its formula, its means, its resuming, its report."""

import copy

import jax
import numpy as np
import pytest

from benchmarks.cost import counts
from benchmarks.cost import scaling as scaling_study
from benchmarks.cost.scaling import Case, formula_flops
from benchmarks.harness import results, run_all
from benchmarks.reports import pages, plots
from benchmarks.reports import scaling as report_scaling
from jorge_optax import Tiling, Whitening, jorge

TABLES = ("scaling_width", "scaling_depth", "scaling_tile", "scaling_interval")


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def counted(params, tiling, **options):
    optimizer = jorge(0.1, tiling=tiling, **options)
    state = jax.eval_shape(optimizer.init, params)
    return counts.matmul_flops(optimizer.update, params, state)


@pytest.mark.parametrize(
    ("params", "tiling"),
    [
        (Case("width", 24).params, Tiling(8)),
        (Case("width", 512).params, Tiling()),
        (Case("depth", 3).params, Tiling()),
        ({"a": struct(12, 8), "b": struct(3, 3, 4, 9), "c": struct(5)}, Tiling(8)),
    ],
)
def test_the_formula_is_what_is_counted(params, tiling):
    formula = formula_flops(params, tiling)
    assert formula == counted(params, tiling)
    assert min(formula) > 0
    # Another rule takes more for a refresh, and other tiles more or less for all.
    other = counted(params, tiling, rule=Whitening())
    assert other.plain == formula.plain
    assert other.refresh > formula.refresh
    assert formula_flops(params, Tiling(4)).plain < formula.plain


def test_without_grams_tall_tiles_take_less_than_the_formula():
    params, tiling = {"a": struct(64, 4)}, Tiling()
    formula, real = formula_flops(params, tiling), counted(params, tiling)
    assert real.plain == formula.plain
    assert real.refresh < formula.refresh / 2


def test_by_hand_for_one_square_layer_in_equal_tiles():
    # Both sides of each of (w/t)^2 tiles of t x t: 4 t^3 a step, 24 t^3 a refresh.
    formula = formula_flops(Case("width", 1024).params, Tiling(256))
    assert formula == (4 * 256 * 1024**2, 24 * 256 * 1024**2)


def test_cases_are_those_of_the_question():
    cases = scaling_study.cases()
    assert len({(case.axis, case.value) for case in cases}) == len(cases)
    assert [case.value for case in cases if not case.steps] == [1024, 2048]
    sizes = {(c.axis, c.value): counts.tree_bytes(c.params) // 4 for c in cases}
    assert sizes["width", 8192] == 8192**2
    assert sizes["depth", 1000] == 1000 * 64**2
    assert {n for (axis, _), n in sizes.items() if axis == "tile"} == {25_557_032}
    tilings = {case.tiling for case in cases if case.axis != "tile"}
    assert tilings == {Tiling(scaling_study.TILE)} == {Tiling()}


def test_steps_are_told_apart_and_all_is_measured():
    case = Case("width", 8, rounds=1, steps=12)
    *_, compiled = scaling_study.time_compilations(case)
    seconds = scaling_study.time_steps(case, compiled)
    # Of steps 0 to 11 the first is left out, and step 10 refreshes.
    lengths = {
        name: [len(values) for values in kinds.values()]
        for name, kinds in seconds.items()
    }
    assert lengths == {"sgd": [11, 0], "adamw": [11, 0], "jorge": [10, 1]}
    sgd, adamw, own = scaling_study.measure(case._replace(steps=2))
    assert own["matmul_flops"] == own["formula_flops"]
    assert own["matmul_flops"] == {"plain": 4 * 8**3, "refresh": 24 * 8**3}
    assert sgd["matmul_flops"] == {"plain": 0, "refresh": 0}
    assert adamw["state_bytes"] == 2 * 8 * 8 * 4 + 4
    assert (own["stacks"], own["tiles"]) == (1, 1)
    assert set(own["step_seconds"]) == {"plain"}  # two steps do not refresh again


def made_up(case):
    """Rows of a case with real counts, and times that follow from its size."""
    flops = formula_flops(case.params, case.tiling)._asdict()
    size = counts.tree_bytes(case.params)

    def spread(value):
        return {"median": value, "min": 0.75 * value, "max": 1.5 * value}

    def row(name, cost):
        steps = {"plain": spread(cost * 1e-9 * size)}
        if name == "jorge":
            steps["refresh"] = spread(5 * cost * 1e-9 * size)
        return {
            "axis": case.axis,
            "value": case.value,
            "optimizer": name,
            "lower_seconds": spread(0.25 * cost),
            "compile_seconds": spread(cost),
            "compile_over_adamw": spread(cost / 2),
            "matmul_flops": flops,
            "formula_flops": flops,
            "least_flops": flops,
            "parameter_bytes": size,
            "state_bytes": 2 * size,
            "temporary_bytes": size,
            "stacks": 3,
            "tiles": 4,
            "step_seconds": steps if case.steps else {},
        }

    return [row(name, cost) for name, cost in (("sgd", 1), ("adamw", 2), ("jorge", 4))]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Cases that would have been measured, without running anything."""
    found = []

    def measure(case):
        found.append((case.axis, case.value))
        return made_up(case)

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(scaling_study, "measure", measure)
    monkeypatch.setattr(scaling_study, "time_compilations", lambda case: None)
    return found


def test_what_the_file_holds_is_not_run_again(measured):
    scaling_study.main()
    everything = [(case.axis, case.value) for case in scaling_study.cases()]
    assert measured == everything
    data = results.read(scaling_study.NAME)
    assert len(data["rows"]) == 3 * len(everything)
    assert data["provenance"]["seeds"] == [0]
    measured.clear()
    scaling_study.main()
    assert measured == []
    kept = [row for row in data["rows"] if (row["axis"], row["value"]) != ("depth", 30)]
    results.write(scaling_study.NAME, kept, seeds=[0], tile=256)
    scaling_study.main()
    assert measured == [("depth", 30)]
    assert len(results.rows(scaling_study.NAME)) == 3 * len(everything)


@pytest.mark.parametrize("interval", report_scaling.INTERVALS)
def test_the_amortised_cost_is_the_mean_of_the_steps(interval):
    plain, refresh = 3.0, 12.0
    steps = [plain + refresh * (step % interval == 0) for step in range(600)]
    mean = report_scaling.amortised(plain, refresh, interval)
    assert mean == pytest.approx(np.mean(steps))
    assert report_scaling.amortised(plain, 2 * refresh, interval) != mean


def test_the_interval_of_one_takes_refresh_steps_only(measured):
    scaling_study.main()
    own = report_scaling.default_tile()["jorge"]
    plain, refresh = (own["step_seconds"][k]["median"] for k in ("plain", "refresh"))
    assert report_scaling.excess(own) == pytest.approx(refresh - plain)
    lines = pages.TABLES["scaling_interval"]().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines[2:]]
    assert [int(line[0]) for line in cells] == list(report_scaling.INTERVALS)
    # 25.6 and 156.2 GFLOP; a refresh step takes 5 times as long as a plain one.
    assert cells[0][1:3] == ["182", "7.09"]
    assert cells[3][1:3] == ["41.3", "1.61"]
    assert [line[4] for line in cells[:4]] == ["5.00", "3.00", "1.80", "1.40"]


def test_tables_and_plot_are_made_from_the_file_alone(measured, tmp_path, monkeypatch):
    scaling_study.main()
    monkeypatch.setattr(jax, "jit", None)
    for name in TABLES:
        lines = pages.TABLES[name]().splitlines()
        axis = name.removeprefix("scaling_")
        values = [c.value for c in scaling_study.cases() if c.axis == axis]
        assert len(lines) == 2 + len(values or report_scaling.INTERVALS)
        assert len({line.count("|") for line in lines}) == 1
    page = "![How costs grow](images/scaling.png)"
    assert plots.stale(page, tmp_path) == ["scaling.png"]
    plots.draw("scaling.png", tmp_path)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert plots.stale(page, tmp_path) == []
    rows = copy.deepcopy(results.rows(scaling_study.NAME))
    rows[-1]["state_bytes"] += 4
    results.write(scaling_study.NAME, rows, tile=256)
    assert plots.stale(page, tmp_path) == ["scaling.png"]


def test_it_is_among_the_studies():
    assert "cost.scaling" in {study.command for study in run_all.STUDIES}
