"""What `--settings PATH` of `fljax audit` and `fljax attack` is about: the scheme of a run, or of a
TOML, with its own numbers; its data and its model.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

from fljax import data, schemes
from fljax.attacks import rounds
from fljax.simulation import base_model, task
from fljax.simulation import config as config_lib
from fljax.simulation.record import folder
from fljax.types import Params


class Own(NamedTuple):
    """scheme: its name. config: of the small world, its noise multiplier None where nothing says
    it. data, model: those of the run. base: the run's folder, where that keeps what LoRA is trained
    beside; else None.
    """

    scheme: str
    config: Any
    data: config_lib.DataConfig
    model: config_lib.ModelConfig
    base: pathlib.Path | None = None

    @property
    def lacks_base(self) -> bool:
        """Whether it has LoRA, and what that is trained beside is not known."""
        return (
            self.model.lora is not None
            and self.base is None
            and not base_model.is_published(self.model)
        )


def read(path: pathlib.Path) -> Own:
    """The scheme that a run's folder, or a TOML of `fljax simulate`, names, with its numbers; but
    for few clients, since attacks play thousands of rounds.

    Of a run that calibrated its noise, the noise is the calibrated one.

    Raises:
      ValueError: no such file, or a damaged one, it is no config, its scheme promises no epsilon,
        or its numbers do not go together with few clients.
    """
    path = path.expanduser()
    file = path / folder.CONFIG if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"Expected settings to be a run's folder or a TOML, got {str(path)!r}.")
    sections = config_lib.from_toml(folder.read_text(file), source=str(file))
    parts = config_lib.parts(sections)
    name, config = parts["scheme"], parts["scheme_config"]
    scheme = schemes.get(name)
    if scheme.promise != "epsilon":
        raise ValueError(f"Expected settings of a scheme that promises an epsilon, got {name!r}.")
    told = path / folder.PRIVACY
    if config.noise_multiplier is None and path.is_dir() and told.is_file():
        calibrated = folder.read_json(told).get("noise_multiplier")
        config = dataclasses.replace(config, noise_multiplier=calibrated)
    base = path if (path / folder.BASE).is_file() else None
    return Own(name, rounds.shrunk(scheme, config), parts["data"], parts["model"], base)


def dataset(name: str, own: Own | None, *, text: bool = False) -> data.Dataset:
    """The dataset of that name, its columns as `own` names them if it is its own. text: as symbols,
    each of which is to be told, where nothing says what it is.
    """
    if own is not None and own.data.dataset == name:
        return task.load(own.data)
    return data.load(name, data.tables.Columns(task="tokens")) if text else data.load(name)


def model(
    name: str, lora: int | None, own: Own | None, **sizes: Any
) -> tuple[dict[str, Any], Params | None]:
    """(sizes of the model of that name, what LoRA is trained beside), as `own` has them if it is
    its own; else `sizes`, and None. A base of None is drawn, or read from the folder that the name
    says.

    Raises:
      ValueError: the file of the base is damaged.
    """
    if own is None or own.model.model != name:
        return sizes, None
    kept = None if lora is None or own.base is None else base_model.read(own.base)
    return own.model.options, kept
