"""Attacks on what schemes certify: audits, reconstruction, membership, and the measures of their success."""
