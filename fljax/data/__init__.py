"""Where examples come from: builtin data, partitions into clients, cohorts."""
