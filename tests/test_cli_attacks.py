"""`fljax attack` and `fljax audit`: a folder each, with numbers and a report, and errors of one
line.
"""

import functools
import json
import re
import tomllib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import cli, data
from fljax.cli import _attack_classes, _attack_malicious, _attack_properties


def files(run_dir):
    report = (run_dir / "report.html").read_text()
    assert "<script" not in report and "src=" not in report
    return tomllib.loads((run_dir / "config.toml").read_text()), report


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_attack_writes_reconstructions_beside_the_truth_and_the_bound(tmp_path, capsys):
    run_dir = tmp_path / "run"
    flags = ["--scheme", "dp_fedsgd", "--targets", "4", "--repeats", "1", "--iterations", "150"]
    assert (
        cli.main(["attack", *flags, "--budgets", "1", "10000000", "--run-dir", str(run_dir)]) == 0
    )
    config, report = files(run_dir)
    assert config["scheme"] == "dp_fedsgd" and config["budgets"] == [1.0, 1e7]
    found = json.loads((run_dir / "attack.json").read_text())
    plain, low, high = found["rows"]
    assert plain["budget"] == "inf" and plain["noise"] == 0 and plain["holds"] is None
    assert plain["inverted"] == plain["picked"] == 1.0 and plain["psnr"] > low["psnr"] + 8
    # Nearly no noise is the positive control: everything is found. At epsilon 1 the bound is near
    # guessing.
    assert high["inverted"] == high["picked"] == 1.0 and high["psnr"] > low["psnr"] + 8
    assert 0.25 < low["bound"] < 0.4 and high["bound"] == pytest.approx(1.0, abs=1e-3)
    for row in found["rows"]:
        assert row["registered_psnr"] >= row["psnr"] - 1e-3
    for plainer in (plain, high):
        assert plainer["registered_psnr"] > low["registered_psnr"] + 8
        assert plainer["cw_ssim"] > 0.95 > low["cw_ssim"]
        assert plainer["learnt_distance"] < 0.2 * low["learnt_distance"]
    # Four rounds prove nothing: a share above 0.18, at a chance of 1e-3, even if all are told
    # right.
    assert low["holds"] is high["holds"] is None and found["standing"] == "certified"
    assert "Threat model" in report and report.count("<svg") == 3 and "only afterwards" in report
    assert "How alike they look" in report
    out = capsys.readouterr().out
    assert "share of digits told right" in out and "R-PSNR" in out and "CW-SSIM" in out


def test_how_alike_images_look_is_a_mean_over_rounds_by_every_measure():
    from fljax.attacks import metrics, perceptual
    from fljax.cli import _attack_looks

    rng = np.random.default_rng(0)
    truth = rng.random((2, 3, 3, 1), np.float32)  # too small for the network
    found = truth[None] + np.float32(0.1) * rng.standard_normal((3, 2, 3, 3, 1), np.float32)
    split = {"x": truth, "y": np.arange(2)}
    told = _attack_looks.beside(data.Dataset(split, split, 2, "tiny"))(
        found.reshape(-1, 3, 3, 1), truth
    )
    assert told.learnt_distance is None and _attack_looks.cells(told)[-1] == "-"
    measures = {
        "psnr": metrics.psnr,
        "registered_psnr": perceptual.registered_psnr,
        "ssim": metrics.ssim,
        "cw_ssim": perceptual.cw_ssim,
    }
    for name, measure in measures.items():
        measure = functools.partial(measure, data_range=float(np.ptp(truth)))
        each = jax.jit(jax.vmap(measure))(found.reshape(-1, 3, 3, 1), np.tile(truth, (3, 1, 1, 1)))
        assert told._asdict()[name] == pytest.approx(float(np.mean(each)), rel=1e-5), name


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_attack_on_a_channel_compares_the_squared_error(tmp_path):
    run_dir = tmp_path / "run"
    flags = [
        "--scheme",
        "natural_channel",
        "--targets",
        "4",
        "--repeats",
        "1",
        "--iterations",
        "150",
    ]
    assert cli.main(["attack", *flags, "--budgets", "5", "500", "--run-dir", str(run_dir)]) == 0
    found = json.loads((run_dir / "attack.json").read_text())
    plain, low, high = found["rows"]
    assert plain["mse"] < high["mse"] and plain["bound"] == 0
    assert "at least" in found["bound"] and found["standing"].startswith("not certified")
    assert (
        low["mse"] > high["mse"] and low["bound"] > high["bound"] and low["noise"] > high["noise"]
    )


@pytest.mark.release(reason="one more attack", ids=["fishing"])
@pytest.mark.slow(reason="attacks by the command, from training to report")
@pytest.mark.parametrize("attack", ["imprint", "fishing"])
def test_a_malicious_server_reads_one_of_a_batch_and_nothing_through_noise(attack, tmp_path):
    run_dir = tmp_path / "run"
    flags = ["--attack", attack, "--batch-size", "8", "--targets", "6", "--repeats", "2"]
    assert cli.main(["attack", *flags, "--budgets", "1", "--run-dir", str(run_dir)]) == 0
    found = json.loads((run_dir / "attack.json").read_text())
    plain, private = found["rows"]
    # Some share a bin with another of their batch, some a class.
    assert plain["inverted"] >= 0.75 and plain["psnr"] > 25 > 15 > private["psnr"]
    assert private["inverted"] < 0.6 and private["bound"] < 0.3 and private["holds"] is not False
    report = files(run_dir)[1]
    assert "malicious server" in report and "one of 8 records of its client" in report


@pytest.mark.release(reason="one more way to clip")
@pytest.mark.slow(reason="attacks by the command, from training to report")
@pytest.mark.parametrize("scheme", ["dp_sgd", "dp_fedavg", "user_ldp"])
def test_an_image_of_a_batch_is_inverted_however_the_scheme_clips(scheme, tmp_path):
    """Each example by itself, or the client's sum."""
    run_dir = tmp_path / "run"
    flags = ["--attack", "inversion_gauss_newton", "--scheme", scheme, "--batch-size", "4"]
    flags += ["--targets", "6", "--repeats", "1", "--budgets", "1"]
    assert cli.main(["attack", *flags, "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["inverted"] >= 0.75 and plain["psnr"] > 22 > 15 > private["psnr"]
    assert private["inverted"] <= 0.5 and private["bound"] < 0.3 and private["holds"] is not False
    assert "the labels of the whole batch" in files(run_dir)[1]


def test_of_a_batch_the_image_of_the_label_that_is_nearest_to_a_candidate_is_taken():
    from fljax.cli import _attack

    candidates = np.array([[0.0, 0.0], [4.0, 4.0]])
    found = np.array([[[2.0, 2.0], [0.0, 0.1], [4.0, 4.5]], [[np.nan, 0.0], [1.0, 1.0], [9.0, 9]]])
    labels = np.array([[1, 0, 1], [2, 2, 0]])
    np.testing.assert_array_equal(
        _attack._of_label(found, labels, candidates), [[4.0, 4.5], [1.0, 1.0]]
    )
    assert np.isnan(_attack._of_label(found[1:, :1], labels[1:, :1], candidates)).any()


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_an_image_is_fished_out_of_more_than_there_are_classes_by_several_rounds(tmp_path):
    run_dir = tmp_path / "run"
    flags = ["--attack", "fishing", "--batch-size", "32", "--targets", "6", "--repeats", "1"]
    assert cli.main(["attack", *flags, "--budgets", "1", "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["inverted"] >= 0.75 and plain["psnr"] > 25 > 15 > private["psnr"]
    # The noise of one round would be 3.7: the certificate is that of all.
    assert private["noise"] > 10 and private["bound"] < 0.3 and private["holds"] is not False
    assert "the budget is that of all rounds" in files(run_dir)[1]


def test_who_fishes_asks_for_four_times_the_images_of_a_class_in_a_large_batch():
    ten = types.SimpleNamespace(num_classes=10)
    given = {"attack": "fishing", "scheme": "dp_sgd", "num_rounds": None, "batch_size": 10}
    for change, number in (
        ({}, 1),
        ({"batch_size": 11}, 8),
        ({"batch_size": 32}, 17),
        ({"num_rounds": 3}, 3),
        ({"batch_size": 32, "scheme": "white_channel"}, 1),
        ({"batch_size": 32, "attack": "imprint"}, 1),
    ):
        options = types.SimpleNamespace(**given | change)
        assert _attack_malicious.num_casts(options, ten) == number


@pytest.mark.release(reason="half a minute")
@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_a_malicious_decoder_gives_away_texts_and_nothing_through_noise(tmp_path):
    flags = ["--attack", "decepticons", "--scheme", "dp_sgd", "--batch-size", "8"]
    flags += ["--targets", "6", "--repeats", "2", "--budgets", "4"]
    run_dir = tmp_path / "run"
    assert cli.main(["attack", *flags, "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["read"] > 0.8 and plain["picked"] == 1.0 and plain["holds"] is None
    assert private["noise"] < 1.1 and private["read"] <= private["guessed"]
    assert private["picked"] < 0.8 and private["holds"] is not False
    assert "malicious server" in files(run_dir)[1]


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_equations_give_an_image_to_rounding_and_nothing_through_noise(tmp_path):
    flags = ["--attack", "recursive", "--scheme", "dp_sgd", "--targets", "4", "--repeats", "1"]
    run_dir = tmp_path / "run"
    assert cli.main(["attack", *flags, "--budgets", "1", "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["psnr"] > 60 and plain["inverted"] == 1.0 and private["psnr"] < 10
    assert private["inverted"] <= private["bound"] and private["holds"] is not False
    files(run_dir)


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_what_a_clients_images_share_is_told_without_noise_and_hardly_through_it(tmp_path):
    flags = ["--attack", "properties", "--scheme", "dp_sgd", "--batch-size", "32"]
    run_dir = tmp_path / "run"
    given = [*flags, "--pool", "120", "--budgets", "1", "--run-dir", str(run_dir)]
    assert cli.main(["attack", *given]) == 0
    found = json.loads((run_dir / "attack.json").read_text())
    plain, private = found["rows"]
    assert plain["auc"] > 0.95 and plain["label_mix"] > 0.9
    assert private["auc"] < 0.85 and private["label_mix"] < 0.5
    assert plain["holds"] is private["holds"] is None and "no bound" in found["standing"]
    assert "turned by 90 degrees" in files(run_dir)[1]


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_classes_are_seen_in_a_model_without_noise_and_not_through_it(tmp_path):
    flags = ["--attack", "model_inversion", "--scheme", "dp_fedavg", "--pool", "300"]
    run_dir = tmp_path / "run"
    given = [*flags, "--budgets", "0.1", "--run-dir", str(run_dir)]
    assert cli.main(["attack", *given]) == 0
    found = json.loads((run_dir / "attack.json").read_text())
    plain, private = found["rows"]
    assert plain["member_accuracy"] > 0.8 and plain["picked"] >= 0.8
    # Who guesses the mean of all errs by more than three times as much.
    assert plain["psnr"] > plain["guessed"] + 5 and private["psnr"] < private["guessed"]
    assert private["member_accuracy"] < 0.5 and private["picked"] <= 0.5
    assert plain["holds"] is private["holds"] is None and "no bound" in found["standing"]
    assert "A class is no unit of a promise" in files(run_dir)[1]


def test_a_class_is_told_where_its_image_went_towards_it_most():
    truth = np.eye(3)[:, None, :, None]  # of one row of three pixels
    start = np.full((1, 3, 1), 1 / 3)
    towards = start + 0.1 * (truth - truth.mean(0))
    assert _attack_classes.told(towards, start, truth) == 1.0
    assert _attack_classes.told(towards[[1, 2, 0]], start, truth) == 0.0
    assert _attack_classes.told(towards[[0, 2, 1]], start, truth) == pytest.approx(1 / 3)


def test_clients_of_an_attack_on_properties_are_half_turned_and_share_no_image():
    rng = np.random.default_rng(0)
    # Each image has its number in a corner, which turning moves.
    x = np.zeros((400, 4, 4, 1), np.float32)
    x[:, 0, 0, 0] = np.arange(400)
    train = {"x": x, "y": np.tile(np.arange(4), 100)}
    made = data.Dataset(train, train, 4, "numbered")
    there = _attack_properties.clients(made, 40, 16, seed=3)
    assert there.known == 30 and there.has.sum() == 20 and there.x.shape == (40, 16, 4, 4, 1)
    np.testing.assert_allclose(there.mixes.sum(1), 1.0)
    numbers = there.x.sum((2, 3, 4)).astype(int)
    np.testing.assert_array_equal(there.y, numbers % 4)
    assert numbers[: there.known].max() < 200 <= numbers[there.known :].min()
    for seed in range(3):  # few clients, too: there is no area of one kind alone
        few = _attack_properties.clients(made, 8, 2, seed=seed)
        assert few.known == 6 and few.has[6:].sum() == 1
    straight = there.x[..., 0, 0, 0] == numbers
    np.testing.assert_array_equal(straight, np.repeat(~there.has[:, None], 16, 1) | (numbers == 0))
    wide = {"x": np.zeros((8, 4, 5, 1)), "y": np.arange(8) % 4}
    few = {"x": rng.random((8, 4, 4, 1)), "y": np.zeros(8, int)}
    for images, words in ((wide, "square images"), (few, "each class in both halves")):
        with pytest.raises(ValueError, match=words):
            _attack_properties.clients(data.Dataset(images, images, 4, "few"), 8, 2, seed=0)


def test_a_guess_of_a_malicious_server_needs_no_truth():
    candidates = np.asarray([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]).reshape(3, 1, 2, 1)
    # Bins of two uploads: the first holds a stranger and the second candidate, the second nothing.
    kernels = np.asarray([[[1.3, 0.9], [0.4, 0.1]], [[0.0, 0.0], [0.0, 0.0]]])
    biases = np.asarray([[2.0, 1.0], [0.0, 0.0]])
    layers = {"kernel": np.concatenate([kernels, kernels[:1] * np.nan]), "bias": biases[[0, 1, 0]]}
    found = _attack_malicious.read(layers, candidates, (0.0, 1.0))
    np.testing.assert_allclose(found[0].ravel(), [0.9, 0.1], rtol=1e-6)
    assert found.shape == (3, 1, 2, 1) and np.isnan(found[1:]).all()
    told = _attack_malicious.relabelled(
        {"x": jnp.zeros((2, 3)), "y": jnp.asarray([[3, 1, 0], [2, 2, 9]])}, jnp.asarray([1, 2]), 10
    )
    np.testing.assert_array_equal(told["y"], [[2, 0, 9], [0, 0, 7]])


@pytest.mark.release(reason="half a minute")
@pytest.mark.slow(reason="inverts gradients")
@pytest.mark.parametrize("scheme", ["natural_channel", "dp_fedsgd"])
def test_inversions_that_diverge_count_as_the_mean_image_and_break_no_bound(
    scheme, tmp_path, monkeypatch, capsys
):
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fljax import data, models
    from fljax.attacks import reconstruction, victims

    def updates(name, config, loss, params, examples, keys, dataset, *, beside, sent, num_clients):
        return jax.tree.map(lambda leaf: jnp.full((len(keys), *leaf.shape), jnp.nan), params)

    monkeypatch.setattr(victims, "smooth_lenet", lambda **given: models.create("softmax", **given))
    monkeypatch.setattr(reconstruction, "updates", updates)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        reconstruction,
        "invert",
        lambda *given, shape, **_: jnp.full((len(given[3]), *shape), jnp.nan),
    )
    flags = [
        "--scheme",
        scheme,
        "--targets",
        "4",
        "--repeats",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert cli.main(["attack", *flags]) == 0
    rows = json.loads((tmp_path / "run" / "attack.json").read_text())["rows"]
    assert len(rows) == 5  # without noise, and budgets that each kind of promise has noise for
    digits = data.load("digits")
    error = np.square(digits.test["x"][:4] - digits.train["x"].mean(0)).mean()
    for row in rows:
        assert row["diverged"] == 8 and row["mse"] == pytest.approx(error, rel=1e-5)
        assert row["inverted"] == row["picked"] == 0 and row["holds"] is not False
    assert "diverged" in capsys.readouterr().out
    assert "Diverged" in files(tmp_path / "run")[1]


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_lira_finds_members_without_noise_and_stays_within_the_certified_area(tmp_path):
    run_dir = tmp_path / "run"
    flags = [
        "--attack",
        "lira",
        "--scheme",
        "dp_fedsgd",
        "--budgets",
        "2",
        "10000000",
        "--num-rounds",
        "40",
    ]
    assert cli.main(["attack", *flags, "--run-dir", str(run_dir)]) == 0
    plain, low, high = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["auc"] > 0.7 and plain["holds"] is None and plain["budget"] == "inf"
    assert [rate["fpr"] for rate in plain["rates"]] == [0.001, 0.01, 0.05]
    assert all(0 <= rate["low"] <= rate["tpr"] <= rate["high"] <= 1 for rate in plain["rates"])
    # Positive control: nearly no noise, and a model that memorises. Standard error 0.06 at most.
    assert high["auc"] > 0.7 > low["auc"] + 0.02 and high["bound"] == pytest.approx(1.0, abs=1e-3)
    # No area is above one near 1.
    assert low["holds"] and high["holds"] is None and low["auc"] - 0.18 < 0.5 < low["bound"] < 0.9
    config, report = files(run_dir)
    assert config["attack"] == "lira" and "Threat model" in report and report.count("<svg") == 1


def test_an_area_is_judged_by_the_standard_error_at_its_bound():
    from fljax.cli import _attack_membership

    # 0.6 + 3 sqrt(0.6 * 0.4 / 100) = 0.747; with 0.9 and 80 examples not even 1 is above 0.9 +
    # 0.1006.
    assert [_attack_membership.within(auc, 0.6, 100) for auc in (0.5, 0.746, 0.748, 1.0)] == [
        True,
        True,
        False,
        False,
    ]
    assert (
        _attack_membership.within(1.0, 0.9, 80) is None
        and _attack_membership.within(1.0, 1.0, 10**6) is None
    )
    assert _attack_membership.within(1.0, 0.9, 82) is False


def test_repeats_of_one_target_are_no_evidence_of_their_own():
    import numpy as np

    from fljax.cli import _attack

    each = np.asarray([0.5, 0.9, 0.6, 0.8])
    assert _attack.within(each[None], 1.0) and not _attack.within(0.1 * each[None], 1.0)
    assert _attack.within(
        np.tile(each, (1000, 1)), 1.0
    )  # the same four targets, as uncertain as before


@pytest.mark.release(reason="ten seconds")
@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_lira_gives_full_batch_schemes_room_for_the_pool(tmp_path):
    flags = [
        "--attack",
        "lira",
        "--scheme",
        "gd_dp",
        "--budgets",
        "2",
        "--shadows",
        "4",
        "--num-rounds",
        "2",
    ]
    assert cli.main(["attack", *flags, "--pool", "41", "--run-dir", str(tmp_path / "run")]) == 0
    _, row = json.loads((tmp_path / "run" / "attack.json").read_text())["rows"]
    assert 0.5 < row["bound"] < 1 and 0 <= row["auc"] <= 1


@pytest.mark.slow(reason="attacks one more channel", but=["natural_channel-0.0-1"])
@pytest.mark.parametrize(
    ("scheme", "share", "code"), [("natural_channel", 0.0, 1), ("natural_channel", 9.0, 0)]
)
def test_an_attack_that_gets_past_a_bound_exits_with_1(
    scheme, share, code, tmp_path, monkeypatch, capsys
):
    """Inversions that find the digits, and some that find anything but."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fljax import data
    from fljax.attacks import reconstruction, table

    def updates(name, config, loss, params, examples, keys, dataset, *, beside, sent, num_clients):
        return jax.tree.map(lambda leaf: jnp.ones((len(keys), *leaf.shape)), params)

    # Without noise, and at four budgets.
    truth = np.tile(data.load("digits").test["x"][:4], (5, 1, 1, 1))
    monkeypatch.setattr(reconstruction, "updates", updates)
    monkeypatch.setattr(reconstruction, "invert", lambda *given, **_: jnp.asarray(truth + share))
    monkeypatch.setattr(table, "linear_estimate", lambda found, known: found)
    flags = [
        "--scheme",
        scheme,
        "--targets",
        "4",
        "--repeats",
        "1",
        "--budgets",
        "1",
        "2",
        "3",
        "4",
    ]
    assert cli.main(["attack", *flags, "--run-dir", str(tmp_path / "run")]) == code
    out = capsys.readouterr().out
    assert (
        "got past what is certified: budget 1, budget 2, budget 3, budget 4. Exit code 1." in out
    ) is (code == 1)
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_a_sweep_reads_every_scheme_without_noise_and_none_above_its_bound(tmp_path):
    run_dir = tmp_path / "run"
    flags = ["--attack", "inversion_gauss_newton", "--repeats", "1"]
    flags += ["--budgets", "1", "100", "--sweep", "dp_sgd", "white_channel", "lightdp"]
    assert cli.main(["attack", *flags, "--run-dir", str(run_dir)]) == 0
    rows = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert [row["scheme"] for row in rows[::3]] == ["dp_sgd", "white_channel", "lightdp"]
    # Digits are not declared Gaussian.
    assert [row["standing"][:13] for row in rows[1::3]] == [
        "certified",
        "not certified",
        "certified",
    ]
    picture = (run_dir / "sweep.svg").read_text()
    assert "uncertified bound" in picture and re.search("(?<!un)certified bound", picture)
    for plain, low, high in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert plain["measured"] > 40 > 21 > low["bound"] >= low["measured"]
        assert high["bound"] >= high["measured"] and high["bound"] > low["bound"]
        assert plain["holds"] is None and plain["bound"] == "inf" and high["noise"] < low["noise"]


def test_a_sweep_is_one_picture_and_names_what_got_past_a_bound(tmp_path, monkeypatch, capsys):
    """Inversions that find each digit but for 0.1 in every pixel: 20 dB, whatever the noise."""
    from fljax import data, models
    from fljax.attacks import reconstruction, victims
    from fljax.cli import _schemas

    def updates(name, config, loss, params, examples, keys, dataset, *, beside, sent, num_clients):
        return jax.tree.map(lambda leaf: jnp.ones((len(keys), *leaf.shape)), params)

    test = data.load("digits").test
    frequent = np.flatnonzero(test["y"] == np.bincount(test["y"]).argmax())[:4]
    truth = test["x"][frequent] + np.float32(0.1)  # of one label, which the attacker is told
    monkeypatch.setattr(victims, "smooth_lenet", lambda **given: models.create("softmax", **given))
    monkeypatch.setattr(reconstruction, "updates", updates)
    monkeypatch.setattr(
        reconstruction, "invert", lambda *given, **_: jnp.tile(truth, (len(given[3]) // 4, 1, 1, 1))
    )
    run_dir = tmp_path / "run"
    flags = ["--targets", "4", "--repeats", "1", "--sweep", "lightdp", "dp_sgd"]
    flags += ["--budgets", "0.1", "100000", "--run-dir", str(run_dir)]
    assert cli.main(["attack", *flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["result"]
    assert _schemas.misfits(found, _schemas.Attack) == []
    rows = found["rows"]
    assert [row["measured"] for row in rows] == pytest.approx([20.0] * 6, abs=1e-4)
    assert [row["scheme"] for row in rows] == ["lightdp"] * 3 + ["dp_sgd"] * 3
    # At epsilon 0.1 nobody is near, at 100,000 anybody may be.
    assert [row["holds"] for row in rows[1:3]] == [False, None] and rows[1]["bound"] < 20
    assert json.loads((run_dir / "attack.json").read_text())["rows"] == rows
    picture = (run_dir / "sweep.svg").read_text()
    assert found["picture"] == str(run_dir / "sweep.svg") and picture.startswith("<svg")
    assert all(text in picture for text in ("lightdp", "dp_sgd", "certified bound", "this attack"))
    assert picture.strip() in files(run_dir)[1]


@pytest.mark.release(reason="one more form of the table", but=["sweep1"])
@pytest.mark.slow(reason="integrates a trade-off curve for the images of each label")
@pytest.mark.parametrize("sweep", [None, ("dp_sgd",)])
def test_who_is_told_the_label_is_held_to_the_images_of_that_label(sweep, monkeypatch):
    """A label of its own for each image would give all of them away, without a leak."""
    from fljax import schemes
    from fljax.attacks import reconstruction
    from fljax.cli import _attack, attack

    options = attack.Options(scheme="dp_sgd", dataset="digits", targets=8, sweep=sweep)
    here = _attack.world(options, None)
    scheme = schemes.get("dp_sgd")
    event = scheme.run_event(reconstruction.config("dp_sgd", 1, noise_multiplier=2.0), 1)
    bound = reconstruction.identification_bound(event, 8)
    found = _attack._of_labels(event, here, bound)
    least = reconstruction.error_bound(event, here.truth)
    if sweep:  # of one label
        assert len(set(here.y)) == 1 and found == pytest.approx((bound, bound, least))
    else:
        assert found.labelled_bound > 1.5 * bound and found.least_mse < 0.5 * least
    alone = _attack._of_labels(event, here._replace(y=np.arange(8)), bound)
    assert alone[1:] == pytest.approx((1.0, 0.0))


def test_a_sweep_without_a_name_is_of_all_schemes_that_fit():
    from fljax.cli import attack

    every = attack._swept(attack.Options(sweep=()))
    assert {"dp_fedavg", "lightdp", "white_channel"} <= set(every) and "fedavg" not in every
    many = attack.Options(sweep=(), attack="imprint", batch_size=2)
    assert set(every) - set(attack._swept(many)) >= {"white_channel"}
    fished = attack.Options(sweep=(), attack="fishing", num_rounds=2)
    assert set(every) - set(attack._swept(fished)) >= {"white_channel"}


def test_a_sweep_has_the_uploads_of_the_schemes_that_it_names(monkeypatch):
    """All 17 casts of a batch are inverted, whatever scheme the options name beside the sweep."""
    from fljax import models
    from fljax.attacks import reconstruction, victims
    from fljax.cli import _attack, _attack_sweep, attack

    asked = []

    def updates(name, config, loss, params, examples, keys, dataset, *, beside, sent, num_clients):
        assert len(sent["head"]["bias"]) == len(keys) == len(beside["y"])
        return jax.tree.map(lambda leaf: jnp.ones((len(keys), *leaf.shape)), params)

    def caught(options, here, moved, budgets, number, key, search, prior):
        asked.append((len(jax.tree.leaves(moved)[0]), number, options.scheme))
        return np.tile(here.truth, (budgets, 1, 1, 1))

    monkeypatch.setattr(victims, "smooth_lenet", lambda **given: models.create("softmax", **given))
    monkeypatch.setattr(reconstruction, "updates", updates)
    monkeypatch.setattr(_attack_malicious, "caught", caught)
    options = attack.Options(
        scheme="white_channel",
        attack="fishing",
        sweep=("dp_sgd",),
        batch_size=32,
        dataset="digits",
        targets=2,
        repeats=1,
        budgets=(1.0,),
    )
    found = _attack_sweep.run(options, None, lambda _: None)
    # Two images, without noise and at one budget.
    assert asked == [(2 * 2 * 17, 17, "dp_sgd")] and found.num_casts == 17
    assert [row.noise > 10 for row in found.lines] == [False, True]
    report = "".join(_attack_sweep.sections(options, found))
    assert "for all rounds of a batch (17)" in report and "17 rounds of the same batch" in report
    assert "rounds of the same batch" not in _attack.seen(options, 1)


def test_a_sweep_leaves_out_nats_whose_noise_float32_does_not_hold():
    from fljax.cli import _attack, _attack_sweep, attack

    told = {}
    for name in ("embedding_channel", "white_channel"):
        options = attack.Options(scheme=name, budgets=_attack.BUDGETS["nats"])
        told[name] = _attack_sweep._held(options, data.load("digits"))
    assert told == {"embedding_channel": (1.0, 10.0, 100.0), "white_channel": (1, 10, 100, 1000)}


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_lira_that_gets_past_a_bound_exits_with_1(tmp_path, monkeypatch, capsys):
    from fljax.cli import _attack_membership

    line = _attack_membership.Line(2.0, 1.0, 0.9, 0.6, (), 1.0, 0.5, None)
    for holds, code in ((False, 1), (True, 0), (None, 0)):
        monkeypatch.setattr(
            _attack_membership,
            "run",
            lambda *_, holds=holds: _attack_membership.Found(
                [line._replace(budget=float("inf"), holds=None), line._replace(holds=holds)]
            ),
        )
        flags = [
            "--attack",
            "lira",
            "--scheme",
            "dp_fedsgd",
            "--run-dir",
            str(tmp_path / str(holds)),
        ]
        assert cli.main(["attack", *flags]) == code
        assert ("budget 2. Exit code 1." in capsys.readouterr().out) is (code == 1)


@pytest.mark.parametrize("command", ["attack", "audit"])
def test_help_lists_the_schemes_that_are_taken_and_no_others(command, capsys):
    from fljax import schemes
    from fljax.cli import attack, audit

    def taken(name, **more):
        try:
            (attack if command == "attack" else audit).Options(scheme=name, **more)
        except ValueError:
            return False
        return True

    cli.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").replace("|", " ").split())
    parts = shown.split("One of ")[1].partition(".")[0].split("; with --attack lira one of ")
    for names, more in zip(parts, ({}, {"attack": "lira"}), strict=False):
        assert names.split(", ") == [name for name in schemes.NAMES if taken(name, **more)]
    assert len(parts) == (2 if command == "attack" else 1)


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_audit_prints_what_is_certified_and_what_was_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table breaks words
    run_dir = tmp_path / "run"
    flags = ["--scheme", "lightdp", "--trials", "2000", "--epsilon", "3"]
    assert cli.main(["audit", *flags, "--run-dir", str(run_dir)]) == 0
    (row,) = json.loads((run_dir / "audit.json").read_text())["rows"]
    assert 1.0 < row["measured"] <= row["certified"] == pytest.approx(3.0, rel=0.02)
    assert row["holds"] and row["unit"] == "client" and row["noise_multiplier"] > 0
    out = capsys.readouterr().out
    assert "lightdp" in out and "REPLACE_ONE" in out and "area under the curve" in out
    assert 0.5 < row["auc_low"] < row["auc"] < row["auc_high"] < 1
    _, report = files(run_dir)
    assert (
        "Threat model" in report
        and "tell it their pair noise" in report
        and report.count("<svg") == 1
    )


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_audit_of_few_trials_cannot_tell(tmp_path, capsys):
    assert (
        cli.main(
            ["audit", "--scheme", "lightdp", "--trials", "16", "--run-dir", str(tmp_path / "run")]
        )
        == 0
    )
    (row,) = json.loads((tmp_path / "run" / "audit.json").read_text())["rows"]
    assert (
        row["holds"] is None
        and row["ceiling"] <= row["certified"]
        and row["standing"] == "certified"
    )
    assert "cannot tell: so many trials prove at most epsilon" in capsys.readouterr().out


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_audit_all_puts_the_papers_in_one_table(tmp_path):
    from fljax import schemes
    from fljax.attacks import table

    run_dir = tmp_path / "run"
    assert cli.main(["audit", "--all", "--trials", "4000", "--run-dir", str(run_dir)]) == 0
    rows = json.loads((run_dir / "audit.json").read_text())["rows"]
    assert [row["scheme"] for row in rows] == [
        name for name in table.PAPERS if name in schemes.NAMES
    ]
    assert all(row["paper"] for row in rows)
    # The rounds of one of them are looked at by a replay alone.
    assert {row["scheme"]: row["holds"] for row in rows if not row["holds"]} == {
        "bidirectional": None
    }
    assert [row["scheme"] for row in rows if "1 use" in row["quantity"]] == ["natural_channel"]
    _, report = files(run_dir)
    assert "misses one bit" in report and "covariance of training data" in report
    assert all(row["scheme"] in report for row in rows)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["audit", "--scheme", "fedavg"], "scheme to be one of"),
        (["audit", "--delta", "0"], "delta in"),
        (["audit", "--trials", "3"], "trials >= 8"),
        (["attack", "--scheme", "nobody"], "scheme to be one of"),
        (["attack", "--scheme", "fedavg"], "scheme to be one of"),
        (["attack", "--scheme", "bidirectional"], "scheme to be one of"),
        (["attack", "--scheme", "mp_cdp"], "scheme to be one of"),
        (["attack", "--attack", "lira", "--scheme", "white_channel"], "for examples or subjects"),
        (["attack", "--budgets", "3", "2"], "ascending"),
        (["attack", "--budgets", "0"], "budgets > 0"),
        (["attack", "--targets", "1"], "targets in"),
        (["attack", "--targets", "many"], "many"),
        (["attack", "--attack", "recursive", "--batch-size", "2"], "imprint, fishing"),
        (["attack", "--attack", "recursive", "--clients", "2"], "Expected clients, local_epochs"),
        (["attack", "--attack", "dlg", "--read-labels"], "Expected no read_labels with dlg"),
        (["attack", "--scheme", "dp_sgd", "--local-epochs", "2"], "do not pass over their data"),
        (
            ["attack", "--scheme", "dp_fedavg", "--batch-size", "4", "--local-batch-size", "3"],
            "Expected local_batch_size to divide batch_size=4",
        ),
        (["attack", "--scheme", "white_channel", "--clients", "2"], "that promises an epsilon"),
        (["attack", "--batch-size", "2", "--sweep", "dp_sgd"], "do not clip alike"),
        (["attack", "--batch-size", "2", "--scheme", "white_channel"], "which its attacker has"),
        (["attack", "--attack", "imprint", "--batch-size", "0"], "batch_size"),
        (
            ["attack", "--attack", "imprint", "--batch-size", "2", "--scheme", "white_channel"],
            "which its attacker has not",
        ),
        (
            ["attack", "--attack", "fishing", "--num-rounds", "2", "--scheme", "white_channel"],
            "which its attacker has not",
        ),
        (
            ["attack", "--attack", "fishing", "--num-rounds", "2"]
            + ["--sweep", "dp_sgd", "white_channel"],
            "which its attacker has not",
        ),
        (["attack", "--shadows", "2"], "shadows >= 4"),
        (["attack", "--sweep", "nobody"], "sweep"),
        (["attack", "--sweep", "fedavg"], "sweep to be one of"),
        (["attack", "--sweep", "dp_sgd", "dp_sgd"], "each scheme once in sweep"),
        (["attack", "--sweep", "dp_sgd", "--targets", "300"], "images of one label, with sweep"),
        (["attack", "--sweep", "--attack", "lira", "--scheme", "dp_sgd"], "with sweep"),
        (["attack", "--attack", "one_unit", "--model", "mlp"], "no model with a game"),
        (["attack", "--model", "cnn", "--lora", "2"], "membership or symbols with lora"),
        (["attack", "--attack", "lira", "--scheme", "lightdp"], "for examples or subjects"),
        (["attack", "--attack", "subject_lira", "--scheme", "dp_sgd"], "for subjects with"),
        (
            ["attack", "--attack", "lira_of_views", "--scheme", "dp_fedsgd"]
            + ["--dataset", "breast_cancer"],
            "images for lira_of_views",
        ),
        (["attack", "--attack", "model_inversion", "--scheme", "white_channel"], "scheme to be"),
        (["attack", "--attack", "model_inversion", "--scheme", "dp_fedavg", "--pool", "8"], "each"),
        (["audit", "--scheme", "natural_channel", "--num-rounds", "2"], "num_rounds=1"),
    ],
)
def test_bad_flags_give_one_line_and_no_folder(args, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_that_holds_something_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    assert cli.main(["audit", "--run-dir", str(tmp_path)]) == 2
    assert "to be empty or new" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.txt"]
