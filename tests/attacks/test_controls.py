"""Every attack of `fljax attack` has a control without defence, which must succeed, and one behind
noise, which must fail: here, or in the test that is named here.
"""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import attacks, cli, data, models
from fljax.attacks import rounds, shadow, trained

ROOT = pathlib.Path(__file__).parents[1]
SEARCHES = ("inversion_lbfgs", "inversion_gauss_newton", "inversion_feature_prior")
MEMBERS = tuple(name for name in attacks.MEMBERSHIP if name != "exposure")
ELSEWHERE = {
    "inversion": ("test_cli_attacks", "attack_writes_reconstructions_beside_the_truth"),
    "dlg": ("test_cli_attacks_observed", "what_an_upload_is_and_its_labels_need_no_telling"),
    "first_dense": (
        "test_cli_attacks_observed",
        "what_an_upload_is_and_its_labels_need_no_telling",
    ),
    "recursive": ("test_cli_attacks", "equations_give_an_image_to_rounding_and_nothing"),
    "imprint": ("test_cli_attacks", "a_malicious_server_reads_one_of_a_batch_and_nothing"),
    "fishing": ("test_cli_attacks", "a_malicious_server_reads_one_of_a_batch_and_nothing"),
    "decepticons": ("test_cli_attacks", "a_malicious_decoder_gives_away_texts_and_nothing"),
    "properties": ("test_cli_attacks", "what_a_clients_images_share_is_told_without_noise"),
    "model_inversion": ("test_cli_attacks", "classes_are_seen_in_a_model_without_noise_and_not"),
    "symbols": ("attacks/test_text", "symbols_are_read_off_an_update_without_noise_and_not"),
    "exposure": ("attacks/test_text", "canaries_of_subjects_are_exposed_without_noise_and_hidden"),
}
SCHEME, SHADOWS, POOL, ROUNDS, TARGETS, OF_A_PERSON = "higradavg", 16, 120, 100, 5, 4


def test_every_attack_of_the_command_has_its_controls():
    assert {*SEARCHES, *MEMBERS, *ELSEWHERE} == set(attacks.PROGRAMS)
    for file, test in ELSEWHERE.values():
        assert f"def test_{test}" in (ROOT / f"{file}.py").read_text()
    assert set(attacks.NAMES) == {"one_unit", "span", "uploads"}  # test_rounds.py, test_span.py


@pytest.mark.slow(reason="inverts gradients")
@pytest.mark.parametrize("attack", SEARCHES)
def test_a_search_finds_images_without_noise_and_none_through_it(attack, tmp_path):
    flags = ["--attack", attack, "--scheme", "dp_sgd", "--targets", "4", "--repeats", "1"]
    if attack == "inversion_lbfgs":  # 24 dB, in a sixth of the time of the default
        flags += ["--iterations", "60"]
    run_dir = tmp_path / "run"
    assert cli.main(["attack", *flags, "--budgets", "1", "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["inverted"] == 1.0 and private["psnr"] < 12 and private["holds"] is not False
    # Signed Adam is less sharp: as the control of `inversion`.
    least = private["psnr"] + 8 if attack == "inversion_feature_prior" else 20
    assert plain["psnr"] > least


@pytest.fixture(scope="module")
def through():
    """{noise multiplier: what an attacker has of TARGETS models by the scheme and its own}."""
    rng, digits = np.random.default_rng(0), data.load("digits")
    x, y = digits.train["x"][: 2 * POOL], digits.train["y"][: 2 * POOL].copy()
    wrong = rng.random(2 * POOL) < 0.2
    y[wrong] = rng.integers(0, 10, wrong.sum())
    pool, rest = (
        {"x": jnp.asarray(x[at]), "y": jnp.asarray(y[at])}
        for at in (slice(POOL), slice(POOL, None))
    )
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), hidden=(32,)
    )
    loss = models.softmax_cross_entropy(model.apply)
    subjects = np.arange(POOL) // OF_A_PERSON
    number = TARGETS + SHADOWS
    persons = shadow.halves(jax.random.key(1), number + 1, POOL // OF_A_PERSON)[1:]
    included = np.asarray(persons)[:, subjects]
    found = {}
    for noise in (0.0, 20.0):
        config = rounds.config(SCHEME, noise_multiplier=1.0, local_learning_rate=2.0)
        passed = trained.models(
            SCHEME,
            dataclasses.replace(config, noise_multiplier=noise),
            loss,
            model.params,
            pool,
            jnp.asarray(included),
            jax.random.split(jax.random.key(2), number),
            num_rounds=ROUNDS,
            subjects=subjects,
            every_round=True,
        )
        last = jax.tree.map(lambda leaf: leaf[:, -1], passed)
        found[noise] = trained.Trained(
            model.apply, last, pool, included, rest, passed, loss, subjects
        )
    return found


@pytest.mark.slow(reason="trains shadow models by a scheme's rounds")
@pytest.mark.parametrize("attack", MEMBERS)
def test_members_are_told_without_noise_and_none_through_it(attack, through):
    def mean(given):
        """The area, over targets."""
        areas = []
        for at in range(TARGETS):
            # The target, and the last of all, which are pairs of complements: none is a target's.
            kept = np.asarray([at, *range(TARGETS, TARGETS + SHADOWS)])
            cut = lambda leaf, kept=kept: leaf[kept]
            here = given._replace(
                params=jax.tree.map(cut, given.params),
                passed=jax.tree.map(cut, given.passed),
                included=given.included[kept],
            )
            areas.append(trained.attacked(attack, here, jax.random.key(3 + at)).auc)
        return np.mean(areas)

    plain, private = (mean(through[noise]) for noise in (0.0, 20.0))
    units = POOL // OF_A_PERSON if attack in attacks.OF_SUBJECTS else POOL
    # Of areas that say nothing: groups of half of the units each.
    error = ((units + 1) / (12 * (units / 2) ** 2)) ** 0.5 / TARGETS**0.5
    assert plain > 0.5 + 4 * error and abs(private - 0.5) < 4 * error


@pytest.mark.slow(reason="trains shadow models by a scheme's rounds")
def test_the_weights_tell_more_than_their_answers_and_no_more_than_is_certified(tmp_path):
    """Four seeds: eighty members against eighty others each."""
    areas = {"lira": [], "white_box": []}
    for seed in range(4):
        for attack, found in areas.items():
            run_dir = tmp_path / f"{attack}-{seed}"
            flags = ["--attack", attack, "--scheme", "dp_sgd", "--seed", str(seed)]
            flags += ["--budgets", "0.5", "--delta", "1e-3", "--run-dir", str(run_dir)]
            assert cli.main(["attack", *flags]) == 0
            plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
            found.append((plain["auc"], private["auc"], private["bound"]))
    lira, weights = (np.asarray(found) for found in areas.values())
    assert np.all(weights[:, 0] > lira[:, 0]) and weights[:, 0].mean() > lira[:, 0].mean() + 0.05
    # Three standard errors of the mean of four areas that say nothing.
    assert weights[:, 1].mean() <= weights[0, 2] + 3 * (161 / (12 * 80**2)) ** 0.5 / 2
