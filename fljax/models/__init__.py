"""Flax models named in the papers, and the functional view of any flax module."""
