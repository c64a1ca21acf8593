"""Every public kernel gives what a hand computes, with `jit` and without, of arrays on a device and
of NumPy's.
"""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax_kernels import spectral

each_way = chex.variants(with_jit=True, without_jit=True, with_device=True, without_device=True)
ROWS = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
SEED = 20261121


class Kernels(chex.TestCase):
    @each_way
    def test_a_clipped_sum(self):
        total, norms = self.variant(lambda rows: fljax_kernels.clip_and_sum(rows, 1.0))(ROWS)
        chex.assert_trees_all_close(norms, np.float32([5.0, 0.5]), rtol=1e-6)
        chex.assert_trees_all_close(total, np.float32([0.6 + 0.3, 0.8 + 0.4]), rtol=1e-6)

    @each_way
    def test_gradients_of_a_linear_loss_are_its_rows(self):
        def products(params, rows, weights):
            grads = fljax_kernels.per_example_grads(lambda w, x: jnp.dot(w, x))(params, rows)
            return grads.row_norms(), grads.rmatvec(weights)

        weights = np.array([2.0, -10.0], np.float32)
        norms, total = self.variant(products)(np.zeros(2, np.float32), ROWS, weights)
        chex.assert_trees_all_close(norms, np.float32([5.0, 0.5]), rtol=1e-6)
        chex.assert_trees_all_close(total, np.float32([6.0 - 3.0, 8.0 - 4.0]), rtol=1e-6)

    @each_way
    def test_no_noise_changes_nothing_and_noise_of_other_keys_is_other_noise(self):
        def draw(tree, stddev):
            keys = jax.random.split(jax.random.key(SEED), 2)
            alone = fljax_kernels.gaussian_noise(keys, tree, stddev)
            return fljax_kernels.add_gaussian_noise(jax.random.key(1), tree, stddev), alone

        tree = {"w": ROWS, "b": np.ones(3, np.float32)}
        same, none = self.variant(draw)(tree, np.float32(0.0))
        chex.assert_trees_all_equal(same, tree)
        chex.assert_trees_all_equal(none, jax.tree.map(lambda x: np.zeros((2, *x.shape)), tree))
        chex.assert_tree_shape_prefix(none, (2,))
        noisy, two = self.variant(draw)(tree, np.float32(1.0))
        chex.assert_trees_all_equal_shapes_and_dtypes(noisy, tree)
        assert not np.array_equal(two["w"][0], two["w"][1])

    @each_way
    def test_everybody_is_sampled_for_certain_and_nobody_twice(self):
        def draw(prob):
            sample = fljax_kernels.poisson_sample(jax.random.key(SEED), 8, 1.0, 8)
            return sample, fljax_kernels.fixed_size_sample(jax.random.key(2), 8, 8), prob

        sample, fixed, _ = self.variant(draw)(np.float32(1.0))
        assert not bool(sample.overflow)
        assert sorted(np.asarray(sample.indices)) == sorted(np.asarray(fixed)) == list(range(8))

    @each_way
    def test_noise_of_pairs_cancels(self):
        edges = np.array([[0, 1], [0, 2], [1, 2]])

        def draw(like):
            rows = fljax_kernels.pair_noise(
                jax.random.key(SEED), edges, 3, like, 2.0**16, form="ring"
            )
            keys = fljax_kernels.pair_keys(jax.random.key(SEED), edges)[:2]
            peers = np.array([1, 2])
            mine = fljax_kernels.client_pair_noise(keys, 0, peers, like, 2.0**16, form="ring")
            return rows, mine

        rows, mine = self.variant(draw)(np.zeros(5, np.float32))
        chex.assert_shape(rows, (3, 5))
        chex.assert_trees_all_equal(np.asarray(rows).sum(axis=0, dtype=np.uint32), np.zeros(5))
        chex.assert_trees_all_equal(np.asarray(rows)[0], np.asarray(mine))

    @each_way
    def test_a_convolution_in_a_loop(self):
        def twice(x, kernel):
            def body(_, x):
                return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME")

            return jax.lax.fori_loop(0, 2, body, x)

        # [1, 1] over zeros behind: neighbours are added, twice: the row (1, 2, 1) of Pascal.
        x = np.array([[[0.0, 0.0, 1.0, 0.0]]], np.float32)
        found = self.variant(fljax_kernels.loop_friendly(twice))(x, np.ones((1, 1, 2), np.float32))
        chex.assert_trees_all_close(found, np.float32([[[1.0, 2.0, 1.0, 0.0]]]), rtol=1e-6)

    @each_way
    def test_the_capacity_of_two_channels(self):
        values, noise = np.float32([3.0, 0.0]), np.float32(math.log(1.0))
        found = self.variant(spectral.capacity)(values, noise)
        chex.assert_trees_all_close(found, np.float32(0.5 * math.log(4.0)), rtol=1e-6)
