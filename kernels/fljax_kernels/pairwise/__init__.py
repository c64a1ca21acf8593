"""Noise that pairs of clients share with opposite signs, over any graph."""

from fljax_kernels.pairwise.api import client_pair_noise, joint_pair_noise, pair_keys, pair_noise

__all__ = ["client_pair_noise", "joint_pair_noise", "pair_keys", "pair_noise"]
