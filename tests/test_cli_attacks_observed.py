"""`fljax attack` on what a client or several send: labels not told, steps of their own, sums."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import cli, data
from tests.test_cli_attacks import files


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_a_transformers_upload_holds_the_image_without_noise_and_none_through_it(tmp_path):
    run_dir = tmp_path / "run"
    flags = ["--attack", "inversion_gauss_newton", "--scheme", "dp_fedsgd", "--model", "small_vit"]
    flags += ["--targets", "2", "--repeats", "1", "--iterations", "200", "--budgets", "1"]
    assert cli.main(["attack", *flags, "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["inverted"] == 1.0 and plain["psnr"] > 20 > 15 > private["psnr"]
    assert private["holds"] is not False


@pytest.mark.release(reason="one more upload", ids=["sum"])
@pytest.mark.slow(reason="attacks by the command, from training to report")
@pytest.mark.parametrize(
    ("flags", "sees"),
    [
        (["dlg", "--scheme", "dp_fedavg", "--iterations", "100"], "labels are searched for beside"),
        (["first_dense", "--scheme", "dp_sgd"], "before and after a round, and how"),
        (
            ["inversion_gauss_newton", "--scheme", "dp_fedavg", "--read-labels"]
            + ["--batch-size", "2", "--local-epochs", "2"],
            "passes over its images 2 times in steps of 2",
        ),
        (
            ["inversion_gauss_newton", "--scheme", "lightdp", "--clients", "3"],
            "the sum of 3 clients, and the upload of none",
        ),
    ],
    ids=["labels too", "equations", "local steps", "sum"],
)
def test_what_an_upload_is_and_its_labels_need_no_telling(flags, sees, tmp_path):
    run_dir = tmp_path / "run"
    flags = ["--attack", *flags, "--model", "mlp", "--targets", "4", "--repeats", "1"]
    flags += [] if "--iterations" in flags else ["--iterations", "200"]
    assert cli.main(["attack", *flags, "--budgets", "1", "--run-dir", str(run_dir)]) == 0
    plain, private = json.loads((run_dir / "attack.json").read_text())["rows"]
    assert plain["inverted"] >= 0.75 and plain["psnr"] > 20 > 15 > private["psnr"]
    # Four candidates: 1 / 4 by chance, and hardly more is certified of who is not told a label.
    assert 0.25 < private["bound"] < 0.4 and private["holds"] is not False
    told = "--clients" in flags
    assert (private["labelled_bound"] > private["bound"]) is told
    assert sees in files(run_dir)[1]


def test_labels_are_read_off_uploads_of_any_length():
    from fljax import models
    from fljax.cli import _attack_observed

    digits = data.load("digits")
    model = models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    x, y = digits.test["x"][:6], digits.test["y"][:6]
    loss = models.softmax_cross_entropy(model.apply)
    gradients = jax.vmap(jax.grad(loss), (None, 0))(model.params, {"x": x, "y": y})
    here = types.SimpleNamespace(dataset=digits, sent=model)
    lengths = jnp.asarray([1e-6, 3.0, 1.0, 40.0, 0.1, np.nan])
    one = jax.tree.map(lambda leaf: leaf * lengths.reshape(-1, *(1,) * (leaf.ndim - 1)), gradients)
    found = _attack_observed.read(here, one, 1)
    np.testing.assert_array_equal(found, [*y[:5, None], [0]])  # of NaN nothing
    batch = jax.tree.map(lambda leaf: 7 * leaf.sum(0, keepdims=True), gradients)
    assert sorted(_attack_observed.read(here, batch, 6)[0]) == sorted(y)
    narrow = types.SimpleNamespace(
        dataset=digits, sent=types.SimpleNamespace(params={"a": jnp.zeros(3)}, apply=None)
    )
    with pytest.raises(ValueError, match="one bias of 10 classes"):
        _attack_observed.read(narrow, {"a": jnp.zeros((1, 3))}, 1)


def test_clients_of_a_sum_have_as_many_records_each_and_are_clipped_alone():
    """Four unlike records of one loss, whose gradient is the record: what is clipped shows."""
    from fljax.attacks import reconstruction

    loss = lambda params, example: jnp.vdot(params, example["x"])
    x = jnp.asarray([[[8.0, 0, 0]], [[0, 8.0, 0]], [[0, 0, 8.0]], [[0, 0, 0.0]]])
    one = {"x": x[:1, 0], "y": jnp.zeros((1,), jnp.int32)}
    beside = {"x": x[1:].swapaxes(0, 1), "y": jnp.zeros((1, 3), jnp.int32)}
    pool = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(2, np.int32)}
    there = data.Dataset(pool, pool, 2, "lines")
    keys = jax.random.split(jax.random.key(0), 1)
    moved = []
    for records, clients in ((2, 2), (4, 1)):
        config = reconstruction.config(
            "dp_fedavg", records, num_clients=clients, noise_multiplier=0.0
        )
        moved.append(
            reconstruction.updates(
                *("dp_fedavg", config, loss, jnp.zeros(3), one, keys, there),
                beside=beside,
                num_clients=clients,
            )[0]
        )
    units = [np.asarray(move) / np.linalg.norm(move) for move in moved]
    # Two clients: (1, 1, 0) and (0, 0, 1), each clipped to one length; one client: (1, 1, 1).
    two = np.asarray([0.5**0.5, 0.5**0.5, 1]) / 2**0.5
    np.testing.assert_allclose(units[0], two, atol=1e-5)
    np.testing.assert_allclose(units[1], np.full(3, 3**-0.5), atol=1e-5)
