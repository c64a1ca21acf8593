"""What papers report, measured here."""
