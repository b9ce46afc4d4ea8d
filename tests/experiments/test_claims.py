import numpy as np
import pytest
from scipy.stats import ttest_ind

from bcls.evaluation.statistics import hierarchical_test, holm
from bcls.experiments.claims import HELD, INCONCLUSIVE, NOT, PARTLY, UNKNOWN, check_claims
from bcls.experiments.results import compare_rows, summarize
from tests.experiments.sweep_factory import line, ranks, sweep


def verdicts(*folders):
    return {claim.claim: claim for claim in check_claims([summarize(folder) for folder in folders])}


def rows(rsums, taus=None, seeds=(1, 2, 3), step=0.1, **changes):
    return [
        line(loss, seed, rsum + step * seed, (taus or {}).get(loss, 0.3) + 0.001 * seed, **changes)
        for loss, rsum in rsums.items()
        for seed in seeds
    ]


def test_claims_without_results_have_no_data(tmp_path):
    found = verdicts(sweep(tmp_path / "a", rows({"sigmoid": 1.0})))
    assert {claim.verdict for claim in found.values()} == {UNKNOWN}


def test_differences_above_the_margin_are_held(tmp_path):
    figures = {
        "triplet-hn": 300.0,
        "triplet-sn": 310.0,
        "bcls": 320.0,
        "kendall-sw-hs": 200.0,
        "ladder": 305.0,
        "sam": 306.0,
    }
    found = verdicts(sweep(tmp_path / "a", rows(figures, {"bcls": 0.4})))
    assert found["RSUM: BCLS above Triplet-SN above Triplet-HN"].verdict == HELD
    assert found["the Kendall loss alone is poor at RSUM"].verdict == HELD
    assert found["BCLS above Ladder and SAM"].verdict == HELD
    assert found["Kendall's tau with the labels rises most with BCLS"].verdict == HELD
    assert found["Triplet-SN converges better than Triplet-HN"].verdict == HELD
    assert found["the same settings work for several models"].verdict == UNKNOWN  # no table `paper-exact`


@pytest.mark.parametrize(
    ("soft", "step", "seeds", "expected"),
    [
        (315.0, 0.1, (1, 2, 3), HELD),
        (315.0, 50.0, (1, 2, 3), INCONCLUSIVE),  # both differences are within their margins
        (315.0, 0.1, (1,), INCONCLUSIVE),  # one seed has no margin
        (295.0, 0.1, (1, 2, 3), PARTLY),  # one of the two comparisons is contradicted
        (320.05, 0.1, (1, 2, 3), PARTLY),  # one of the two is inconclusive
    ],
)
def test_verdict_of_two_comparisons(tmp_path, soft, step, seeds, expected):
    figures = {"triplet-hn": 300.0, "triplet-sn": soft, "bcls": 320.0}
    found = verdicts(sweep(tmp_path / "a", rows(figures, seeds=seeds, step=step)))
    assert found["RSUM: BCLS above Triplet-SN above Triplet-HN"].verdict == expected


def test_reverse_order_is_not_held(tmp_path):
    found = verdicts(sweep(tmp_path / "a", rows({"triplet-hn": 3.0, "triplet-sn": 2.0, "bcls": 1.0})))
    assert found["RSUM: BCLS above Triplet-SN above Triplet-HN"].verdict == NOT


@pytest.mark.parametrize(("soft", "expected"), [(3.0, INCONCLUSIVE), (2.9, INCONCLUSIVE), (2.5, NOT)])
def test_differences_within_the_margin_are_inconclusive_in_both_directions(tmp_path, soft, expected):
    metrics = {"triplet-hn": 3.0, "triplet-sn": soft, "bcls": soft}
    found = verdicts(sweep(tmp_path / "a", rows(metrics)))
    assert found["RSUM: BCLS above Triplet-SN above Triplet-HN"].verdict == expected


def test_losses_are_compared_within_one_model(tmp_path):
    other = {"settings": {"model": {"name": "sgr"}, "loss": {"name": "bcls"}}}
    lines = rows({"triplet-hn": 300.0, "bcls": 310.0})
    lines += [
        line("S-HN", seed, 400.0, settings={"model": {"name": "sgr"}, "loss": {"name": "triplet-hn"}})
        for seed in (1, 2)
    ]
    lines += [line("S-BCLS", seed, 390.0 + seed, **other) for seed in (1, 2)]
    name = "the same settings work for several models"
    claim = verdicts(sweep(tmp_path / "paper-exact", lines, claims=False))[name]
    assert {finding.where: finding.verdict for finding in claim.findings} == {
        "made, dual, table paper-exact": HELD,
        "made, sgr, table paper-exact": NOT,
    }
    assert claim.verdict == PARTLY
    assert verdicts(sweep(tmp_path / "tuned", lines))[name].verdict == UNKNOWN  # each model has settings of its own


def test_one_model_is_not_several(tmp_path):
    folder = sweep(tmp_path / "paper-exact", rows({"triplet-hn": 300.0, "bcls": 310.0}))
    assert verdicts(folder)["the same settings work for several models"].verdict == UNKNOWN


def test_losses_are_compared_within_one_table(tmp_path):
    figures = {"triplet-hn": 3.0, "kendall-sw-hs": 2.0}
    folders = [sweep(tmp_path / loss, rows({loss: rsum})) for loss, rsum in figures.items()]
    assert verdicts(*folders)["the Kendall loss alone is poor at RSUM"].verdict == UNKNOWN
    together = sweep(tmp_path / "both", rows(figures))
    assert verdicts(together)["the Kendall loss alone is poor at RSUM"].verdict == HELD


def test_tables_with_the_same_name_in_two_folders_are_not_mixed(tmp_path):
    one = sweep(tmp_path / "a", rows({"triplet-hn": 3.0}), name="main")
    other = sweep(tmp_path / "b", rows({"kendall-sw-hs": 2.0}), name="main")
    assert verdicts(one, other)["the Kendall loss alone is poor at RSUM"].verdict == UNKNOWN


def test_p_values_are_adjusted_for_all_comparisons(tmp_path):
    claims = check_claims([summarize(sweep(tmp_path / "a", rows({"triplet-hn": 3.0, "triplet-sn": 3.3, "bcls": 3.7})))])
    findings = [finding for claim in claims for finding in claim.findings]
    assert [one.adjusted for one in findings] == holm([one.test.p_value for one in findings])
    assert len(findings) > 3


def test_differences_in_rsum_are_resampled_over_images_too(tmp_path):
    lines = [line(loss, seed, 300.0, test={"rsum": 300.0 + seed}) for loss in ("bcls", "triplet-sn") for seed in (1, 2)]
    folder = sweep(tmp_path / "a", lines)
    for number, one in enumerate(lines):
        ranks(folder, one["key"], number, kind="test")
    (finding,) = verdicts(folder)["RSUM: BCLS above Triplet-SN above Triplet-HN"].findings
    a, b = summarize(folder).rows
    expected = compare_rows(a, b, "test")
    assert (finding.test.low, finding.test.high) == (expected["difference_low"], expected["difference_high"])
    assert (finding.test.p_value, finding.test.basis) == (expected["p_value"], "seeds and images")


def test_agreement_with_people_is_resampled_over_photos_where_their_values_were_saved(tmp_path):
    rng, lines = np.random.default_rng(0), []
    for loss, tau in (("bcls", 0.5), ("triplet-sn", 0.4)):
        lines += [line(loss, seed, 1.0, test={"rsum": 1.0, "report_expert_tau_c": tau}) for seed in (1, 2)]
    folder = sweep(tmp_path / "a", lines)
    values = {one["key"]: rng.normal(one["test"]["report_expert_tau_c"], 1.0, 50) for one in lines}
    for number, one in enumerate(lines):
        arrays = ranks(folder, one["key"], number, kind="test")
        (finding,) = verdicts(folder)["agreement with people rises"].findings
        assert finding.test.basis == "seeds"  # until the values of all are there
        np.savez_compressed(
            folder / "ranks" / f"{one['key']}-test.npz", report_expert_tau_c=values[one["key"]], **arrays
        )
    (finding,) = verdicts(folder)["agreement with people rises"].findings
    tables = [[values[key] for key in row.keys.values()] for row in summarize(folder).rows]
    assert finding.test.p_value == hierarchical_test(*tables)["p_value"]
    assert (finding.verdict, finding.test.basis) == (INCONCLUSIVE, "seeds and images")


def test_the_p_value_is_at_least_that_of_a_t_test_over_seeds(tmp_path):
    """Two seeds that differ by 200 points: the bootstrap draws no values far beyond them."""
    lines = [line(loss, seed, 300.0, test={"rsum": 300.0}) for loss in ("bcls", "triplet-sn") for seed in (1, 2)]
    folder = sweep(tmp_path / "a", lines)
    (folder / "ranks").mkdir()
    ranked = {("bcls", 1): 1, ("bcls", 2): 2, ("triplet-sn", 1): 6, ("triplet-sn", 2): 11}
    for one in lines:
        place = np.full(30, ranked[one["row"], one["seed"]], np.uint32)
        arrays = {"i2t": place, "t2i": place, "owner": np.arange(30, dtype=np.uint32)}
        np.savez_compressed(folder / "ranks" / f"{one['key']}-test.npz", **arrays)
    found = compare_rows(*summarize(folder).rows, "test")
    assert found["p_value"] == pytest.approx(ttest_ind([600.0, 400.0], [200.0, 0.0], equal_var=False).pvalue)
    assert found["p_value"] > 0.1
    assert found["difference_low"] > 0
    (finding,) = verdicts(folder)["RSUM: BCLS above Triplet-SN above Triplet-HN"].findings
    assert finding.test.p_value == found["p_value"]
    assert finding.verdict == INCONCLUSIVE


def test_a_loss_above_bcls_that_was_the_best_of_several_has_a_larger_p_value(tmp_path):
    lines = rows({"bcls": 3.0, "triplet-sn": 3.0, "infonce": 3.0, "sam": 3.0}, {"bcls": 0.35, "infonce": 0.36})
    (finding,) = verdicts(sweep(tmp_path / "a", lines))["Kendall's tau with the labels rises most with BCLS"].findings
    a, b = ([one["validation"]["tau"] for one in lines if one["row"] == loss] for loss in ("bcls", "infonce"))
    assert finding.what == "tau: bcls minus infonce"
    assert finding.test.p_value == pytest.approx(3 * ttest_ind(a, b, equal_var=False).pvalue)
    lines = rows({"bcls": 3.0, "triplet-sn": 3.0, "infonce": 3.0, "sam": 3.0}, {"bcls": 0.37, "infonce": 0.36})
    (finding,) = verdicts(sweep(tmp_path / "b", lines))["Kendall's tau with the labels rises most with BCLS"].findings
    a = [one["validation"]["tau"] for one in lines if one["row"] == "bcls"]
    assert finding.test.p_value == pytest.approx(
        ttest_ind(a, b, equal_var=False).pvalue
    )  # above the best, so above all


def test_sweeps_with_noise_are_about_that_claim_alone(tmp_path):
    lines = rows({"triplet-sn": 300.0}, metrics={"true_tau": 0.1})
    for noise in (0.0, 0.1):
        for alpha, tau in ((0.0, 0.5), (0.2, 0.4)):
            bcls = {"model": {"name": "dual"}, "loss": {"name": "bcls", "alpha": alpha}}
            lines += rows({f"{noise} {alpha}": 320.0}, noise=noise, settings=bcls, metrics={"true_tau": tau})
    folder = sweep(tmp_path / "a", lines)
    found = {name: [one.what for one in claim.findings] for name, claim in verdicts(folder).items() if claim.findings}
    assert found == {
        "noise in the labels is tolerated": ["true_tau: 0.1 0.2 minus 0.1 0.0", "true_tau: 0.1 0.2 minus triplet-sn"]
    }
    without = sweep(tmp_path / "a", lines, claims=False)
    assert not any(claim.findings for claim in verdicts(without).values())


def test_configurations_of_a_grid_are_compared_separately(tmp_path):
    lines = [
        line(row, seed, rsum + seed, name=f"{row} ({alpha})", point={"loss.alpha": alpha})
        for row, rsums in (("good", (300.0, 320.0)), ("bad", (290.0, 200.0)))
        for alpha, rsum in zip((0.0, 0.2), rsums, strict=True)
        for seed in (1, 2)
    ]
    for one in lines:
        one["settings"] = {"model": {"name": "dual"}, "loss": {"name": "bcls"}}
    found = verdicts(sweep(tmp_path / "a", lines, spread=0.2))["alpha is best at the captions' spread"].findings
    assert [(one.what, one.test.difference) for one in found if "rsum" in one.what] == [
        ("rsum: good (0.2) minus good (0.0)", pytest.approx(20.0)),
        ("rsum: bad (0.2) minus bad (0.0)", pytest.approx(-90.0)),
    ]


def test_best_validation_rsum_represents_a_loss(tmp_path):
    plain = {"model": {"name": "dual"}, "loss": {"name": "bcls"}}
    lines = rows({"triplet-hn": 300.0})
    for name, validation, test in (("good", 320.0, 290.0), ("bad", 310.0, 330.0)):
        lines += [line(name, seed, validation + seed, test={"rsum": test + seed}, settings=plain) for seed in (1, 2)]
    for one in lines:
        one.setdefault("test", {"rsum": 300.0 + one["seed"]})
    claim = verdicts(sweep(tmp_path / "a", lines))["the same settings work for several models"]
    assert claim.findings == []
    found = check_claims([summarize(tmp_path / "a")])
    (order,) = (one for one in found if one.claim.startswith("RSUM"))
    assert order.findings == []  # there is no Triplet-SN
    lines += [line("triplet-sn", seed, 300.0, test={"rsum": 280.0 + seed}) for seed in (1, 2)]
    (first, _) = verdicts(sweep(tmp_path / "b", lines))["RSUM: BCLS above Triplet-SN above Triplet-HN"].findings
    assert first.what == "rsum: good minus triplet-sn"
    assert first.test.difference == pytest.approx(10.0)


def test_tested_configurations_are_not_compared_with_others(tmp_path):
    tested = [
        line(loss, seed, 1.0, test={"rsum": rsum + seed})
        for loss, rsum in (("bcls", 30.0), ("triplet-sn", 20.0))
        for seed in (1, 2)
    ]
    other = sweep(tmp_path / "b", [line("triplet-sn", seed, 99.0 + seed) for seed in (1, 2)])
    (finding,) = verdicts(sweep(tmp_path / "a", tested), other)["RSUM: BCLS above Triplet-SN above Triplet-HN"].findings
    assert finding.test.difference == pytest.approx(10.0)


def test_expert_agreement_on_the_images_for_reporting(tmp_path):
    lines = []
    for loss, tau in (("triplet-hn", 0.4), ("triplet-sn", 0.45), ("bcls", 0.5)):
        test = {"rsum": 1.0, "judged_expert_tau_c": 0.9 - tau, "report_expert_tau_c": tau}
        lines += [line(loss, seed, 1.0, test={**test, "report_expert_tau_c": tau + 0.001 * seed}) for seed in (1, 2)]
    assert verdicts(sweep(tmp_path / "a", lines))["agreement with people rises"].verdict == HELD


def test_alpha_beta_and_noise(tmp_path):
    def point(key, value, rsum, tau, seed):
        return line("row", seed, rsum + 0.1 * seed, tau + 0.001 * seed, name=f"row ({value})", point={key: value},
                    settings={"model": {"name": "dual"}, "loss": {"name": "bcls"}})  # fmt: skip

    alphas = {0.0: (300.0, 0.3), 0.1: (305.0, 0.33), 0.2: (320.0, 0.36), 0.4: (310.0, 0.31)}
    lines = [point("loss.alpha", alpha, *figures, seed) for alpha, figures in alphas.items() for seed in (1, 2)]
    claim = "alpha is best at the captions' spread"
    assert verdicts(sweep(tmp_path / "a", lines, spread=0.17))[claim].verdict == HELD
    assert verdicts(sweep(tmp_path / "b", lines, spread=0.05))[claim].verdict == NOT
    betas = {0.0: (330.0, 0.30), 0.1: (320.0, 0.36), 0.5: (310.0, 0.31)}
    lines = [point("loss.beta", beta, *figures, seed) for beta, figures in betas.items() for seed in (1, 2)]
    beta = verdicts(sweep(tmp_path / "c", lines))["a smaller stride beta is better"]
    assert [finding.verdict for finding in beta.findings] == [HELD, HELD, NOT, NOT]
    lines = []
    for name, noise, loss, true in (
        ("soft", 0.0, {"name": "triplet-sn"}, 0.2),
        ("zero", 0.1, {"name": "bcls", "alpha": 0.0}, 0.25),
        ("some", 0.1, {"name": "bcls", "alpha": 0.2}, 0.3),
    ):
        lines += [
            line(
                name,
                seed,
                300.0,
                noise=noise,
                metrics={"true_tau": true + 0.001 * seed},
                settings={"model": {"name": "dual"}, "loss": loss},
            )
            for seed in (1, 2)
        ]
    assert verdicts(sweep(tmp_path / "d", lines))["noise in the labels is tolerated"].verdict == HELD


def test_sweeps_can_opt_out_of_claims(tmp_path):
    paper = sweep(tmp_path / "a", rows({"triplet-hn": 300.0, "kendall-sw-hs": 200.0}))
    ours = sweep(tmp_path / "b", rows({"kendall-sw-hs": 400.0}), claims=False)
    claim = "the Kendall loss alone is poor at RSUM"
    assert verdicts(paper, ours)[claim].verdict == HELD
    assert verdicts(ours)[claim].verdict == UNKNOWN
