"""Training with 5 and with 100 clients at one epsilon: the paper's methods, by its accounting and
by what holds.

Everyone takes one gradient of a batch a round, squared loss. "paper": batches of 64, and the noise
for which equation (23) says epsilon, one record adding the clipping norm, whatever the number of
rounds; TP-SMC and HybridAlpha are local noise, as it describes them, and ours is the limit of pair
noise without bound, since Theorem 11 does not admit its graph of 5 neighbours. "sound": batches of
all of a client's records, and the same epsilon for one record exchanged in all rounds together, by
the exact composition of Gaussian views; TP-SMC and HybridAlpha share the noise of the sum among the
clients, as their own papers do; ours is the mode that can be trained, `r0_gaussian`.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", section 6. TP-SMC: Truex et al. (2019),
arXiv:1812.03224; HybridAlpha: Xu et al. (2019), arXiv:1912.05897.
"""

import dataclasses
import functools
import math
import pathlib
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models, schemes
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import printed
from fljax.data import dataset as datasets
from fljax.data.sources import cifar, images
from fljax.papers.paper import Settings

EPSILON, DELTA = 3.0, 1e-5  # of the tables
METHODS = ("paper", "sound")
NEIGHBOURS = 5

Method = Literal["paper", "sound"]

FEDAVG, PILE, CENTRAL, SHARED, LOCAL, OURS, HIDDEN = (
    "FedAvg",
    "PILE",
    "MP-CDP",
    "TP-SMC, HybridAlpha",
    "LDP",
    "ours",
    "ours, outputs hidden",
)
NAIVE = ("MP-DP-Naive, r as in (13)", "MP-DP-Naive, r in [.01, 100]")
WIDE: dict[str, Any] = {
    "form": "base",
    "scale_law": "log_uniform",
    "scale_range": (0.01, 100.0),
}
NARROW: dict[str, Any] = {"scale_law": "log_uniform", "scale_range": (0.9, 1.1)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One training: of whom, how its noise is sized, epsilon at `DELTA`, K, rounds, batch."""

    name: str
    method: Method
    epsilon: float
    clients: int
    rounds: int
    batch: int


class Task(NamedTuple):
    """data. model: its name, with options. rounds, and steps of the server. plain: a network with
    normalisation, whose scales sit in its affine pairs alone.
    """

    data: data.Dataset
    model: str
    options: dict[str, Any]
    rounds: int
    steps: dict[str, float]
    plain: bool


@functools.lru_cache(maxsize=2)
def task(shape: str, scale: str, folder: str | None) -> Task:
    """CIFAR-10 in FOLDER/cifar10, CIFAR-100 in FOLDER/cifar100, images of tissue in FOLDER/breast;
    or digits, two of them side by side, and the breast-cancer table of the same classes.
    """
    images_given = folder is not None
    if folder is not None and shape == "CIFAR":
        found = cifar.load(pathlib.Path(folder) / "cifar10")
    elif folder is not None and shape == "CIFAR100":
        found = cifar.load_100(pathlib.Path(folder) / "cifar100")
    elif folder is not None:
        found = images.load(str(pathlib.Path(folder) / "breast"))
    elif shape == "CIFAR100":
        found = pairs_of_digits()
    else:
        found = data.load("digits" if shape == "CIFAR" else "breast_cancer")
    if scale == "full" and (images_given or shape != "breast cancer"):
        steps = {"server_learning_rate": 0.05, "server_momentum": 0.9}
        rounds = 4000 if images_given else 100
        deep = {"blocks": 9} if shape == "CIFAR100" else {}  # ResNet56
        return Task(found, "resnet20", deep, rounds, steps, True)
    hidden = {"CIFAR": (32,), "CIFAR100": (64,)}.get(shape, (16,))
    steps = {"server_learning_rate": 0.5, "server_momentum": 0.5}
    return Task(found, "mlp", {"hidden": hidden}, 60, steps, False)


def pairs_of_digits() -> data.Dataset:
    """As many pairs of digits as there are digits, side by side, drawn within the held-out ones and
    within the others: images `[8, 16, 1]` of 100 classes.
    """
    digits, rng = data.load("digits"), datasets.fixed_rng()

    def paired(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        left, right = rng.integers(len(part["y"]), size=(2, len(part["y"])))
        x = np.concatenate([part["x"][left], part["x"][right]], axis=2)
        return {"x": x, "y": 10 * part["y"][left] + part["y"][right]}

    return data.Dataset(paired(digits.train), paired(digits.test), 100, "pairs of digits")


def start(task: Task, key: jax.Array, **options: Any) -> models.Functional:
    """The fresh network, its head at a tenth: outputs then have the size of the targets, and steps
    on the squared loss do not diverge.
    """
    shape = task.data.train["x"].shape[1:]
    model = models.create(
        task.model,
        example_shape=shape,
        num_classes=task.data.num_classes,
        key=key,
        **(task.options | options),
    )
    head = jax.tree.map(lambda leaf: 0.1 * leaf, model.params["logits"])
    return models.Functional({**model.params, "logits": head}, model.apply)


def batch_of(task: Task, name: str, clients: int, method: Method) -> int:
    """Records of a client in a round: a batch, or all it has; a batch where Psi and Phi of each
    record are clipped, which takes long.
    """
    records = -(-len(task.data.train["y"]) // clients)
    few = method == "paper" or name == HIDDEN
    return min(256 if task.plain else 64, records) if few else records


def config_of(case: Case, **common: Any) -> tuple[schemes.base.Scheme, Any, float | None]:
    """(Scheme, config with its noise, epsilon of one record in all rounds; None where there is no
    guarantee).

    Args:
      common: what else the config takes.
    """
    shared = {"num_parties": case.clients, "local_batch_size": case.batch, **common}
    graph: dict[str, Any] = {}
    if case.clients > NEIGHBOURS:
        graph = {"graph": "n_out", "out_degree": NEIGHBOURS}
    central, ours = schemes.get("mp_cdp"), schemes.get("bidirectional")
    if case.name == FEDAVG:
        return central, central.non_private(central.Config(**shared)), None
    if case.name == PILE:
        exact = {"noise": "paper", "noise_multiplier": 0.0, "execution": "protocol"}
        return ours, ours.Config(**(shared | exact | graph)), None
    if case.method == "paper":
        return _as_printed(case, shared, graph)
    # Sound: the noise multiplier z of the sum, then what each method needs for it.
    mode = {OURS: "r0_gaussian", HIDDEN: "upload_gaussian"}.get(case.name)
    if mode is not None:
        additive = {} if mode == "r0_gaussian" else {"additive_norm": 0.1}
        scheme, config = ours, ours.Config(**(shared | NARROW | graph | additive), noise=mode)
    else:
        scheme, config = central, central.Config(**shared)
    z = accounting.calibrate(
        lambda z: scheme.event(dataclasses.replace(config, noise_multiplier=z)).repeat(case.rounds),
        epsilon=case.epsilon,
        delta=DELTA,
        method="gdp",
    )
    # A client knows its own part of a shared noise; local noise is for a server that sees each.
    more = {SHARED: case.clients / (case.clients - 1), LOCAL: case.clients}.get(case.name, 1)
    return scheme, dataclasses.replace(config, noise_multiplier=math.sqrt(more) * z), case.epsilon


def _as_printed(
    case: Case, shared: dict[str, Any], graph: dict[str, Any]
) -> tuple[schemes.base.Scheme, Any, float | None]:
    """By equation (23), for a record that moves a sum by the clipping norm, of one round."""
    theta = float(printed.printed_theta(case.epsilon, DELTA))
    alone = printed.own_stddev_for(theta, 1)  # in units of what a record adds
    name = {OURS: "bidirectional", CENTRAL: "mp_cdp", SHARED: "mp_cdp"}.get(
        case.name, "mp_dp_naive"
    )
    scheme = schemes.get(name)
    if case.name == OURS:
        own = printed.own_stddev_for(theta, case.clients)
        given = shared | graph | {"noise": "oracle_clip", "noise_multiplier": own}
        return scheme, scheme.Config(**given), None
    # Noise multipliers of these count what moves where a record is exchanged, which is twice that.
    noise = alone / 2
    if case.name in NAIVE:
        law = WIDE if case.name == NAIVE[1] else {}
        return scheme, scheme.Config(**(shared | law), noise_multiplier=noise), None
    views = 1
    if case.name == SHARED:  # local noise at full size: of the clients' sum, one knows its own part
        noise *= math.sqrt(case.clients)
        views = case.clients - 1
    config = scheme.Config(**shared, noise_multiplier=noise)
    with accounting.x64():
        mu = 2 / alone / math.sqrt(views) * math.sqrt(case.rounds)
        true = float(gaussian.mu_to_epsilon(mu, DELTA))
    return scheme, config, true


@functools.lru_cache(maxsize=256)
def accuracies(case: Case, shape: str, settings: Settings) -> dict[str, Any]:
    """Held-out accuracy after all rounds `[seeds]`, and after each in the seeds' mean `[rounds]`;
    noise multiplier, true epsilon.

    Seeds set split, initial model, secrets and noise, and are the same for all, so that differences
    are taken seed by seed.
    """
    here = task(shape, settings.scale, settings.data)
    common: dict[str, Any] = dict(here.steps)
    if here.plain:
        common |= {"form": "base", "allow_plain": True}
    scheme, config, true = config_of(case, **common)
    model, labels = start(here, jax.random.key(0)), here.data.train["y"]
    algorithm = scheme.make(config, models.squared_error(model.apply), num_units=len(labels))
    examples, test = (jax.tree.map(jnp.asarray, part) for part in (here.data.train, here.data.test))

    @jax.jit
    def run(params: Any, examples: Any, test: Any, table: jax.Array, key: jax.Array) -> jax.Array:
        cohort = data.cohort(data.ClientData(examples, table), jnp.arange(case.clients))

        def step(state: Any, _: None) -> tuple[Any, jax.Array]:
            after = algorithm.round(state, cohort, key)[0]
            return after, models.evaluate(model.apply, after.params, test)[1]

        return jax.lax.scan(step, algorithm.init(params), None, length=case.rounds)[1]

    found = []
    for seed in settings.each_seed:
        table = data.partition.iid(labels, case.clients, np.random.default_rng(seed))
        params = start(here, jax.random.key(seed)).params
        found.append(run(params, examples, test, jnp.asarray(table), jax.random.key(seed)))
    runs = np.asarray(found, np.float64)
    return {
        "accuracies": np.round(runs[:, -1], 4).tolist(),
        "mean by round": np.round(runs.mean(axis=0), 4).tolist(),
        "noise_multiplier": float(config.noise_multiplier),
        "true_epsilon": true,
    }
