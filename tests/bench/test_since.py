from bench import since


def test_a_ratio_is_the_median_of_pairs_so_that_a_busy_minute_does_not_decide_it():
    quiet, busy = {"build": 2.0, "run": 10.0}, {"build": 8.0, "run": 40.0}
    slower = {"build": 2.2, "run": 9.0}
    pairs = [(quiet, slower), (busy, {k: 4 * v for k, v in slower.items()}), (busy, quiet)]
    build, run = since.rows_of("a", pairs)
    assert (build["figure"], build["ratio"], build["pairs"]) == ("build_s", 1.1, 3)
    assert (run["figure"], run["ratio"], run["least"], run["most"]) == ("run_ms", 0.9, 0.25, 0.9)
