"""ChaCha20 as a generator: RFC 8439's vectors, where its words go, and what its draws look like."""

import functools
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fljax_kernels
from fljax import _validate
from fljax_kernels import chacha20, client_pair_noise, gaussian_noise, pair_noise
from fljax_kernels.chacha20 import api, cases, cipher, pallas, reference
from fljax_kernels.gaussian import reference as gaussian_reference
from fljax_kernels.pairwise import graphs, streamed


def words_of(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


def made(number: int) -> jax.Array:
    return chacha20.key(number.to_bytes(32, "little"))


def data_of(number: int) -> list[int]:
    return words_of(number.to_bytes(32, "little").hex()).tolist()


@pytest.mark.parametrize("vector", cases.VECTORS, ids=str)
def test_blocks_are_those_of_rfc_8439(vector):
    key, nonce = words_of(vector.key), words_of(vector.nonce).tolist()
    drawn = chacha20.block(key, vector.counter, nonce)
    assert np.asarray(drawn).astype("<u4").tobytes().hex() == vector.stream
    assert np.uint32(reference.block(key.tolist(), vector.counter, nonce)).tobytes().hex() == (
        vector.stream
    )


def test_a_long_stream_is_openssls():
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    key, nonce = secrets.token_bytes(32), secrets.token_bytes(12)
    whole = ciphers.algorithms.ChaCha20(key, (7).to_bytes(4, "little") + nonce)
    wanted = ciphers.Cipher(whole, None).encryptor().update(bytes(64 * 500))
    counter = jnp.arange(7, 507, dtype=jnp.uint32)
    drawn = chacha20.block(words_of(key.hex()), counter, words_of(nonce.hex()).tolist())
    assert np.asarray(drawn).T.astype("<u4").tobytes() == wanted


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_number_d_is_word_d_div_b_of_block_d_mod_b(shape):
    size = int(np.prod(shape))
    count = -(-size // 16)
    blocks = [reference.block(data_of(5), i, (1, 32, 0)) for i in range(count)]
    wanted = np.uint32(blocks).reshape(count, 16).T.reshape(-1)[:size].reshape(shape)
    np.testing.assert_array_equal(jax.random.bits(made(5), shape, jnp.uint32), wanted)


def test_splits_folds_seeds_and_draws_have_nonces_of_their_own():
    words = data_of(5)
    split = jax.random.key_data(jax.random.split(made(5), (2, 2)))
    folded = jax.random.key_data(jax.random.fold_in(made(5), 2**32 - 3))
    seeded = jax.random.key_data(jax.random.key(77, impl=chacha20.IMPL))
    np.testing.assert_array_equal(split[1, 0], reference.block(words, 2, (2, 0, 0))[:8])
    np.testing.assert_array_equal(folded, reference.block(words, 2**32 - 3, (3, 0, 0))[:8])
    np.testing.assert_array_equal(seeded, reference.block([77, *[0] * 7], 0, (4, 0, 0))[:8])
    for width in (8, 16):
        drawn = jax.random.bits(made(5), (3,), jnp.dtype(f"uint{width}"))
        whole = reference.block(words, 0, (1, width, 0))[:3]
        np.testing.assert_array_equal(drawn, np.uint32(whole) % 2**width)


def test_numbers_of_64_bits_are_two_words():
    with jax.enable_x64(True):
        drawn = np.asarray(jax.random.bits(made(5), (3,), jnp.uint64))
        seeded = jax.random.key_data(jax.random.key(2**40 + 7, impl=chacha20.IMPL))
    words = np.uint64(reference.block(data_of(5), 0, (1, 64, 0)))
    np.testing.assert_array_equal(drawn, words[:3] << np.uint64(32) | words[3:6])
    np.testing.assert_array_equal(seeded, reference.block([7, 2**8, *[0] * 6], 0, (4, 0, 0))[:8])


def test_a_key_draws_the_same_bits_alone_under_vmap_and_under_jit():
    draw = lambda key: jax.random.normal(key, (33,))
    together = jax.vmap(draw)(jax.random.split(made(9), 4))
    for i in range(4):
        np.testing.assert_array_equal(together[i], jax.jit(draw)(jax.random.split(made(9), 4)[i]))


def test_bits_do_not_depend_on_the_mesh():
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    size = 64 * jax.device_count()
    draw = lambda key: jax.random.bits(key, (size,), jnp.uint32)
    here = np.asarray(draw(made(9)))
    np.testing.assert_array_equal(jax.jit(draw, out_shardings=spread)(made(9)), here)


def test_bits_are_the_same_inside_shard_map():
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=auto)
    keys = lambda: jax.random.split(made(9), jax.device_count())
    draw = lambda keys: jax.vmap(lambda key: jax.random.bits(key, (1030,)))(keys)
    part = jax.sharding.PartitionSpec("d")
    spread = jax.shard_map(draw, mesh=mesh, in_specs=part, out_specs=part)
    np.testing.assert_array_equal(jax.jit(spread)(keys()), draw(keys()))


def test_many_blocks_are_one_operation_on_a_cpu_and_few_or_elsewhere_a_loop():
    """Of which XLA keeps one: taken apart, it would compute each word with all the others anew."""

    @functools.partial(jax.jit, static_argnums=1)
    def draw(data, size):
        return jax.random.bits(jax.random.wrap_key_data(data, impl=chacha20.IMPL), size)

    def lowered(size, on="cpu"):
        return draw.trace(np.zeros(8, np.uint32), size).lower(lowering_platforms=(on,))

    assert lowered((16 * cipher._FEW,)).compile().as_text().count(" reduce-window(") == 1
    # Filled up to whole vectors: LLVM makes none of 65 blocks.
    assert "(tensor<80xui32>, " in lowered((16 * 64 + 1,)).as_text().split("reduce_window", 1)[1]
    for few in (lowered((3,)), lowered((2000,), on="cuda"), lowered((2000,), on="tpu")):
        assert "reduce_window" not in few.as_text() and "while" in few.as_text()


LIKE = {"a": jnp.zeros((7, 143)), "b": jnp.zeros((3, 2, 5)), "c": jnp.zeros(()), "d": jnp.zeros(0)}


def test_noise_of_a_tree_is_that_of_its_leaves_one_by_one():
    noises = (gaussian_noise, gaussian_reference.gaussian_noise)
    ours, plain = (
        jax.jit(lambda keys, noise=noise: noise(keys, LIKE, 1.5))(jax.random.split(made(3), 2))
        for noise in noises
    )
    jax.tree.map(np.testing.assert_array_equal, ours, plain)
    empty = gaussian_noise(jax.random.split(made(3), 2), {"d": jnp.zeros(0)}, 1.5)
    assert empty["d"].shape == (2, 0)


@pytest.mark.slow(reason="compiles longer rows", but=["5"])
@pytest.mark.parametrize("size", [5, streamed.BLOCK + 3])
def test_clients_noise_is_their_row_of_the_cohorts_and_cancels(size):
    edges = graphs.complete(3)
    keys = lambda: fljax_kernels.pair_keys(made(4), edges)
    rows = pair_noise(made(4), edges, 3, jnp.zeros(size), 2.0)
    alone = client_pair_noise(keys()[jnp.array([0, 2])], 1, [0, 2], jnp.zeros(size), 2.0)
    np.testing.assert_array_equal(rows[1], alone)
    assert np.abs(np.asarray(rows, np.float64).sum(0)).max() < 1e-5  # rounding of sums of 2 floats
    ring = pair_noise(made(4), edges, 3, jnp.zeros(size), 1e5, form="ring")
    np.testing.assert_array_equal(ring.sum(0, dtype=jnp.uint32), 0)
    # Rows differ by independent normals: no block of an edge repeats another one.
    assert np.unique(rows[0]).size > 0.999 * size
    assert scipy.stats.kstest(np.asarray(rows[0]) / (2 * np.sqrt(2)), "norm").pvalue > 1e-4


def test_the_joint_law_takes_such_keys():
    rows = fljax_kernels.joint_pair_noise(made(4), 4, jnp.zeros(2000), 1.0)
    assert np.abs(np.asarray(rows, np.float64).sum(0)).max() < 1e-5
    assert scipy.stats.kstest(np.asarray(rows[2]) / np.sqrt(3), "norm").pvalue > 1e-4


def p_values_of(bits: np.ndarray) -> dict[str, float]:
    """p-values of uint32 `[n]`: bytes, pairs of bits, runs, correlation, spectrum, normals."""
    octets = np.ascontiguousarray(bits).view(np.uint8)
    ones = np.unpackbits(octets).astype(np.int64)
    n = ones.size
    counts = np.bincount(octets, minlength=256)
    triples = np.bincount(octets[:-1:2].astype(int) // 32 * 8 + octets[1::2] // 32, minlength=64)
    total = ones.sum()
    runs = 1 + int((ones[1:] != ones[:-1]).sum())
    centred = bits / 2**32 - 0.5
    lag = float(np.dot(centred[1:], centred[:-1]) * 12 / np.sqrt(len(bits) - 1))
    power = np.abs(np.fft.rfft(centred)[1:-1]) ** 2 * 12 / len(bits)  # exponential of mean 1
    by_bit = (bits[:, None] >> np.arange(32, dtype=np.uint32) & 1).sum(0)
    return {
        "bytes": scipy.stats.chisquare(counts).pvalue,
        "pairs": scipy.stats.chisquare(triples).pvalue,
        "ones": 2 * scipy.stats.norm.sf(abs(2 * total - n) / np.sqrt(n)),
        "runs": 2 * scipy.stats.norm.sf(abs(2 * runs - n) / np.sqrt(n)),
        "lag": 2 * scipy.stats.norm.sf(abs(lag)),
        "spectrum": scipy.stats.kstest(power, "expon").pvalue,
        "each bit": scipy.stats.chi2.sf(((2 * by_bit - len(bits)) ** 2 / len(bits)).sum(), 32),
    }


def streams() -> dict[str, np.ndarray]:
    many = np.arange(2**13, dtype=np.uint32)
    first = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(made(1), i), (16,)))(many)
    seeds = jax.vmap(lambda i: jax.random.bits(jax.random.key(i, impl=chacha20.IMPL), (16,)))(many)
    split = jax.random.key_data(jax.random.split(made(1), 2**13))
    return {
        "one key": np.asarray(jax.random.bits(made(1), (2**17,), jnp.uint32)),
        "neighbouring folds": np.asarray(first).reshape(-1),
        "neighbouring seeds": np.asarray(seeds).reshape(-1),
        "split keys": np.asarray(split).reshape(-1),
        "differences of folds": np.asarray(first[1:] ^ first[:-1]).reshape(-1),
    }


def test_streams_pass_the_tests_of_randomness():
    for name, bits in streams().items():
        p_values = p_values_of(bits)
        # 35 tests at fixed keys; by chance one in 30,000 sets would have one below 1e-6.
        assert min(p_values.values()) > 1e-6, (name, p_values)


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_tests_of_randomness_find_a_cipher_of_too_few_rounds(rounds):
    state = [*reference.CONSTANTS, *data_of(1)]
    given = [jnp.full(2**13, word, jnp.uint32) for word in np.uint32(state)]
    given += [jnp.arange(2**13, dtype=jnp.uint32), *[jnp.zeros(2**13, jnp.uint32)] * 3]
    words = functools.reduce(lambda at, _: cipher.double_round(0, at), range(rounds), tuple(given))
    assert min(p_values_of(np.asarray(jnp.concatenate(words))).values()) < 1e-12


@pytest.mark.parametrize("secret", [b"", bytes(31), "00" * 32, 7])
def test_a_key_takes_32_bytes(secret):
    with pytest.raises(ValueError, match="Expected 32 secret bytes, got"):
        chacha20.key(secret)


def test_the_block_function_wants_eight_words_and_three():
    with pytest.raises(ValueError, match=r"shape \(8,\) and 3 words"):
        chacha20.block(jnp.zeros(4, jnp.uint32), 0)


@pytest.mark.slow(reason="interprets the kernel of one more platform", but=["cuda"])
@pytest.mark.parametrize("platform", pallas.ROWS)
def test_the_kernels_words_are_those_of_the_cipher(platform):
    """By Pallas's interpreter: more than one step of the grid, and not a whole number of them."""
    count = pallas.ROWS[platform] * pallas.LANES + 77
    key, nonce = np.uint32(data_of(2**255 + 5)), (1, 32, 0)
    drawn = pallas.words(key, count, nonce, platform, interpret=True)
    for at in (0, 1, pallas.LANES, count - 78, count - 1):
        np.testing.assert_array_equal(drawn[:, at], reference.block(key.tolist(), at, nonce))
    every = cipher.blocks(key, jnp.arange(count, dtype=jnp.uint32), [np.uint32(w) for w in nonce])
    np.testing.assert_array_equal(drawn, jnp.stack(every))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # by JAX 0.12
@pytest.mark.parametrize("platform", pallas.ROWS)
def test_a_large_draw_of_a_key_that_asks_is_one_kernel_on_an_accelerator(platform, monkeypatch):
    """Lowered for it; many keys together, small draws and CPUs keep the loop."""
    kernel = {"tpu": "tpu_custom_call", "cuda": "triton"}[platform]

    def lowered(fun, *keys, on=platform):
        # Triton asks which GPU it is, and there may be none.
        gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=gpu if on == "cuda" else None)
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.jit(fun).trace(*keys).lower(lowering_platforms=(on,)).as_text()

    data = jax.ShapeDtypeStruct((8,), jnp.uint32)
    draw = lambda data, n=16 * api._FEWEST: jax.random.bits(
        jax.random.wrap_key_data(data, impl=chacha20.PALLAS_IMPL), (n,)
    )
    assert kernel in lowered(draw, data)
    noise = lambda data: fljax_kernels.add_gaussian_noise(
        jax.random.wrap_key_data(data, impl=chacha20.PALLAS_IMPL), jnp.zeros(16 * api._FEWEST), 1.0
    )
    assert kernel in lowered(noise, data) and kernel not in lowered(noise, data, on="cpu")
    assert kernel not in lowered(draw, data, on="cpu")
    assert kernel not in lowered(lambda data: draw(data, 1000), data)
    assert kernel not in lowered(jax.vmap(draw), jax.ShapeDtypeStruct((3, 8), jnp.uint32))


@pytest.mark.slow(reason="interprets a kernel")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_a_key_that_asks_for_the_kernel_has_the_same_bits(monkeypatch):
    monkeypatch.setattr(api, "_FEWEST", 4)
    data = jax.random.key_data(made(5))
    asks = lambda: jax.random.wrap_key_data(data, impl=chacha20.PALLAS_IMPL)
    for draw in (
        lambda key: jax.random.normal(key, (100,)),
        lambda key: jax.random.key_data(jax.random.split(key, 3)),
        lambda key: jax.vmap(lambda k: jax.random.bits(k, (100,)))(jax.random.split(key, 3)),
        lambda key: gaussian_noise(jax.random.split(key, 2), LIKE, 1.5)["a"],
    ):
        np.testing.assert_array_equal(jax.jit(draw)(asks()), jax.jit(draw)(made(5)))


def test_keys_of_the_kernel_are_keys_of_chacha20_wherever_one_is_asked_for():
    _validate.stream_key(key=jax.random.key(0, impl=chacha20.PALLAS_IMPL))
    assert not api.is_kind(jax.random.key(0, impl="threefry2x32"))
