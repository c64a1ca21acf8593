"""A search for hyper-parameters: what it costs, what it leaves behind, and that it goes on."""

import json
import math

import jax
import numpy as np
import pytest

from fljax import accounting, schemes
from fljax.accounting import events
from fljax.accounting.renyi import repeat_select
from fljax.errors import PrivacyPreconditionError, UnsupportedEventError
from fljax.simulation import config as config_lib
from fljax.simulation import run, search, seeds, verify
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig

EPSILON, DELTA = 3.0, 0.01
GRID = {"scheme": {"l2_clip_norm": (0.001, 1.0), "local_learning_rate": (0.1, 0.5)}}
pytestmark = pytest.mark.usefixtures("compiled_once")


class Told:
    """Who keeps the last line of each try."""

    def __init__(self, fail_at=None):
        self.last, self.rounds, self.fail_at = [], 0, fail_at

    def start(self, plan, rounds_done):
        self.last.append(None)

    def round(self, record):
        self.rounds += 1
        if self.rounds == self.fail_at:
            raise RuntimeError("killed")
        self.last[-1] = record

    def stop(self):
        pass


def searched(grid=None, *, seed=3, mean=3.0, shape=1.0, score="accuracy", **changes):
    grid = GRID if grid is None else grid
    given = {
        "scheme_config": schemes.get("dp_fedavg").Config(sampling_prob=0.25),
        "data": DataConfig(num_clients=40),
        "model": ModelConfig(model="softmax"),
        "privacy": PrivacyConfig(target_epsilon=EPSILON, target_delta=DELTA),
        "run": RunConfig(num_rounds=2, checkpoint_every=1, seed=seed),
        "search": config_lib.SearchConfig(mean=mean, shape=shape, score=score, grid=grid),
    }
    return Config(**given | changes)


def start(config, run_dir, observer=None):
    observer = observer or Told()
    job = search.prepare(config)
    return search.launch(job, config, run_dir, lambda _: observer), observer


def seed_of(count, config=None):
    """A fixed seed for which the law draws so many tries."""
    found = (config or searched()).search
    return next(s for s in range(1000) if len(search.drawn(found, s)) == count)


@pytest.fixture(scope="module")
def three(tmp_path_factory, compiled_once):
    """A search of three tries."""
    config = searched(seed=seed_of(3))
    return config, *start(config, tmp_path_factory.mktemp("search") / "run")


@pytest.mark.slow(reason="two whole runs")
def test_the_search_spends_what_the_best_of_random_runs_does_and_says_so(three):
    _, outcome, _ = three
    plan = outcome.plan
    best = events.RepeatAndSelect(events.SelfComposed(plan.event.mechanism, 2), 3.0, 1.0)
    event = accounting.PrivacyEvent(
        mechanism=best,
        privacy_unit=plan.event.privacy_unit,
        neighboring_relation=plan.event.neighboring_relation,
    )
    claim = json.loads((outcome.run_dir / "privacy.json").read_text())
    assert claim["epsilon"] == accounting.epsilon(event, delta=DELTA) <= EPSILON
    assert EPSILON - claim["epsilon"] < 0.01  # calibrated: no noise is wasted
    one = accounting.epsilon(plan.event.repeat(2), delta=DELTA, method="auto")
    assert claim["search"]["epsilon_of_one_try"] == one < claim["epsilon"]
    guarantee = claim["statement"]["guarantee"]
    assert "the best of a random number of runs" in guarantee and "whole search" in guarantee
    assert any("nobody in them is protected" in said for said in claim["statement"]["not_covered"])
    assert accounting.Ledger.from_json(claim["ledger"]).event == event


def test_the_records_of_the_run_that_is_left_fit(three):
    found = verify.run(three[1].run_dir)
    assert [check for check in found.checks if not check.fits] == []


def test_the_best_try_alone_is_left_and_nothing_tells_of_the_others(three):
    _, outcome, told = three
    scores = [record["test_accuracy"] for record in told.last if record is not None]
    assert len(scores) == 3 and outcome.records[-1]["test_accuracy"] == max(scores)
    names = {path.name for path in outcome.run_dir.iterdir()}
    ours = {"config.toml", "metrics.jsonl", "privacy.json", "model.json", "sessions.jsonl"}
    assert names <= ours | {"checkpoints", "fingerprint.json", "chain.jsonl", ".lock"}
    assert len(outcome.records) == 2
    found = config_lib.from_toml((outcome.run_dir / "config.toml").read_text())["scheme"]
    assert found["l2_clip_norm"] in GRID["scheme"]["l2_clip_norm"]
    assert found["noise_multiplier"] != "none"


def test_tries_share_data_and_initial_model_and_have_keys_of_their_own():
    config = searched()
    first, second = (run.prepare(config, b"s" * 32, attempt=i) for i in (0, 1))
    same = (first.task.client_data.indices, second.task.client_data.indices)
    assert np.array_equal(*same)
    start = (jax.tree.leaves(job.task.model.params) for job in (first, second))
    assert all(np.array_equal(a, b) for a, b in zip(*start, strict=True))
    keys = [np.asarray(jax.random.key_data(job.task.round_key)) for job in (first, second)]
    assert not np.array_equal(*keys)
    fixed = [np.asarray(jax.random.key_data(seeds.keys(5, "threefry", i)[1])) for i in (0, 1)]
    assert not np.array_equal(*fixed)


def test_points_are_drawn_anew_for_each_try_from_all_of_the_grid():
    config = searched(mean=1000.0, shape=2.0)
    todo = search.drawn(config.search, 0)
    found = [tuple(point.values()) for point in todo]
    assert len(set(found)) == 4
    counts = [found.count(point) for point in set(found)]
    # five standard errors of a share of a quarter
    assert max(abs(n / len(found) - 0.25) for n in counts) < 5 * math.sqrt(0.1875 / len(found))


@pytest.mark.release(reason="one more moment", ids=["3"])
@pytest.mark.slow(reason="searches twice more")
@pytest.mark.parametrize("fail_at", [3, 5])
def test_an_interrupted_search_goes_on_to_the_same_bits(three, tmp_path, fail_at):
    config, whole, _ = three
    with pytest.raises(RuntimeError, match="killed"):
        start(config, tmp_path / "run", Told(fail_at))
    assert not (tmp_path / "run" / "privacy.json").exists()  # nothing is released yet
    assert (tmp_path / "run" / search.TRIES).stat().st_mode & 0o077 == 0
    assert search.goes_on(tmp_path / "run")
    resumed = search.resume(tmp_path / "run", lambda _: Told())
    pairs = zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
    for name in ("config.toml", "privacy.json", "metrics.jsonl"):
        assert (whole.run_dir / name).read_bytes() == (resumed.run_dir / name).read_bytes()


@pytest.mark.slow(reason="ends a search of several runs twice")
def test_an_end_that_was_cut_off_is_done_again(tmp_path, monkeypatch):
    config = searched({"scheme": {"local_learning_rate": (0.5,)}}, mean=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(search, "_forget", lambda run_dir: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            start(config, tmp_path / "run")
    assert search.goes_on(tmp_path / "run")
    outcome = search.resume(tmp_path / "run", lambda _: Told())
    assert len(outcome.records) == 2 and not search.goes_on(tmp_path / "run")
    assert not (tmp_path / "run" / search.TRIES).exists()
    with pytest.raises(ValueError, match="which has ended: the seed of its noise is deleted"):
        run.resume(tmp_path / "run", Told())


@pytest.mark.slow(reason="searches once more")
def test_a_search_goes_on_with_the_data_that_it_began_with_or_not_at_all(tmp_path):
    x = np.linspace(0, 1, 80, dtype=np.float32).reshape(40, 2)
    y = np.arange(40) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    config = searched(
        {"scheme": {"local_learning_rate": (0.5,)}},
        mean=1.0,
        data=DataConfig(dataset=f"npz:{tmp_path / 'mine.npz'}", num_clients=10, partition="iid"),
    )
    with pytest.raises(RuntimeError, match="killed"):
        start(config, tmp_path / "run", Told(1))
    np.savez(tmp_path / "mine.npz", x=x + 1, y=y)
    with pytest.raises(ValueError, match="with the data that it began with, got another"):
        search.resume(tmp_path / "run", lambda _: Told())


@pytest.mark.slow(reason="searches once more")
def test_a_search_goes_on_with_the_law_and_the_budget_that_it_began_with(tmp_path):
    config = searched({"scheme": {"local_learning_rate": (0.5,)}}, mean=1.0)
    with pytest.raises(RuntimeError, match="killed"):
        start(config, tmp_path / "run", Told(1))
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("mean = 1.0", "mean = 40.0"))
    assert "mean = 40.0" in path.read_text()
    told = Told()
    search.resume(tmp_path / "run", lambda _: told)
    assert len(told.last) == 1  # of forty in the mean it would be more, for all but one seed in 40
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["epsilon"] <= EPSILON


def test_the_most_likely_number_of_runs_is_drawn_as_the_law_says():
    for mean in (1.0, 20.0, 500.0):
        middle = repeat_select.num_runs(mean, "poisson", 0.5)
        assert abs(middle - mean) <= 1
        assert repeat_select.num_runs(mean, "poisson", 1 - 1e-6) < mean + 6 * mean**0.5 + 6


def test_a_law_that_draws_no_try_releases_nothing_and_spends_all_the_same(tmp_path):
    config = searched(mean=1.0, shape="poisson")
    config = searched(mean=1.0, shape="poisson", seed=seed_of(0, config))
    outcome, _ = start(config, tmp_path / "run")
    assert outcome is None
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.toml", "privacy.json"}
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < claim["epsilon"] <= EPSILON


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"scheme": {"sampling_prob": (0.25, 0.5)}}, "the same mechanism.*sampling_prob=0.5"),
        ({"scheme": {"l2_clip_nrm": (1.0,)}}, "unknown key 'l2_clip_nrm'.*l2_clip_norm"),
        ({"scheme": {"l2_clip_norm": (1.0, -1.0)}}, "l2_clip_norm > 0"),
        ({"model": {"model": ("softmax", "nothing")}}, "model"),
        ({"scheme": {"l2_clip_norm": tuple(range(1, 1002))}}, "at most 1000 points, got 1001"),
    ],
)
def test_a_grid_that_cannot_be_paid_for_is_refused_by_field(grid, said):
    with pytest.raises(ValueError, match=said):
        search.prepare(searched(grid))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {}}, "a grid with values"),
        ({"grid": {"scheme": {}}}, "a grid with values"),
        ({"grid": {"run": {"num_rounds": (1, 2)}}}, "section of the grid to be one of"),
        ({"grid": {"scheme": {"l2_clip_norm": 1.0}}}, "l2_clip_norm in .* a list"),
        ({"grid": {"scheme": {"l2_clip_norm": ()}}}, "l2_clip_norm in .* a list"),
        ({"grid": {"scheme": {"noise_multiplier": (1.0,)}}}, "without noise_multiplier"),
        ({"grid": {"model": {"init": ("runs/a",)}}}, "without init"),
        ({"mean": 0.5}, "mean in"),
        ({"mean": math.nan}, "mean > 0"),
        ({"shape": -1.0}, "shape >= 0"),
        ({"shape": "geometric"}, "shape >= 0"),
        ({"score": "recall"}, "score to be one of"),
        ({"mean": 501.0, "shape": "poisson"}, "mean <= 500 with shape='poisson'"),
        ({"shape": 101.0}, "shape <= 100"),
    ],
)
def test_a_search_that_is_none_is_refused_by_field(changes, said):
    with pytest.raises(ValueError, match=said):
        config_lib.SearchConfig(**{"mean": 2.0, "grid": GRID} | changes)


def test_a_scheme_without_an_epsilon_and_an_accountant_without_a_bound_are_refused():
    plain = searched(
        scheme="fedavg",
        scheme_config=schemes.get("fedavg").Config(num_parties=40),
        privacy=PrivacyConfig(target_epsilon=None),
    )
    with pytest.raises(ValueError, match="Expected a scheme with an epsilon to search"):
        search.prepare(plain)
    whole = schemes.get("dp_fedavg").Config(sampling_prob=1.0)
    gaussian = PrivacyConfig(target_epsilon=EPSILON, target_delta=DELTA, accountant="gdp")
    with pytest.raises(UnsupportedEventError, match="RepeatAndSelect"):
        search.prepare(searched(scheme_config=whole, privacy=gaussian))
    losses = PrivacyConfig(target_epsilon=EPSILON, target_delta=DELTA, accountant="pld")
    with pytest.raises(UnsupportedEventError, match="RepeatAndSelect has none"):
        search.prepare(searched(privacy=losses))


def test_a_scheme_whose_server_sees_the_uploads_of_every_try_is_refused():
    local = searched(
        {"scheme": {"local_learning_rate": (0.1, 0.5)}},
        scheme="local_dp",
        scheme_config=schemes.get("local_dp").Config(num_parties=40),
    )
    with pytest.raises(PrivacyPreconditionError, match=r"only the best try may be seen.*local_dp"):
        search.prepare(local)
