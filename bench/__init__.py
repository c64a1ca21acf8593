"""Measurements, one file per question. `python -m bench` runs them all quickly; see README.md."""
