import numpy as np
import pytest

from fljax.server import costs

RESNET = 11_173_962  # parameters of ResNet-18 for 32x32 inputs, specification section 4.1


def test_the_papers_model_moves_the_bytes_of_the_specification():
    light = costs.pair_noise(RESNET, 50, 49)
    np.testing.assert_allclose(light.upload_bytes, 44.70e6, rtol=1e-3)
    np.testing.assert_allclose(light.pair_normals, 5.475e8, rtol=1e-3)
    assert (light.setup_upload_bytes, light.setup_download_bytes) == (32, 32 * 49)
    assert light.message_rounds == 1 and light.peer_links == 0
    np.testing.assert_allclose(costs.homomorphic(RESNET).upload_bytes / 2, 5.72e9, rtol=1e-3)
    assert costs.homomorphic(RESNET).message_rounds == 2
    assert costs.secure_aggregation(RESNET, 50).peer_links == 50 * 49
    coded = costs.coded_aggregation(RESNET, 50, 10, 10)
    # 30 parts: what all clients send the server is 50/30 of one model.
    np.testing.assert_allclose(50 * coded.upload_bytes, 50 / 30 * 4 * RESNET)
    assert coded.peer_links == 50 * 49


def test_round_time_is_compute_bytes_latency_and_repeats():
    base = costs.plain(1000)
    assert (
        costs.round_seconds(base, compute_seconds=2.0, bandwidth=4000.0, latency_seconds=0.5)
        == 2 + 2 + 0.5
    )
    assert (
        costs.round_seconds(base, compute_seconds=2.0, bandwidth=4000.0, completed_prob=0.25) == 16
    )
    drawing = costs.pair_noise(1000, 50, 20)
    assert (
        costs.round_seconds(drawing, compute_seconds=0.0, bandwidth=4000.0, seconds_per_normal=1e-3)
        == 20 + 2
    )
    assert costs.round_seconds(
        base, compute_seconds=2.0, bandwidth=4000.0, completed_prob=0.0
    ) == float("inf")
    numbers = {"compute_seconds": 1.0, "bandwidth": 1e7, "latency_seconds": 0.1}
    assert costs.round_seconds(costs.homomorphic(RESNET), **numbers) > 10 * costs.round_seconds(
        costs.plain(RESNET), **numbers
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: costs.plain(0), "num_params"),
        (lambda: costs.coded_aggregation(10, 5, 2, 3), r"max_colluders \+ max_stragglers < 5"),
        (
            lambda: costs.round_seconds(costs.plain(1), compute_seconds=1, bandwidth=0),
            "bandwidth > 0",
        ),
        (
            lambda: costs.round_seconds(
                costs.plain(1), compute_seconds=1, bandwidth=1, completed_prob=1.5
            ),
            "completed_prob",
        ),
    ],
)
def test_bad_costs_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
