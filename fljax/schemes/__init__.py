"""One thin file per published scheme: Config, make, event."""
