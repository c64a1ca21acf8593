"""The programs that are compiled: ours, what they are to be compared with, and their arguments.

Arguments are shapes where they are large: nothing is computed.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from bench.aot import pod
from bench.kernels import per_example, workloads
from fljax.server.aggregate import CLIENTS
from fljax_kernels import chacha20, correlated, discrete, sampling, spectral
from fljax_kernels.pairwise import graphs

ROWS = (1024, 1_000_000)  # of clip_and_sum
SCHEMES = (
    "dp_fedavg",
    "dp_fedsgd",
    "higradavg",
    "lightdp",
    "gsgd_dp",
    "white_channel",
    "bidirectional",
    "dp_ftrl",
    "distributed_dgauss",
)
# Rounds and the settings of their schemes; silos and clients may keep correlated noise to
# themselves.
ROUNDS: dict[str, dict[str, str]] = {f"round_{name}": {"scheme": name} for name in SCHEMES} | {
    f"round_{name}_banded": {"scheme": name, "correlation": "banded"}
    for name in ("higradavg", "lightdp")
}
BANDS = (1.0, 0.5, 0.375, 0.3125)  # of noise correlated over rounds
STDDEV = 100.0  # of integers
# Of a round in which each unit is for a number of times: units, rounds, times.
ALLOCATED = (1_000_000, 1000, 10)
# Of rounds that grow with their devices: places for a client's examples, by workload.
CLIENTS_A_DEVICE, EXAMPLES = 100, {"a": 40, "b": 240}


class Program(NamedTuple):
    """A function and its arguments: arrays or shapes. Of one over a mesh of its own also that, and
    how results are spread; else they are the same on all devices. donated: arguments whose memory
    results may take.
    """

    fun: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: jax.sharding.AbstractMesh | None = None
    results: Any = jax.sharding.PartitionSpec()
    donated: tuple[int, ...] = ()


Forms = dict[str, Callable[[], Program]]
REFERENCE, PLAIN, OURS = "reference", "plain", "ours"


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument that is not there."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def _key(impl: str | None = None) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl))


def _gradients(letter: str) -> Forms:
    """reference: the mean gradient. two_pass: by hand, norms by `vmap(grad)`."""

    def of(make: Callable[[Any], Any]) -> Callable[[], Program]:
        def program() -> Program:
            shapes = jax.eval_shape(lambda: workloads.make(letter)[3:])
            return Program(make(_loss(letter)), tuple(shapes))

        return program

    named = {REFERENCE: "non_private", PLAIN: "vmap_grad", OURS: "ours_auto"}
    forms = {
        form: of(functools.partial(per_example.gradient, peer)) for form, peer in named.items()
    }
    return forms | {"two_pass": of(_two_pass)}


def _loss(letter: str) -> Callable[[Any, Any], jax.Array]:
    found: list[Any] = []

    def make() -> Any:
        workload = workloads.make(letter)
        found.append(workload.loss)
        return workload[3:]

    jax.eval_shape(make)
    loss: Callable[[Any, Any], jax.Array] = found[0]
    return loss


def _two_pass(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], Any]:
    def clipped(params: Any, batch: Any) -> Any:
        rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        squares = [jnp.square(leaf.reshape(leaf.shape[0], -1)) for leaf in jax.tree.leaves(rows)]
        factors = per_example.clip_factors(jnp.sqrt(sum(s.sum(axis=1) for s in squares)))

        def weighted(params: Any) -> jax.Array:
            return jnp.sum(factors * jax.vmap(loss, (None, 0))(params, batch))

        return jax.grad(weighted)(params)

    return clipped


def _clip_and_sum() -> Forms:
    """reference: the sum without clipping."""
    rows = (shape(*ROWS),)

    def plain(rows: jax.Array) -> jax.Array:
        factors = per_example.clip_factors(jnp.linalg.norm(rows, axis=1))
        return jnp.tensordot(factors, rows, 1)

    return {
        REFERENCE: lambda: Program(lambda rows: jnp.sum(rows, axis=0), rows),
        PLAIN: lambda: Program(plain, rows),
        OURS: lambda: Program(lambda rows: fljax_kernels.clip_and_sum(rows, 1.0)[0], rows),
    }


def _noise(impl: str | None = None) -> Forms:
    """On the FEMNIST CNN's sum. reference: adding a tree."""
    tree = jax.eval_shape(lambda: workloads.make("b").params)

    def plain(key: jax.Array, tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            x + jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)

    def ours(key: jax.Array, tree: Any) -> Any:
        return fljax_kernels.add_gaussian_noise(key, tree, 1.0)

    return {
        REFERENCE: lambda: Program(functools.partial(jax.tree.map, jnp.add), (tree, tree)),
        PLAIN: lambda: Program(plain, (_key(impl), tree)),
        OURS: lambda: Program(ours, (_key(impl), tree)),
    }


def _chacha20_words() -> Forms:
    """Random bits of one key, about as many as the FEMNIST CNN has numbers. reference: writing as
    many. plain: XLA's loop. ours: the Pallas kernel, which a key asks for.
    """
    params = jax.eval_shape(lambda: workloads.make("b").params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    size -= size % (16 * 32 * 128)  # whole steps of the kernel's grid

    def draw(impl: Any) -> Callable[[jax.Array], jax.Array]:
        return lambda data: jax.random.bits(jax.random.wrap_key_data(data, impl=impl), (size,))

    data = jax.ShapeDtypeStruct((8,), jnp.uint32)
    return {
        REFERENCE: lambda: Program(lambda data: jnp.zeros(size, jnp.uint32) + data[0], (data,)),
        PLAIN: lambda: Program(draw(chacha20.IMPL), (data,)),
        OURS: lambda: Program(draw(chacha20.PALLAS_IMPL), (data,)),
    }


def _correlated_noise() -> Forms:
    """In four bands, on the FEMNIST CNN's sum. reference: adding a tree. plain: the same matrix,
    with the last rounds' noise in order. Rounds of a run overwrite their state, and so do both.
    """
    tree = jax.eval_shape(lambda: workloads.make("b").params)
    strategy = correlated.Strategy("banded", BANDS, 100)
    state = jax.eval_shape(functools.partial(correlated.init, strategy), tree)

    def plain(key: jax.Array, tree: Any, kept: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))

        def one(key: jax.Array, leaf: jax.Array, past: jax.Array) -> tuple[jax.Array, jax.Array]:
            noise = jax.random.normal(key, leaf.shape) - jnp.tensordot(
                jnp.array(BANDS[1:]), past, 1
            )
            return leaf + noise, jnp.concatenate([noise[None], past[:-1]])

        return jax.tree.map(one, keys, tree, kept)

    def ours(key: jax.Array, tree: Any, state: Any) -> Any:
        return correlated.add_noise(strategy, key, tree, 1.0, state)

    return {
        REFERENCE: lambda: Program(functools.partial(jax.tree.map, jnp.add), (tree, tree)),
        PLAIN: lambda: Program(plain, (_key(), tree, state.buffers), donated=(2,)),
        OURS: lambda: Program(ours, (_key(), tree, state), donated=(2,)),
    }


def _integers(law: str, size: int = 1_690_046) -> Forms:
    """As many as the FEMNIST CNN has parameters. reference: as many words of random bits. plain:
    rounded normals. JAX's Poisson draws, of which Skellam's law is made, loop until all are
    accepted: how often is not in the program.
    """

    def plain(key: jax.Array) -> jax.Array:
        return jnp.round(STDDEV * jax.random.normal(key, (size,))).astype(jnp.int32)

    def ours(key: jax.Array) -> jax.Array:
        if law == "discrete_gaussian":
            return discrete.discrete_gaussian_noise(key, (size,), STDDEV)
        return discrete.skellam_noise(key, (size,), STDDEV**2)

    forms: Forms = {
        REFERENCE: lambda: Program(lambda key: jax.random.bits(key, (size,)), (_key(),)),
        OURS: lambda: Program(ours, (_key(),)),
    }
    if law == "discrete_gaussian":
        forms[PLAIN] = lambda: Program(plain, (_key(),))
    return forms


def _allocation() -> Forms:
    """Who of a million is in this round, of ten in a thousand. reference: a coin for each. plain: a
    permutation of the rounds for each, a million times a thousand numbers.
    """
    units, rounds, times = ALLOCATED
    capacity = fljax_kernels.poisson_capacity(units, times / rounds)

    def reference(key: jax.Array) -> jax.Array:
        return jnp.nonzero(jax.random.bernoulli(key, times / rounds, (units,)), size=capacity)[0]

    def plain(key: jax.Array, index: jax.Array) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            return jnp.any(jax.random.permutation(key, rounds)[:times] == index)

        return jnp.nonzero(jax.vmap(one)(jax.random.split(key, units)), size=capacity)[0]

    def ours(key: jax.Array, index: jax.Array) -> Any:
        return sampling.allocated_sample(key, index, units, rounds, times, capacity)

    index = shape(dtype=jnp.int32)
    return {
        REFERENCE: lambda: Program(reference, (_key(),)),
        PLAIN: lambda: Program(plain, (_key(), index)),
        OURS: lambda: Program(ours, (_key(), index)),
    }


def _pair_noise(complete: bool, num_clients: int = 100, size: int = 100_000) -> Forms:
    """reference: as many plain rows. plain: every pair's noise, then a sum for each client."""
    if complete:
        edges = graphs.complete(num_clients)
    else:
        edges = graphs.k_regular(num_clients, 20, np.random.default_rng(0))
    edges = np.asarray(edges)

    def reference(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (num_clients, size))

    def plain(key: jax.Array) -> jax.Array:
        drawn = jax.random.normal(key, (len(edges), size))
        total = jnp.zeros((num_clients, size)).at[edges[:, 0]].add(drawn)
        return total.at[edges[:, 1]].add(-drawn)

    def ours(key: jax.Array) -> Any:
        like = shape(size)
        return fljax_kernels.pair_noise(key, edges, num_clients, like, 1.0)

    return {
        REFERENCE: lambda: Program(reference, (_key(),)),
        PLAIN: lambda: Program(plain, (_key(),)),
        OURS: lambda: Program(ours, (_key(),)),
    }


def _water_filling(size: int = 256) -> Forms:
    """reference: the factorisation alone."""
    gram, projections = shape(size, size), shape(size)

    def ours(gram: jax.Array, projections: jax.Array) -> Any:
        return spectral.lifted_draw(spectral.spectrum(gram, 1.0), projections, 1.0)

    return {
        REFERENCE: lambda: Program(jnp.linalg.eigh, (gram,)),
        OURS: lambda: Program(ours, (gram, projections)),
    }


def _subject_averages() -> Forms:
    """Per-example gradients of an MLP, averaged by subject. reference: the mean gradient."""
    params, batch = jax.eval_shape(lambda: workloads.make("a")[3:])
    size = batch["y"].shape[0]
    loss = _loss("a")

    def ours(params: Any, batch: Any, ids: jax.Array, key: jax.Array) -> Any:
        from fljax.data.subjects import SUBJECT
        from fljax.local import subject

        query = subject.hierarchical_average(
            loss, item_sampling_prob=1.0, l2_clip_norm=1.0, batch_size=size
        )
        return query(params, {**batch, SUBJECT: ids}, jnp.arange(size), key).grad_sum

    def reference(params: Any, batch: Any) -> Any:
        return per_example.gradient("non_private", loss)(params, batch)

    return {
        REFERENCE: lambda: Program(reference, (params, batch)),
        OURS: lambda: Program(ours, (params, batch, shape(size, dtype=jnp.int32), _key())),
    }


def _round(scheme: dict[str, str]) -> Forms:
    """One round at the demo's size. reference: the scheme's own training without privacy."""

    def program(private: bool) -> Program:
        from fljax.simulation import config, feed, job

        settings = config.from_sections({"scheme": scheme})
        prepared = job.prepare(settings)
        which = slice(0, 1) if private else slice(1, 2)
        prepared = prepared._replace(algorithms=prepared.algorithms[which])
        if not prepared.algorithms:
            raise NotImplementedError(f"{scheme['scheme']} has no training without privacy")
        together = feed.round_fun(prepared.algorithms, prepared.facts.num_clients)
        capacity = prepared.usual_capacity()
        data = jax.eval_shape(lambda tree: tree, prepared.task.client_data)
        states = prepared.state_shapes()
        return Program(functools.partial(together, capacity=capacity), (states, data, _key()))

    return {REFERENCE: lambda: program(False), OURS: lambda: program(True)}


def _dealt(letter: str, num_devices: int) -> Forms:
    """DP-FedAvg with 100 clients a device. Everything grows but a device's share."""

    def program() -> Program:
        from fljax import data
        from fljax.schemes.central import dp_fedavg
        from fljax.server.rounds import Performance

        num_clients = CLIENTS_A_DEVICE * num_devices
        settings = dp_fedavg.Config(sampling_prob=1.0, noise_multiplier=1.0, num_local_epochs=1)
        params, batch = jax.eval_shape(lambda: workloads.make(letter)[3:])
        algorithm = dp_fedavg.make(
            settings,
            _loss(letter),
            num_units=num_clients,
            performance=Performance(chunk_size=1),
        )
        dealt = jax.sharding.NamedSharding(
            jax.sharding.AbstractMesh((num_devices,), (CLIENTS,)),
            jax.sharding.PartitionSpec(None, CLIENTS),
        )
        at = CLIENTS_A_DEVICE, num_devices, EXAMPLES[letter]

        def own(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*at, *leaf.shape[1:]), leaf.dtype, sharding=dealt)

        each = shape(num_clients, dtype=jnp.int32)
        cohort = data.DealtCohort(jax.tree.map(own, batch), each, each)
        state = jax.eval_shape(algorithm.init, params)
        return Program(algorithm.round, (state, cohort, _key()))

    return {OURS: program}


def _pod(rank: int, count: int) -> Forms:
    """A step of a decoder over all devices. reference: the gradient of the summed loss."""

    def of(form: str) -> Callable[[], Program]:
        def program() -> Program:
            fun, arguments, results = pod.program(form, rank, count)
            return Program(fun, arguments, pod.mesh(pod.PLANS[count]), results)

        return program

    return {form: of(form) for form in pod.FORMS}


# Name -> (devices -> forms). Everything runs on one device; rounds that deal clients, and steps of
# a model that is spread, on more.
PROGRAMS: dict[str, Callable[[int], Forms]] = {
    **{f"gradient_{k}": functools.partial(lambda k, _: _gradients(k), k) for k in workloads.MAKERS},
    "clip_and_sum": lambda _: _clip_and_sum(),
    "noise": lambda _: _noise(),
    "noise_chacha20": lambda _: _noise(chacha20.IMPL),
    "chacha20_words": lambda _: _chacha20_words(),
    "correlated_noise": lambda _: _correlated_noise(),
    "discrete_gaussian": lambda _: _integers("discrete_gaussian"),
    "skellam": lambda _: _integers("skellam"),
    "allocated_sample": lambda _: _allocation(),
    "pair_noise_complete": lambda _: _pair_noise(True),
    "pair_noise_20_out": lambda _: _pair_noise(False),
    "water_filling": lambda _: _water_filling(),
    "subject_averages": lambda _: _subject_averages(),
    **{name: functools.partial(lambda s, _: _round(s), of) for name, of in ROUNDS.items()},
    "round_dealt": functools.partial(_dealt, "a"),
    "round_dealt_femnist": functools.partial(_dealt, "b"),
    "pod_lora": functools.partial(_pod, pod.RANK),
    "pod_full": functools.partial(_pod, 0),
}
DEVICES = {"tpu": (1, 4, 256), "cuda": (1, 8)}


def devices(target: str, name: str) -> tuple[int, ...]:
    """How many a program is compiled for."""
    if name.startswith("pod_"):
        return (DEVICES[target][-1],)
    return DEVICES[target] if name.startswith("round_dealt") else (1,)
