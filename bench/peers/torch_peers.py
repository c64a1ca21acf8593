"""A plain torch loop over clients, and pfl-research's simulated backend with its Gaussian
mechanism.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from bench import _harness
from bench.kernels import _torch_models
from bench.peers import tasks, torch_client
from bench.rounds import round as one_round

Run = Callable[[], list[torch.Tensor]]


def use_all_cores() -> None:
    """As many threads as this process may use."""
    torch.set_num_threads(_harness.cores())


def network(name: str, task: one_round.Task) -> nn.Module:
    """The round's model with its first weights."""
    return _torch_models.model(tasks.SPECS[name].letter, jax.device_get(task.params))


def tree_of(name: str, params: Any, arrays: list[torch.Tensor]) -> Any:
    """`arrays`, in the order of the module's parameters, in the structure and layouts of `params`.

    A module made of the numbers 0, 1, 2, ... in place of weights says where each weight goes;
    float32 is exact below 2**24 of them.
    """
    leaves, structure = jax.tree.flatten(jax.device_get(params))
    ends = np.cumsum([leaf.size for leaf in leaves])
    numbers = [
        np.arange(end - leaf.size, end, dtype=np.float32).reshape(leaf.shape)
        for end, leaf in zip(ends, leaves, strict=True)
    ]
    numbered = _torch_models.model(tasks.SPECS[name].letter, structure.unflatten(numbers))
    flat = np.empty(ends[-1], np.float32)
    for place, array in zip(numbered.parameters(), arrays, strict=True):
        flat[place.detach().numpy().astype(np.int64)] = array.detach().numpy()
    split = np.split(flat, ends[:-1])
    return structure.unflatten(
        [part.reshape(leaf.shape) for part, leaf in zip(split, leaves, strict=True)]
    )


def loop(name: str, task: one_round.Task, noise: float) -> Run:
    """One client after the other, in place."""
    use_all_cores()
    net = network(name, task)
    server = [p.detach().clone() for p in net.parameters()]
    clients = [(_torch_models.tensor(x), _torch_models.tensor(y)) for x, y in tasks.in_order(task)]

    def run() -> list[torch.Tensor]:
        total = [torch.zeros_like(p) for p in server]
        for x, y in clients:
            update = torch_client.clipped_update(
                net,
                server,
                x,
                y,
                batch_size=task.batch_size,
                learning_rate=one_round.LEARNING_RATE,
                l2_clip_norm=one_round.CLIP,
            )
            torch._foreach_add_(total, update)
        mean = list(torch._foreach_div(total, float(len(clients))))
        return torch_client.server_step(server, mean, noise * one_round.CLIP / len(clients))

    return run


def pfl(name: str, task: one_round.Task, noise: float) -> Run:
    """FederatedAveraging on a SimulatedBackend, without evaluation; the round's weights are put
    back before each.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    use_all_cores()
    net: Any = network(name, task)
    net.loss = lambda x, y: _torch_models.losses(net(x), y).mean()
    net.metrics = lambda x, y: {}
    server = [p.detach().clone() for p in net.parameters()]
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    clients = [
        PyTorchTensorDataset((_torch_models.tensor(x), _torch_models.tensor(y)), user_id=str(i))
        for i, (x, y) in enumerate(tasks.in_order(task))
    ]
    turn = iter(range(1 << 62))
    users = FederatedDataset(lambda i: clients[i], lambda: next(turn) % len(clients))
    mechanism = GaussianMechanism(one_round.CLIP, noise) if noise else None
    if mechanism is None:
        from pfl.privacy.privacy_mechanism import NormClippingOnly

        mechanism = NormClippingOnly(2.0, one_round.CLIP)
    backend = SimulatedBackend(
        users, users, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]
    )
    algorithm = FederatedAveraging()
    training = NNTrainHyperParams(
        local_batch_size=task.batch_size,
        local_num_epochs=1,
        local_learning_rate=one_round.LEARNING_RATE,
    )
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=len(clients),
        population=Population.TRAIN,
        model_train_params=training,
        model_eval_params=None,
        algorithm_params=NNAlgorithmParams(1, 1, len(clients), None),
        seed=1,
    )

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            torch._foreach_copy_(list(net.parameters()), server)
        statistics, metrics = backend.gather_results(model, algorithm, central_context=context)
        algorithm.process_aggregated_statistics(context, metrics, model, statistics)
        return [p.detach().clone() for p in net.parameters()]

    return run


PEERS: dict[str, Callable[[str, one_round.Task, float], Run]] = {"torch_loop": loop, "pfl": pfl}
