"""The programs that `bench.aot` compiles lower for GPUs and TPUs, without a value too large."""

import json
import math
import re

import jax
import jax.numpy as jnp
import pytest

from bench import _harness
from bench.aot import __main__ as aot
from bench.aot import programs, targets

SHAPE = re.compile(r"tensor<([0-9x]+)x(?:f32|bf16|f16|i32|ui32|i1)>")


def lowered(name, *platforms):
    """(module for CUDA and TPUs, or the platforms, arguments) of what the library does."""
    program = programs.PROGRAMS[name](1)[programs.OURS]()
    platforms = platforms or ("cuda", "tpu")
    exported = jax.export.export(jax.jit(program.fun), platforms=platforms)
    return exported(*program.arguments).mlir_module(), program.arguments


def largest(module):
    """Numbers in the largest array that a module names."""
    return max(math.prod(map(int, shape.split("x"))) for shape in SHAPE.findall(module))


@pytest.mark.slow(reason="lowers a large model", but=["gradient_a", "gradient_d"])
@pytest.mark.parametrize("name", [n for n in programs.PROGRAMS if n.startswith("gradient_")])
def test_no_private_gradient_has_a_third_of_the_numbers_of_the_matrix(name):
    module, (params, batch) = lowered(name)
    matrix = batch["y"].shape[0] * sum(leaf.size for leaf in jax.tree.leaves(params))
    assert largest(module) < matrix / 3


def test_clipping_rows_makes_nothing_larger_than_the_rows():
    module, (rows,) = lowered("clip_and_sum")
    assert largest(module) == rows.size


def test_noise_makes_nothing_larger_than_a_leaf():
    module, (_, tree) = lowered("noise")
    # JAX counts a stream in two words of 32 bits, side by side until they are one draw.
    assert largest(module) <= 2 * max(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ["noise_chacha20", "correlated_noise"])
def test_other_noise_makes_nothing_larger_than_a_leaf_and_its_buffers(name):
    module, (_, tree, *state) = lowered(name)
    held = [leaf.size for leaf in jax.tree.leaves((tree, state))]
    assert largest(module) <= max(2 * max(leaf.size for leaf in jax.tree.leaves(tree)), *held)


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam"])
def test_integers_make_nothing_larger_than_their_words_of_random_bits(name):
    program = programs.PROGRAMS[name](1)[programs.OURS]()
    (size,) = jax.eval_shape(program.fun, *program.arguments).shape
    module, _ = lowered(name)
    assert largest(module) <= size


def test_an_allocated_sample_holds_its_units_rounds_and_no_unit_by_all_rounds():
    module, _ = lowered("allocated_sample")
    units, _, times = programs.ALLOCATED
    assert largest(module) <= units * times


@pytest.mark.parametrize("name", ["pair_noise_complete", "pair_noise_20_out"])
def test_pair_noise_makes_nothing_larger_than_its_rows(name):
    module, _ = lowered(name)
    assert largest(module) == 100 * 100_000


def test_water_filling_makes_nothing_larger_than_its_gram_matrix():
    module, (gram, _) = lowered("water_filling")
    assert largest(module) == gram.size


def test_subject_averages_have_no_third_of_the_numbers_of_the_matrix():
    module, (params, batch, *_) = lowered("subject_averages")
    matrix = batch["y"].shape[0] * sum(leaf.size for leaf in jax.tree.leaves(params))
    assert largest(module) < matrix / 3


@pytest.mark.slow(reason="the same kernels run on a CPU in all other tests")
@pytest.mark.parametrize("name", [n for n in programs.PROGRAMS if not n.startswith("round_")])
def test_programs_lower_for_a_cpu_too(name):
    lowered(name, "cpu")


@pytest.mark.parametrize("name", ["round_dealt", "round_dealt_femnist"])
def test_a_round_of_dealt_clients_makes_nothing_larger_than_their_examples(name):
    module, (_, cohort, _) = lowered(name)
    assert largest(module) == max(leaf.size for leaf in jax.tree.leaves(cohort.examples))


def test_bytes_of_a_run_have_those_of_each_trip_of_a_loop():
    """Two loops, one in the other: 10 times 7 trips, each reads and writes 1,000 numbers."""

    def inner(x):
        return jax.lax.fori_loop(0, 7, lambda i, x: jnp.sin(x), x)

    def outer(x):
        return jax.lax.fori_loop(0, 10, lambda i, x: inner(x) + 1.0, x)

    text = jax.jit(outer).lower(jnp.zeros(1000)).compile().as_text()
    found = targets.of_further_trips(text)
    once = 2 * 4000
    expected = (70 - 1) * once + (10 - 1) * once
    assert expected <= found <= 1.1 * expected  # counters, too
    assert targets.of_further_trips(jax.jit(jnp.sin).lower(1.0).compile().as_text()) == 0


@pytest.mark.slow(reason="prepares a run of each scheme")
@pytest.mark.parametrize("name", programs.ROUNDS)
def test_rounds_of_schemes_lower(name):
    lowered(name)


def test_a_target_without_its_environment_is_skipped_with_a_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(aot, "ENVIRONMENTS", tmp_path)
    assert aot.main(["--programs", "noise"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said] == ["tpu: skipped", "cuda: skipped"]


def test_committed_rows_are_of_programs_and_forms_that_exist():
    for path in _harness.RESULTS.glob("aot-*.json"):
        for row in json.loads(path.read_text())["rows"]:
            forms = programs.PROGRAMS[row["program"]](row["devices"])
            assert row["form"] in forms or row["form"] == programs.REFERENCE
