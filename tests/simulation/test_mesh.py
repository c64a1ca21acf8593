"""A round over many devices: the same as over one, whatever the scheme; and programs for devices
that are not here.
"""

import functools
import inspect

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import data, models, schemes
from fljax.server import aggregate
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh
from fljax_kernels import spectral

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

C, N, D = 13, 6, 5


def loss(params, example):
    return -jax.nn.log_softmax(example["x"] @ params["w"])[example["y"]]


def a_cohort(capacity=C):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(C * N, D)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 3, C * N), "subject": np.arange(C * N)}
    examples = {k: jnp.asarray(v if k == "x" else v.astype(np.int32)) for k, v in examples.items()}
    everyone = data.ClientData(examples, jnp.arange(C * N).reshape(C, N))
    return data.cohort(everyone, jnp.asarray([*range(C), *[-1] * (capacity - C)]))


def algorithm(name, **options):
    """`options`: of a `Performance`. With a chunk_size, batches are of 4 of a client's 6 examples;
    the last is half full.
    """
    scheme = schemes.get(name)
    fields = scheme.Config.__dataclass_fields__
    sizes = {field: C for field in ("num_parties",) if field in fields}
    sizes |= {"local_batch_size": 4} if "chunk_size" in options else {}
    config = scheme.Config(**{"noise_multiplier": 1.0, **sizes})
    return scheme.make(config, loss, num_units=C, performance=Performance(**options))


def two_rounds(name, capacity=C, **options):
    step = algorithm(name, **options)
    state, infos, cohort = step.init({"w": jnp.zeros((D, 3))}), [], a_cohort(capacity)
    run = jax.jit(step.round)
    for _ in range(2):
        state, info = run(state, cohort, jax.random.key(0))
        infos.append(info)
    return jax.tree.map(np.asarray, (state, infos))


@functools.cache
def alone(name, **options):
    """`two_rounds` on one device, without groups."""
    return two_rounds(name, **options)


@pytest.mark.release(reason="one more scheme", ids=["dp_fedsgd", "dp_fedavg", "sgd_dp"])
@pytest.mark.slow(reason="compiles rounds for 1 and 8 devices")
@optimized
@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedsgd", "higradavg", "lightdp", "sgd_dp"])
def test_eight_devices_give_the_round_of_one(name):
    """Sums of 13 updates of norm 0.5 at most, rounded in another order: within 13 * 2**-24 of the
    sum, and noise, which is added once, is the same bits: no coordinate differs by more.
    """
    one = alone(name)
    with jax.set_mesh(mesh.client_mesh(8)):
        assert aggregate.client_devices() == 8
        eight = two_rounds(name)
    assert aggregate.client_devices() == 1
    (state, infos), (other, other_infos) = one, eight
    scale = max(np.abs(state.params["w"]).max(), 1.0)
    np.testing.assert_allclose(
        other.params["w"], state.params["w"], rtol=0, atol=2 * 13 * 2.0**-24 * scale
    )
    assert np.abs(state.params["w"]).max() > 1e-3
    for a, b in zip(infos, other_infos, strict=True):
        assert a.cohort_size == b.cohort_size > 0
        np.testing.assert_allclose(a.clipped_fraction, b.clipped_fraction, atol=1e-6)


@optimized
@pytest.mark.slow(reason="compiles rounds for 1, 2 and 8 devices")
def test_places_without_a_client_change_nothing_and_are_dealt_evenly():
    """24 places for 13 clients over 8 devices: present ones stand first, so no device has more than
    two of them.
    """
    with jax.set_mesh(mesh.client_mesh(8)):
        full, _ = two_rounds("dp_fedavg", capacity=24)
    plain, _ = alone("dp_fedavg")
    np.testing.assert_allclose(full.params["w"], plain.params["w"], rtol=0, atol=1e-6)

    def chunk(ids, present):
        count = jnp.sum(present)
        return jnp.max(jnp.where(present, ids, -1)), jax.lax.pmax(count, aggregate.CLIENTS)

    with jax.set_mesh(mesh.client_mesh(8)):
        most = jax.jit(
            lambda ids: aggregate.sum_in_chunks(
                lambda i, p: chunk(i, p)[1], ids, ids >= 0, chunk_size=3
            )
        )(jnp.asarray([*range(13), *[-1] * 11]))
    assert int(most) == 8 * 2  # each of 8 devices says that none has more than 2


@functools.cache
def a_round():
    return algorithm("dp_fedavg")


@pytest.mark.slow(reason="compiles a round under pmap")
@optimized
def test_a_round_runs_under_pmap_over_runs():
    step, cohort = a_round(), a_cohort()
    keys = jax.random.split(jax.random.key(3), 8)
    states = jax.vmap(lambda _: step.init({"w": jnp.zeros((D, 3))}))(jnp.arange(8))
    pmapped, _ = jax.pmap(step.round, in_axes=(0, None, 0))(states, cohort, keys)
    alone, _ = jax.jit(step.round)(
        step.init({"w": jnp.zeros((D, 3))}), cohort, jax.random.split(jax.random.key(3), 8)[5]
    )
    np.testing.assert_allclose(pmapped.params["w"][5], alone.params["w"], rtol=0, atol=1e-6)


def programs():
    """The round and every kernel, each with arguments."""
    step, cohort = a_round(), a_cohort()
    rows, batch = jnp.ones((6, D)), {"x": jnp.ones((6, D)), "y": jnp.zeros(6, jnp.int32)}
    params = {"w": jnp.zeros((D, 3))}
    key = jax.random.key(0)

    def gram(params, batch):
        matrix = fljax_kernels.per_example_grads(loss)(params, batch)
        return matrix.row_norms(), matrix.gram(), matrix.rmatvec(jnp.ones(6))

    return {
        "round": (lambda key: step.round(step.init(params), cohort, key), (key,)),
        "per_example_grads": (gram, (params, batch)),
        "clip_and_sum": (lambda r: fljax_kernels.clip_and_sum(r, 0.5), (rows,)),
        "gaussian_noise": (
            lambda k: fljax_kernels.gaussian_noise(
                jax.random.split(k, 3), jnp.zeros((40, 50)), 1.0
            ),
            (key,),
        ),
        "pair_noise": (
            lambda k: fljax_kernels.pair_noise(
                k, jnp.asarray([[0, 1], [1, 2]]), 3, jnp.zeros(4), 1.0
            ),
            (key,),
        ),
        "poisson_sample": (lambda k: fljax_kernels.poisson_sample(k, 50, 0.2, 20), (key,)),
        "spectrum": (lambda r: spectral.spectrum(r @ r.T, 1.0), (rows,)),
    }


PROGRAMS = ("clip_and_sum", "gaussian_noise", "pair_noise", "per_example_grads", "poisson_sample")
PROGRAMS += ("round", "spectrum")


@pytest.mark.slow(reason="exports a whole round", ids=["round"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_exported_for_accelerators_from_a_machine_without_one(name):
    made = programs()
    assert set(made) == set(PROGRAMS)
    fun, arguments = made[name]
    exported = jax.export.export(jax.jit(fun), platforms=("cpu", "cuda", "tpu"))(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}
    expected = jax.jit(fun)(*jax.tree.map(jnp.copy, programs()[name][1]))
    # One program for three platforms is lowered without what only a CPU does: equal up to rounding.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-5, atol=1e-5
        ),
        exported.call(*arguments),
        expected,
    )


def test_the_number_of_devices_is_checked():
    assert mesh.client_mesh().size == 1  # a CPU
    for bad in (0, -1, 9, True, 2.5):
        with pytest.raises(ValueError, match="devices"):
            mesh.client_mesh(bad)


@pytest.mark.release(reason="one more scheme", but=["higradavg"])
@pytest.mark.slow(reason="compiles rounds for 1, 3 and 8 devices")
@optimized
@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedsgd", "higradavg", "lightdp"])
def test_groups_give_the_same_bits_on_any_number_of_devices(name):
    """The sums of 8 groups, added up in one order, whoever computed them; devices that do not fit
    compute copies.
    """
    found = []
    options = (
        {"chunk_size": 1} if name == "dp_fedavg" else {}
    )  # clients alone: some of their batches are half size
    for devices in (1, 3, 8):
        with mesh.over(mesh.client_mesh(devices, groups=8)):
            state, infos = two_rounds(name, groups=8, **options)
        found.append([leaf.tobytes() for leaf in jax.tree.leaves((state, infos))])
    assert all(bits == found[0] for bits in found)
    plain, _ = alone(name, **options)
    scale = np.abs(plain.params["w"]).max()
    np.testing.assert_allclose(state.params["w"], plain.params["w"], rtol=0, atol=2e-6 * scale)


def test_groups_must_fit_the_devices_of_the_mesh():
    with (
        jax.set_mesh(mesh.client_mesh(8)),
        pytest.raises(ValueError, match="multiple of the 8 devices"),
    ):
        two_rounds("dp_fedavg", groups=4)


@optimized
def test_the_order_of_sums_is_an_argument_and_nothing_around_a_call_changes_it():
    """Three numbers whose float32 sum depends on the order: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1
    is 1.
    """
    rows, present = jnp.asarray([1e8, 1.0, -1e8], jnp.float32), jnp.ones(3, bool)

    def total(groups):
        def add(rows, present):
            return aggregate.sum_in_chunks(
                lambda r, p: jnp.sum(jnp.where(p, r, 0.0)),
                rows,
                present,
                chunk_size=1,
                groups=groups,
            )

        return jax.jit(add)

    plain, grouped = total(None), total(2)  # groups: places 0 and 2, place 1
    for _ in range(2):
        assert float(plain(rows, present)) == 0.0
        assert float(grouped(rows, present)) == 1.0


@pytest.mark.parametrize("name", schemes.NAMES)
def test_every_scheme_takes_what_only_speed_depends_on_as_one_argument(name):
    scheme = schemes.get(name)
    parameter = inspect.signature(scheme.make).parameters["performance"]
    assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default == Performance()
    free = name == "fedavg" or "nats" in scheme.Config.__dataclass_fields__
    inputs = {"channel": None} if "channel" in inspect.signature(scheme.make).parameters else {}
    config = scheme.Config(
        noise_multiplier=0.0 if free else 1.0, **({"nats": float("inf")} if inputs else {})
    )
    network = models.squared_error(lambda params, x: x @ params["w"])
    num_units = getattr(config, "parties", C)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=rf"Expected groups.*got groups={bad}"):
            scheme.make(
                config, network, num_units=num_units, performance=Performance(groups=bad), **inputs
            )


@pytest.mark.slow(reason="compiles rounds for two meshes")
@optimized
def test_a_model_spread_over_devices_trains_as_one_that_is_not():
    """Each parameter is on two devices by halves, and the round is the same up to the order of
    sums.
    """
    over = mesh.client_mesh(8, model_devices=2)
    step = algorithm("dp_fedavg")
    states = step.init({"w": jnp.zeros((D, 3)), "v": jnp.zeros((4, 3))})
    spread = mesh.spread(over, states)
    assert spread.params["v"].addressable_shards[0].data.shape == (2, 3)
    assert spread.params["w"].addressable_shards[0].data.shape == (D, 3)  # neither 5 nor 3 is even
    with jax.set_mesh(over):
        assert aggregate.client_devices() == 4
        run = mesh.jit(over, step.round, states, others=1)
        for _ in range(2):
            spread, _ = run(spread, a_cohort(), jax.random.key(0))
    assert spread.params["v"].addressable_shards[0].data.shape == (2, 3)
    whole, run = states, jax.jit(step.round)
    for _ in range(2):
        whole, _ = run(whole, a_cohort(), jax.random.key(0))
    for a, b in zip(jax.tree.leaves(spread.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-6)
    assert np.abs(np.asarray(whole.params["w"])).max() > 1e-3
    with pytest.raises(ValueError, match="model_devices to divide devices=8"):
        mesh.client_mesh(8, model_devices=3)


def of_neighbours(params, example):
    """A loss whose numbers travel between the devices of a model, in each step of a client."""
    hidden = jnp.tanh(jnp.roll(example["x"] @ params["w"], 1) @ params["u"])
    return -jax.nn.log_softmax(hidden @ params["v"])[example["y"]]


@pytest.mark.slow(reason="compiles rounds for two meshes")
@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedsgd", "higradavg"])
def test_models_are_shared_by_devices_whose_clients_are_of_other_lengths(name):
    """Two models over four devices each; of five clients some have more steps, and one model has
    fewer chunks: none, of `dp_fedsgd`.
    """
    rng, k = np.random.default_rng(0), jax.random.split(jax.random.key(3), 3)
    params = {"w": (D, 8), "u": (8, 8), "v": (8, 4)}
    params = {n: jax.random.normal(k[i], s) for i, (n, s) in enumerate(params.items())}
    x = rng.normal(size=(30, D)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 4, 30).astype(np.int32)}
    examples["subject"] = np.arange(30, dtype=np.int32)
    rows = np.arange(30, dtype=np.int32).reshape(5, 6)
    rows[[0, 2, 3], 2:] = -1
    clients = data.ClientData(jax.tree.map(jnp.asarray, examples), jnp.asarray(rows))
    scheme = schemes.get(name)
    fields = scheme.Config.__dataclass_fields__
    sizes = {n: v for n, v in {"num_parties": 5, "local_batch_size": 2}.items() if n in fields}
    step = scheme.make(
        scheme.Config(noise_multiplier=1.0, **sizes),
        of_neighbours,
        num_units=5,
        performance=Performance(groups=2, chunk_size=1),
    )
    ends = []
    for over in (mesh.client_mesh(8, groups=2, model_devices=4), mesh.client_mesh(1, groups=2)):
        state = step.init(params)
        run = mesh.jit(over, step.round, state, others=1)
        cohort = mesh.everywhere(over, data.cohort(clients, jnp.arange(5)))
        state = mesh.spread(over, state)
        with mesh.over(over):
            for _ in range(2):
                state, _ = jax.block_until_ready(run(state, cohort, jax.random.key(0)))
        ends.append(jax.tree.map(np.asarray, state.params))
    for shared, whole in zip(*map(jax.tree.leaves, ends), strict=True):
        # Rounding grows over two rounds of steps; clients that count twice move dp_fedsgd by 0.75.
        np.testing.assert_allclose(shared, whole, rtol=0, atol=1e-4)
    assert np.abs(ends[1]["u"] - np.asarray(params["u"])).max() > 0.01


def test_on_a_mesh_without_an_axis_for_clients_nobody_is_dealt():
    with jax.set_mesh(jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("data",))):
        assert aggregate.client_devices() == 1
