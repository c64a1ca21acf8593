"""A test's Flower app: rounds of any scheme, by `tests.interop._schemes`."""
