"""What a reproduction of a paper is made of: items, pieces of work, conclusions.

A paper is a `Paper`: items (one a table or figure) and conclusions. An item is made of pieces of
work, each done once and kept as a file; `show` turns what they found into tables and pictures, and
a conclusion's `judge` into a verdict with the number that says so. `fljax.papers.reproduce` runs
them.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fljax import _validate

if TYPE_CHECKING:  # the command line reads `Settings`, and needs no plots for it
    from matplotlib.figure import Figure

    from fljax.papers.errata import Erratum

Scale = Literal["demo", "full"]
Standing = Literal[
    "reproduced",
    "only under the paper's accounting",
    "not reproduced",
    "cannot tell",
    "refuted by proof",
    "open",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is remade of a paper, and how large."""

    scale: Scale = "demo"
    """demo: within ten minutes on two cores. full: the paper's sizes."""
    seeds: int = 5
    """Runs of each training, each with its own split, model, samples and noise; of some items up to
    sixteen times as many."""
    first_seed: int = 0
    """Number of the first seed: from another one, everything is drawn anew."""
    length: float = 1.0
    """Rounds and epochs of trainings, in multiples of those of `scale`; what the attacks of
    `bidirectional` fit is not among them, nor what is trained for `channel`'s item `fig12`."""
    data: str | None = None
    """Folder of the paper's data; None: a stand-in of the same shape."""

    def __post_init__(self) -> None:
        _validate.one_of(("demo", "full"), scale=self.scale)
        _validate.positive_int(seeds=self.seeds)
        # Rates are tuned on seeds from 1000 on. Items of more seeds ask again, with theirs.
        if self.first_seed < 0 or self.first_seed + self.seeds > 1000:
            raise ValueError(
                "Expected first_seed >= 0 and first_seed + seeds <= 1000, where some items take a "
                f"multiple of the seeds asked for, got first_seed={self.first_seed}, "
                f"seeds={self.seeds}."
            )
        if not 0.25 <= self.length <= 4.0:
            raise ValueError(f"Expected length in [0.25, 4], got length={self.length!r}.")
        if self.data is not None and not pathlib.Path(self.data).expanduser().is_dir():
            raise ValueError(f"Expected data to be a folder, got data={self.data!r}.")

    @property
    def each_seed(self) -> range:
        """Numbers of the seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def rounds(self, usual: int) -> int:
        """Rounds, or epochs, of a training that usually has so many."""
        return round(self.length * usual)


class Piece(NamedTuple):
    """Work that is done once: `compute` gives plain data for JSON, the same for the same settings.

    name: of a file. seconds: about what it takes on two cores.
    """

    name: str
    seconds: float
    compute: Callable[[], dict[str, Any]]


Found = Mapping[str, Mapping[str, Any]]  # what the pieces of an item found, by their names


class Table(NamedTuple):
    """Rows of text below a head; note: a sentence below them."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Picture(NamedTuple):
    """A figure of matplotlib; note: a sentence below it."""

    title: str
    figure: "Figure"
    note: str = ""


class Item(NamedTuple):
    """One table or figure of the paper.

    name: on the command line, such as "fig5". title: what it is, with the paper's number. pieces:
    the work for some settings. show: what they found, to look at. why: where it cannot be remade,
    the reason; it has no pieces then. packages: those that its work imports, each with what one
    installs to have it.
    """

    name: str
    title: str
    pieces: Callable[[Settings], Sequence[Piece]] = lambda settings: ()
    show: Callable[[Settings, Found], Sequence[Table | Picture]] = lambda settings, found: ()
    why: str = ""
    packages: Mapping[str, str] = {}


class Verdict(NamedTuple):
    """How a conclusion stands, and the sentence with the number that says so."""

    standing: Standing
    because: str


class Conclusion(NamedTuple):
    """Something that the paper concludes: where, what, and the items that the verdict rests on.

    judge: what those items found, by name, to the verdict.
    """

    where: str
    statement: str
    items: Sequence[str]
    judge: Callable[[Mapping[str, Found]], Verdict]


class Paper(NamedTuple):
    """A paper: title and source, what it shows, what it concludes.

    memory_gb: of a scale. by_seed: names under which pieces keep values by seed: lists there, and
    below, have one entry a seed. stand_ins: of a scale, a sentence that says what is in the place
    of the paper's data and networks where no data folder is given.
    """

    title: str
    source: str
    items: Sequence[Item]
    conclusions: Sequence[Conclusion]
    memory_gb: Mapping[str, float] = {"demo": 2.0, "full": 2.0}
    by_seed: frozenset[str] = frozenset()
    stand_ins: Mapping[str, str] = {}


def half_width(values: np.ndarray, confidence: float = 0.95) -> float:
    """Half of the confidence interval of the mean, by Student's t; infinite for one value."""
    from scipy import special

    values = np.asarray(values, np.float64)
    if values.size < 2:
        return float("inf")
    reach = special.stdtrit(values.size - 1, (1 + confidence) / 2)
    return float(reach * values.std(ddof=1) / np.sqrt(values.size))


def chosen_by_others(several: Sequence[np.ndarray]) -> np.ndarray:
    """`[S]`: for each seed its value of what has the largest mean over the other seeds, so that
    choosing adds nothing to what was chosen. several: `[S]` each.
    """
    values = np.stack(several)
    others = values.sum(axis=1, keepdims=True) - values
    return np.asarray(np.take_along_axis(values, others.argmax(axis=0)[None], axis=0)[0])


def percent(accuracies: np.ndarray) -> str:
    """Mean and 95 % interval in percent."""
    half = half_width(accuracies)
    return f"{100 * np.mean(accuracies):.1f} %" + (
        f" +- {100 * half:.1f}" if np.isfinite(half) else ""
    )


def figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    from matplotlib.figure import Figure  # of the extra sim

    return Figure(figsize=(width, height), layout="constrained")


def points(differences: np.ndarray) -> str:
    """Mean and 95 % interval of differences of accuracies."""
    return f"{np.mean(differences):+.1%} +- {half_width(differences):.1%}"


def above(differences: np.ndarray, by: float = 0.0, *, among: int = 1) -> bool | None:
    """Whether the mean of the differences, one a seed, is above `by`. None: its interval holds
    `by`, so that other seeds may say otherwise.

    among: so many comparisons of which one decides: their intervals hold together with 95 %, by
      Bonferroni.
    """
    mean = float(np.mean(differences))
    reach = half_width(differences, 1 - 0.05 / among)
    return mean > by if abs(mean - by) > reach else None


def all_above(
    several: Sequence[np.ndarray], by: float = 0.0, *, above: Callable[..., bool | None] = above
) -> bool | None:
    """Whether all of these means are above `by`: each must be, by its own interval; one that is not
    decides, by intervals that hold together.

    above: what decides for one, such as by its median.
    """
    if any(above(one, by, among=len(several)) is False for one in several):
        return False
    return every(above(one, by) or None for one in several)


def any_above(several: Sequence[np.ndarray]) -> bool | None:
    """Whether one of these means is above 0, and none below, by intervals that hold together."""
    answers = {above(one, among=len(several)) for one in several}
    return False if False in answers else True if True in answers else None


def every(answers: Iterable[bool | None]) -> bool | None:
    """Whether all hold: not, if one does not; None, if one of the others cannot be told."""
    known = set(answers)
    return False if False in known else None if None in known else True


def plain(holds: bool | None, because: str) -> Verdict:
    """The verdict on what holds, or not, whatever the accounting; None: cannot be told."""
    if holds is None:
        return Verdict("cannot tell", because)
    return Verdict("reproduced" if holds else "not reproduced", because)


def by_accounting(holds: Mapping[str, bool | None], because: str) -> Verdict:
    """The verdict on what holds, or not, by the "paper"'s accounting and by the "sound" one; None:
    cannot be told, as which of two verdicts it is where only the sound one surely fails.
    """
    if holds["sound"] is not False:
        return plain(holds["sound"], because)
    if holds["paper"] is None:
        return Verdict("cannot tell", f"{because}; by ours it fails, by the paper's perhaps not")
    if holds["paper"]:
        return Verdict("only under the paper's accounting", because)
    return Verdict("not reproduced", because)


def refuted(
    errata: "Sequence[Erratum]", name: str, *, place: int = -1, but: str = ""
) -> Callable[[Mapping[str, Found]], Verdict]:
    """Judges by the counter-example of the erratum `name`, its figure at `place`; but: what is true
    all the same.
    """

    def judge(_: Mapping[str, Found]) -> Verdict:
        erratum = {one.name: one for one in errata}[name]
        assert erratum.shows is not None
        what, said, true = erratum.shows()[place]
        holds = f"{true:.3g} is true" if math.isfinite(true) else "it has no bound"
        return Verdict("refuted by proof", f"{name}: {what}: {said:.3g} said, {holds}{but}")

    return judge
