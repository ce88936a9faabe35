"""The instruments of benchmarks/: do they measure what they say?"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.harness import summary
from benchmarks.numerics import accuracy, endurance, terms
from benchmarks.numerics.arithmetic import with_products_in
from benchmarks.numerics.design import (
    CHOSEN,
    best_series,
    composite_scalar,
    count_products,
    design,
    largest_error,
)
from benchmarks.numerics.inverse_root import PolynomialRoot
from benchmarks.numerics.rules import (
    COMPOSITE,
    PAPER,
    WHITENING,
    Packaged,
    Unrefreshed,
    staged,
)
from benchmarks.numerics.streams import (
    HOSTILE,
    SYNTHETIC,
    quadratics,
    synthetic_gradient,
)
from benchmarks.problems.problem import Problem
from benchmarks.problems.training import trainer
from benchmarks.robustness import descent
from examples.shared.shampoo import ShampooRule

# --- polynomials -------------------------------------------------------------------


@pytest.mark.parametrize(("order", "least_error"), [(2, 0.0295), (4, 0.0371)])
def test_the_polynomials_in_use_are_the_designed_ones(order, least_error):
    used, smallest, degrees = CHOSEN[order]
    polynomials, error = design(smallest, degrees, order)
    other, _ = design(1.03 * smallest, degrees, order)
    for ours, theirs, others in zip(used, polynomials, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-5)
        assert np.abs(np.subtract(ours, others)).max() > 1e-3
    assert abs(error - least_error) < 1e-4


@pytest.mark.parametrize("degrees", [(1, 4, 4), (4, 4), (3,), (2, 6)])
def test_the_prototypes_root_is_the_composition(degrees):
    polynomials = design(1e-2, degrees)[0]
    root = PolynomialRoot(4, polynomials)
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    values = np.geomspace(1e-2, 1, 6)
    bound = np.sum(values**4) ** 0.25 if degrees[0] > 1 else np.linalg.norm(values)
    expected = composite_scalar(values / bound, polynomials) * bound**-0.25
    statistic = jnp.asarray((vectors * values) @ vectors.T, jnp.float32)
    found = np.asarray(root(statistic, "highest"))
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(
        found, (vectors * expected) @ vectors.T, rtol=1e-3, atol=1e-3
    )
    text = str(jax.make_jaxpr(lambda x: root(x, "highest"))(statistic))
    assert text.count("dot_general") == count_products(polynomials, 4)


@pytest.mark.parametrize(
    ("smallest", "degrees"), [(1e-2, (2,)), (1e-3, (2, 3)), (1e-4, (1, 4))]
)
def test_the_error_of_a_design_is_the_largest_there_is_and_cannot_be_less(
    smallest, degrees
):
    polynomials, error = design(smallest, degrees)
    assert abs(largest_error(smallest, polynomials) / error - 1) < 1e-3
    rng = np.random.default_rng(0)
    for _ in range(50):
        last = np.asarray(polynomials[-1])
        last = last * (1 + 1e-2 * rng.normal(size=last.shape))
        other = (*polynomials[:-1], tuple(last))
        assert largest_error(smallest, other) > error


def test_best_series_beats_the_binomial_one():
    factors, error = best_series(2)
    np.testing.assert_allclose(factors, (-0.2304, 0.0727), atol=2e-3)
    assert abs(terms.series_error(tuple(factors)) / error - 1) < 1e-3
    np.testing.assert_allclose(terms.binomial(3), (-1 / 4, 5 / 32, -15 / 128))
    assert terms.series_error(terms.binomial(2)) > 40 * error


# --- the laboratory ----------------------------------------------------------------


def test_products_are_rounded_and_nothing_else():
    x = jnp.asarray([[1 + 2.0**-9, 0.0], [0.0, 1.0]])

    def function(x):
        return jax.jit(jnp.matmul)(x, jnp.eye(2)), x + 0

    for arithmetic, expected in (("float32", x), ("tf32", x), ("bf16", jnp.eye(2))):
        product, same = with_products_in(arithmetic, function)(x)
        np.testing.assert_array_equal(product, expected)
        np.testing.assert_array_equal(same, x)


@pytest.mark.usefixtures("x64")
def test_accuracy_of_rules_whose_figures_are_known():
    streams = quadratics((6, 4), steps=20)
    rules = [Unrefreshed(), PAPER, COMPOSITE, staged("fine", 1e-6, (4,) * 4)]
    rules.append(Packaged("exact", ShampooRule()))
    rows = accuracy.study(streams, rules, ["float32"])
    rows += accuracy.study(streams, [COMPOSITE], ["bf16"])
    by_rule = {
        (row["rule"], row["arithmetic"]): row
        for row in rows
        if row["stream"] == streams[0].name
    }
    exact, fine = by_rule["exact", "float32"], by_rule["fine", "float32"]
    assert exact["refreshes"] == [1, 2, 3, 5, 10, 20]
    assert min(exact["cosine"]) > 0.9999
    assert max(exact["error"]) < 1e-3
    assert min(fine["cosine"]) > 0.999
    assert by_rule["composite", "float32"]["asymmetry"] == [0.0] * 6
    assert max(by_rule["paper", "float32"]["asymmetry"]) > 1e-3
    plain = by_rule["gradient itself", "float32"]
    assert all(0 < c < 1 for c in plain["cosine"])
    assert plain["cosine"][-1] < by_rule["paper", "float32"]["cosine"][-1]
    assert by_rule["composite", "bf16"]["cosine"] != pytest.approx(
        by_rule["composite", "float32"]["cosine"][3:], abs=1e-7
    )


def test_endurance_sees_asymmetry():
    gradients = np.random.default_rng(2).normal(size=(30, 1, 8, 4)).astype(np.float32)
    for rule, symmetric in (
        (PAPER, False),
        (COMPOSITE, True),
        (WHITENING, True),
    ):
        made_up, repeated = endurance.endure(
            [rule], ["heavy tails", "repeated"], gradients, (8, 4), 200
        )
        for row in (made_up, repeated):
            assert (row["asymmetry"] == 0) == symmetric
            assert row["history"]["refreshes"] == [100, 200]
        assert made_up["asymmetry"] != repeated["asymmetry"] or symmetric
        assert repeated["smallest"] > 0
        assert repeated["non_finite"] == 0
        assert 0 < repeated["cosine"] < 1
        assert repeated["ascents"] == 0


def test_endurance_rounds_what_is_offered():
    gradients = np.random.default_rng(2).normal(size=(30, 1, 8, 4)).astype(np.float32)
    rules = descent.offered(WHITENING)
    rows = endurance.endure(rules, ["repeated"], gradients, (8, 4), 100)
    assert [row["rule"] for row in rows] == [
        "whitening",
        "whitening, tf32 products",
        "whitening, bf16 products",
        "whitening, bfloat16 roots",
        "whitening, bfloat16 roots, tf32 products",
        "whitening, bfloat16 roots, bf16 products",
    ]
    cosines = [row["cosine"] for row in rows]
    assert cosines[0] not in cosines[1:]
    np.testing.assert_allclose(cosines, cosines[0], rtol=0.1)


def test_endurance_sees_ascent():
    directions = jnp.asarray([[[1.0, 0.0]], [[0.0, 2.0]], [[-1.0, 1.0]], [[1.0, 1.0]]])
    gradients = jnp.asarray([[[3.0, 0.0]], [[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    np.testing.assert_allclose(
        endurance.cosine(directions, gradients), [1, 0, -(0.5**0.5), 1], rtol=1e-6
    )


def test_hostile_streams_are_made():
    for name in HOSTILE:
        first, second = (synthetic_gradient(name, (8, 6), t) for t in (0, 501))
        assert first.shape == (8, 6)
        assert not np.allclose(first, second)
        spread = np.linalg.svd(np.asarray(first), compute_uv=False)
        assert spread[3] < 0.02 * spread[0]
    assert HOSTILE.keys().isdisjoint(SYNTHETIC)


# --- training ----------------------------------------------------------------------


def test_steps_to_a_target():
    curve = [0.1, None, 0.5, 0.4, 0.9]
    up = dict(larger_is_better=True, every=4)
    assert summary.steps_to(0.4, curve, **up) == 12
    assert summary.steps_to(0.5, curve, **up) == 20  # it had fallen behind again
    assert summary.steps_to(0.95, curve, **up) is None
    assert summary.steps_to(0.4, [0.5, None], **up) is None  # it diverged
    down = dict(larger_is_better=False, every=3)
    assert summary.steps_to(0.45, [0.9, 0.4], **down) == 6
    assert summary.steps_to(0.45, [0.4, 0.9], **down) is None


def test_ratios_are_paired_by_seed():
    ours, theirs = {0: 50, 1: 110, 2: 90}, {0: 100, 1: 200, 2: 200}
    assert summary.paired_ratio(ours, theirs).startswith("0.50 [0.39, 0.64]")
    assert "1 of 3 seeds unpaired" in summary.paired_ratio({**ours, 1: None}, theirs)
    assert summary.paired_ratio({0: 5}, {0: 5}).startswith("too few")


def test_trainer_reports_each_percent_and_stops_at_nan():
    problem = Problem(
        name="parabola",
        steps=100,
        init=lambda seed: ({"w": jnp.full((2, 2), 1.0 + seed)}, ()),
        loss=lambda params, state, batch: (jnp.sum(params["w"] ** 2), state),
        batches=lambda seed: iter(np.zeros(100)),
        evaluate=lambda params, state: jnp.sum(params["w"] ** 2),
        metric="loss",
        larger_is_better=False,
        central_rate=0.1,
        adamw_leaves=(),
    )
    train = trainer(problem, lambda rate: optax.sgd(rate))
    curve = train(0.1, 0)
    assert curve[0] == pytest.approx(4 * 0.8**2, abs=1e-4)
    assert len(curve) == 100
    assert curve[-1] == 0.0
    diverged = train(1e3, 0)
    assert diverged[0] is not None
    assert diverged[-1] is None
    assert len(diverged) == 100
