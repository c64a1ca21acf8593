"""The implicit per-example gradient matrix."""
