"""The area under the curve of an audit's scores by the command, and how far it scatters."""

import numpy as np
import pytest

from fljax.attacks import audit as attack_audit
from fljax.attacks import metrics
from fljax.cli import audit


def test_an_audit_says_how_far_the_area_of_its_scores_scatters():
    rng = np.random.default_rng(0)
    scores = rng.normal(1.0, 1.0, 200), rng.normal(0.0, 1.0, 300)
    told = audit._area(scores, 0.95, 0) | {"scores_of_law": False}
    assert told["auc"] == metrics.auc(scores[0][20:], scores[1][30:])  # a tenth does not count
    # Two normals a standard deviation apart: Phi(1 / sqrt(2)). By quadrature of Hanley and McNeil's
    # Q1 and Q2 the standard error of 180 and 270 scores is .0227; .0216 of all.
    assert told["auc_low"] < 0.7602 < told["auc_high"] and told["auc_low"] < told["auc"]
    assert told["auc_high"] - told["auc_low"] == pytest.approx(2 * 1.96 * 0.0227, rel=0.3)
    assert "at 95 %" in audit._of_area(told, 0.95) and "law" not in audit._of_area(told, 0.95)
    assert audit._area(None, 0.95, 0) == {"auc": None, "auc_low": None, "auc_high": None}
    # By places it is what a resample's own sort says, ties too.
    tied = [np.round(world, 1) for world in scores]
    low, high = attack_audit.bootstrap(
        metrics.auc, tied[0][20:], tied[1][30:], np.random.default_rng([0, 6]), confidence=0.99
    )
    told = audit._area(tied, 1 - 1e-9, 0) | {"scores_of_law": True}
    assert (told["auc_low"], told["auc_high"]) == pytest.approx((low, high), rel=1e-12)
    words = audit._of_area(told, 1 - 1e-9)
    assert "at 99 %" in words and "law of uploads alone" in words


def test_an_audit_has_no_interval_about_an_area_of_which_no_resample_differs():
    for scores, area, why in (
        ((np.ones(20), np.zeros(20)), 1.0, "no score crosses"),
        ((np.zeros(20), np.ones(20)), 0.0, "no score crosses"),
        ((np.ones(20), np.ones(20)), 0.5, "all resamples are alike"),
    ):
        told = audit._area(scores, 0.99, 0)
        assert told == {"auc": area, "auc_low": None, "auc_high": None}
        assert why in audit._of_area(told | {"scores_of_law": False}, 0.99)


def test_an_audit_takes_the_area_of_runs_that_did_not_weigh_a_views_numbers():
    areas = []
    for seed in range(40):
        worlds = np.random.default_rng(seed).normal(size=(2, 200, 16))  # the same law in both
        areas.append(audit._area(attack_audit.combined(*worlds), 0.95, 0)["auc"])
    # Mann and Whitney's variance, of 180 and 180 scores of one law: 361 / (12 180 180).
    error = (361 / (12 * 180 * 180) / len(areas)) ** 0.5
    assert np.mean(areas) == pytest.approx(0.5, abs=5 * error)
