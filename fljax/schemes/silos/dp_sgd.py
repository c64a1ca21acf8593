"""DP-SGD in silos, with its epsilon and with its nats: the baseline of the information channel.

Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133, Algorithm
1; nats: Tan et al. (2024), arXiv:2403.01268, Theorem 4, with the factor 1/2 that it lost.
"""

import dataclasses
from typing import Any

import numpy as np

from fljax.accounting import information
from fljax.accounting.information import spent as spent_lib
from fljax.accounting.information.spent import Spent
from fljax.data import channel, store
from fljax.schemes import base
from fljax.schemes.silos import local_item_dp
from fljax.schemes.silos import round as silos

START = silos.START | {
    "data": {"dataset": "digits", "num_clients": 16, "partition": "iid"},
    "scheme": local_item_dp.START["scheme"],
    "privacy": {"target_delta": 5e-5},
}

Config = local_item_dp.Config
make, event = local_item_dp.make, local_item_dp.event


def spent(config: Config, task: Any, inputs: dict[str, Any], num_rounds: int) -> Spent | None:
    """What `num_rounds` rounds tell about each record, in nats; None without noise.

    A record is in a step with chance q, whatever it holds, and tells at most 1 / (2 z^2) there,
    also to an attacker who knows the rest of the batch and who is in it: num_steps * q times as
    much, by the chain rule. The gradients take the label in, so that its entropy is not added.
    """
    del inputs
    if not base.noise_multiplier(config):
        return None
    count, test = store.num_examples(task.client_data), np.asarray(task.dataset.test["x"])
    values = channel.spectrum(test)
    one = information.private_sgd_nats(
        noise_multiplier=silos.least_noise(config),
        batch_size=1,
        target="record",
        record_dimension=values.size,
        assume_iid=False,
        side_info="rest_of_batch",
    )
    uses = np.where(count > 0, num_rounds * config.num_local_steps * config.item_sampling_prob, 0.0)
    leakage = dataclasses.replace(one, nats=one.nats * uses, mode="linear")
    value_range = (float(test.min()), float(test.max()))
    return spent_lib.of_run(leakage, leakage.nats, 0.0, count, uses, values, value_range)


SCHEME = silos.scheme(
    summary="DP-SGD in silos, also counted in nats; unit: example",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    start=START,
    spent=spent,
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
