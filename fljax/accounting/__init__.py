"""Turns privacy events into epsilon. Pure functions in float64, thin host objects on top."""
