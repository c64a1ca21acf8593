"""How long one gradient or one client's noise takes, beside other ways to it."""
