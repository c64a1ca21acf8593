"""For `account` and `calibrate`: a training run by the size of its data, its batches and its
epochs.
"""

import dataclasses
import fractions
import math
from typing import Any

from fljax import _validate
from fljax.schemes.base import Scheme


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How often the data are passed over, in batches of which a scheme's flags know the size."""

    dataset_size: int | None = None
    """Units that a batch is drawn from: in all, or of one silo where silos draw batches. With
    batch_size and epochs it says the sampling chance, and steps or rounds.
    """
    epochs: float | None = None
    """Passes over the data: so many times dataset_size / batch_size steps, rounded up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes(Size):
    """The same, with the size of a batch."""

    batch_size: int | None = None
    """Units expected in a step, by Poisson sampling."""


def flags(config: type) -> type:
    """What goes beside the flags of a scheme's `config`, which may have a batch_size itself."""
    own = {field.name for field in dataclasses.fields(config)}
    return Size if "batch_size" in own else Passes


def _steps(size: int, batch: float, epochs: float) -> int:
    _validate.positive_int(dataset_size=size)
    _validate.positive(batch_size=batch, epochs=epochs)
    if batch > size:
        raise ValueError(f"Expected batch_size <= dataset_size={size}, got batch_size={batch:g}.")
    # By fractions: 3 * (60000 / 600) in floats is not always 300.
    return math.ceil(fractions.Fraction(str(epochs)) * size / fractions.Fraction(str(batch)))


def _all(size: int | None, batch: float | None, epochs: float | None) -> bool:
    """Whether all three are said. Raises ValueError where some are."""
    if size is batch is epochs is None:
        return False
    if size is None or batch is None or epochs is None:
        raise ValueError(
            "Expected --dataset-size, --batch-size and --epochs together, got "
            f"dataset_size={size}, batch_size={batch}, epochs={epochs}."
        )
    return True


def of_gaussian(options: Any) -> Any:
    """Flags of a sampled Gaussian, steps as `--rounds` says, or sampling_prob and steps as the
    epochs do.

    Raises:
      ValueError: some of size, batch and epochs are missing, or a number is given twice.
    """
    if options.rounds != 1:
        if options.steps != 1:
            raise ValueError(
                f"Expected --steps or --rounds, got steps={options.steps}, rounds={options.rounds}."
            )
        options = dataclasses.replace(options, steps=options.rounds, rounds=1)
    size, batch, epochs = options.dataset_size, options.batch_size, options.epochs
    if not _all(size, batch, epochs):
        return options
    if (options.sampling_prob, options.steps) != (1.0, 1):
        raise ValueError(
            "Expected --sampling-prob and --steps, or --dataset-size, --batch-size and --epochs, "
            "got both."
        )
    found = {"sampling_prob": batch / size, "steps": _steps(size, batch, epochs)}
    nothing = {"dataset_size": None, "batch_size": None, "epochs": None}
    return dataclasses.replace(options, **found, **nothing)


def filled_in(name: str, scheme: Scheme, options: Any) -> tuple[Any, int]:
    """Config and rounds of a scheme's run, its sampling and its rounds as the epochs say.

    The chance of a client or an item is batch / size, of one of several local steps of a round
    where there are such; where a client's batch has a size of its own, the size of the data is that
    of one client's records.

    Raises:
      ValueError: some of size, batch and epochs are missing, or a number is given twice, or the
        scheme's epsilon does not depend on the size of a batch.
    """
    config, size, epochs = options.scheme_config, options.dataset_size, options.epochs
    mine = "batch_size" not in {field.name for field in dataclasses.fields(options)}
    if mine and size is epochs is None:
        return config, options.rounds
    batch = config.batch_size if mine else options.batch_size
    if not _all(size, batch, epochs):
        return config, options.rounds
    steps = _steps(size, batch, epochs)
    values = dataclasses.asdict(config)  # a scheme of somebody else may have any
    if mine and "records_per_client" in values:
        decided = {"records_per_client": size}
    else:
        names = [one for one in ("sampling_prob", "item_sampling_prob") if one in values]
        decided = dict.fromkeys(names[:1], batch / size)
    noisy = dataclasses.replace(config, noise_multiplier=1.0, **decided)
    other = {"batch_size": batch / 2} if mine else {one: batch / size / 2 for one in decided}
    if not decided or scheme.event(noisy) == scheme.event(dataclasses.replace(noisy, **other)):
        raise ValueError(
            f"Expected --rounds with --scheme {name}, whose epsilon does not depend on the size of "
            f"a batch as configured, got dataset_size={size}, epochs={epochs:g}."
        )
    start = dataclasses.asdict(type(options)().scheme_config)
    twice = [one for one in decided if values[one] != start[one]]
    if twice or options.rounds != 1:
        flag = twice[0].replace("_", "-") if twice else "rounds"
        raise ValueError(
            f"Expected --{flag}, or --dataset-size and --epochs, which say it, got both."
        )
    rounds = -(-steps // values.get("num_local_steps", 1))
    return dataclasses.replace(config, **decided), rounds
