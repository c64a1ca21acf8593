"""The host loop: feeds data, checkpoints, reports."""
