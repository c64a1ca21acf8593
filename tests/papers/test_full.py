"""Items at scale "full" start and end: their own models and data sets, with few of all else."""

import dataclasses
import re

import numpy as np
import pytest

from fljax import cli
from fljax.data.sources import standins
from fljax.papers import paper as records
from fljax.papers import reproduce
from fljax.papers.bidirectional import training as disguised
from fljax.papers.lightdp import items as lightdp
from fljax.papers.subject_dp import training as subjects

SETTINGS = records.Settings(scale="full", seeds=1)


def made(name, item, wanted):
    """What an item's piece of that name finds; it is said to take longer than a demo's."""
    (one,) = (each for each in reproduce.get(name).items if each.name == item)
    demo, full = (
        next(piece for piece in one.pieces(settings) if piece.name == wanted)
        for settings in (records.Settings(seeds=1), SETTINGS)
    )
    assert full.seconds > demo.seconds
    return full.compute()


@pytest.mark.slow(reason="compiles a network for 50 clients")
def test_lightdp_trains_its_network(monkeypatch):
    assert lightdp._sizes(SETTINGS)["rounds"] == 150 and lightdp._model(SETTINGS) == "cnn"
    monkeypatch.setattr(lightdp, "_sizes", lambda settings: {"rounds": 2, "delta": 1e-5})
    found = made("lightdp", "fig3", "LightDP-FL, sound, epsilon 3, C 10, S 10")
    assert np.shape(found["accuracies"]) == (6, 2) and found["true_epsilon"] == 3.0


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="compiles a ResNet with every client's gradient")
def test_bidirectional_trains_its_network(monkeypatch):
    task = disguised.task("CIFAR", "full", None)
    assert task.model == "resnet20" and task.rounds == 100
    train = {name: leaf[:40] for name, leaf in task.data.train.items()}
    test = {name: leaf[:20] for name, leaf in task.data.test.items()}
    less = task._replace(data=task.data._replace(train=train, test=test), rounds=2)
    monkeypatch.setattr(disguised, "task", lambda *_: less)
    found = made("bidirectional", "fig3", "ours, sound, epsilon 8, K 5")
    assert np.shape(found["accuracies"]) == (8,) and np.isfinite(found["accuracies"]).all()


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="compiles a network for 16 silos, and searches a learning rate")
def test_subject_dp_trains_its_network(monkeypatch):
    size, _ = subjects.sizes("femnist", SETTINGS)
    assert size.model == "leaf_cnn" and size.num_rounds == 100
    few = standins.writers(np.random.default_rng(0), num_subjects=20, mean_items=20.0, side=28)
    monkeypatch.setattr(subjects, "dataset", lambda *_: few)
    less = dataclasses.replace(size, num_rounds=2, num_local_steps=1, item_sampling_prob=0.2)
    monkeypatch.setattr(subjects, "sizes", lambda *_: (less, {}))
    monkeypatch.setattr(subjects, "best_rate", lambda score, first: (first, {f"{first:g}": 0.0}))
    found = made("subject-dp", "fig1-femnist", "femnist, sound, HiGradAvg")
    assert np.shape(found["accuracies"]) == (2, 2) and found["true_epsilon"] <= 4.0


@pytest.mark.parametrize("name", reproduce.NAMES)
def test_what_it_takes_is_told_first(name, monkeypatch, tmp_path, capsys):
    """The command at full size says time and memory before its first piece, which is stopped."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    paper = reproduce.get(name)
    items = [
        item._replace(
            pieces=lambda settings, item=item: [
                piece._replace(compute=stopped) for piece in item.pieces(settings)
            ]
        )
        if item.pieces(SETTINGS)
        else item
        for item in paper.items
    ]
    monkeypatch.setattr(reproduce, "get", lambda _: paper._replace(items=items))
    command = ["reproduce", name, "--scale", "full", "--output", str(tmp_path / "out")]
    assert cli.main(command) == 130
    said = capsys.readouterr()
    told = " ".join((said.out + said.err).split())
    minutes, gigabytes = re.search(
        r"about (\d+) min on two cores, (\d+) GB of memory", told
    ).groups()
    assert int(minutes) > 60 and int(gigabytes) >= 2
    assert told.index("guessed") < told.index("stopped; the same command goes on")
