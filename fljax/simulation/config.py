"""What a run is: frozen sections of plain numbers, read from TOML and flags, checked before
anything starts.

A key has one name everywhere: `l2_clip_norm` in the file, in Python, and `--l2-clip-norm` as a
flag.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import tomllib
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fljax import _deprecation, _near, _validate, accounting, schemes
from fljax.accounting.accountant import Method
from fljax.accounting.renyi import repeat_select
from fljax.data import builtin, partition, targets
from fljax.data.subjects import SUBJECT
from fljax.schemes import exact
from fljax.simulation.devices import memory

if TYPE_CHECKING:
    from fljax.schemes.base import Scheme

MOST_STEPS = 1_000_000  # rounds of a run, steps or epochs of a client in one round
# What no run gets through, or no machine holds; of anything else that is counted, what devices
# count in int32.
_MOST = {
    **dict.fromkeys(
        ("num_rounds", "num_local_steps", "num_local_epochs", "num_parties"),
        MOST_STEPS,
    ),
    "groups": 2**16,
    # Batches are filled up to their size; beyond this one they take memory and nothing else.
    **dict.fromkeys(("batch_size", "local_batch_size", "microbatch_size"), 2**20),
}
SUBJECT_PARTITIONS = ("subject_uniform", "subject_power_law")
RANDOM: Literal["random"] = "random"
Generator = Literal["auto", "chacha20", "threefry"]
OWN = "own:"  # before the name of what a caller of `fljax.simulate` brought; nobody can look it up
ALGORITHM = f"{OWN}algorithm"  # the scheme of a run of a bare `FederatedAlgorithm`
NONE = "none"  # TOML has no null; leaving the key out means the default, which may be a number


def _not_too_many(values: Mapping[str, Any]) -> None:
    """Raises ValueError for a count that cannot run; seeds have bounds of their own."""
    for name, value in values.items():
        most = _MOST.get(name, 2**31 - 1)
        if isinstance(value, int) and not name.endswith("seed") and value > most:
            raise ValueError(f"Expected {name} <= {most}, got {name}={value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which examples, and how they are divided among clients."""

    task: str = "classes"
    """What is learned of an example. classes: one of several; binary: yes or no; multi_label: yes
    or no for each of several; regression: numbers; tokens: each next symbol of a sequence or text.
    """
    dataset: str = "digits"
    """digits; fields, whose law is known; writers or roles, which carry subjects; idx:FOLDER, for a
    folder of MNIST's four files; cifar:FOLDER, of CIFAR-10's six binary ones; npz:FILE, of your
    own arrays x and y; csv:FILE, of your own table; folder:FOLDER, of images by class; hf:FOLDER,
    of `datasets` or Parquet; leaf:FOLDER, tff:FILE or text:FOLDER, of text, which bring their
    clients; or disk:FOLDER, of clients on disk.
    """
    num_clients: int | None = None
    """Clients in the population. A public constant. none: as many as there are on disk; of data
    that are dealt, as many as num_parties says, else 500, or fewer where the scheme is
    meant for few.
    """
    partition: str = "dirichlet"
    """How examples are dealt to clients: iid, dirichlet, shards, power_law, subject_uniform or
    subject_power_law.
    """
    dirichlet_alpha: float = 1.0
    """Concentration, for partition dirichlet: small means clients of few classes."""
    shards_per_client: int = 2
    """Shards of equal labels a client gets, for partition shards."""
    power_law_exponent: float = 1.0
    """Skew of the clients' sizes, for partition power_law (0 is none), or of subjects over silos,
    for subject_power_law (1 is none).
    """

    corrupt_clients: str = "stop"
    """What to do where a sampled client's bytes on disk are damaged: stop the run, or skip the
    client.
    """

    client_column: str | None = None
    """Field of the data that says whose an example is, an integer or a string: its values become
    the clients. none: examples are dealt as partition says; but leaf:FOLDER, tff:FILE
    and text:FOLDER bring their clients, who are taken where partition is not given (field subject).
    """

    label_column: str | None = None
    """Column of csv:FILE, or array of npz:FILE, that holds the classes, as text or as numbers from
    0 on; or, for other tasks, numbers, 0 and 1, or text. Columns of a table apart by commas where a
    task has several. none: label in a table (of tokens text), y in a file of arrays.
    """

    subject_column: str | None = None
    """Column or array of such a file that says which person an example is about, by text or by
    numbers from 0 on. none: examples carry no subjects.
    """

    feature_columns: str | None = None
    """Columns of csv:FILE that are features, apart by commas: COLUMN as it is, COLUMN=LOW..HIGH
    between public bounds, which become 0 and 1, or COLUMN=VALUE|VALUE for text, 1 or 0 for each
    value; or the array of npz:FILE that holds them. none: all columns that are nothing else, as
    they are; the array x.
    """

    missing_value: float | None = None
    """Number that stands for an empty cell among the features of csv:FILE, or NA, null and the
    like; of text no value is met. none: an empty cell is refused.
    """

    sequence_length: int = 80
    """Symbols of a text that count, its first, for task tokens: a text is one example. Files of
    text:FOLDER are cut into pieces of so many.
    """

    vocabulary: str | None = None
    """File of words, one a line, that texts of task tokens are made of; others are one unknown
    word. Or a file of the package tokenizers, which ends in .json. Take none that was made of
    private text. none: a text is the bytes of its UTF-8.
    """

    @property
    def are_dealt(self) -> bool:
        """Whether examples are dealt to clients; else they come with them."""
        apart = self.dataset.startswith(builtin.DISK) or self.partition.startswith(OWN)
        return not apart and self.client_column is None

    def __post_init__(self) -> None:
        _validate.one_of(targets.NAMES, task=self.task)
        _validate.positive_int(sequence_length=self.sequence_length)
        if self.vocabulary is not None and self.task != "tokens":
            raise ValueError(
                f"Expected vocabulary=none for task={self.task!r}, which has no words, got "
                f"vocabulary={self.vocabulary!r}."
            )
        if not self.dataset.startswith(OWN):
            builtin.check_name(dataset=self.dataset)
        columns = {"label_column": self.label_column, "subject_column": self.subject_column}
        for name, value in columns.items():
            if value is not None and not builtin.has_columns(self.dataset):
                raise ValueError(
                    f"Expected {name}=none, since only npz:FILE, csv:FILE and hf:FOLDER have such "
                    f"columns, got {name}={value!r} with dataset={self.dataset!r}."
                )
        told: dict[str, tuple[Any, tuple[str, ...]]] = {
            "feature_columns": (self.feature_columns, (builtin.CSV, builtin.NPZ)),
            "missing_value": (self.missing_value, (builtin.CSV,)),
        }
        for name, (given, prefixes) in told.items():
            if given is not None and not self.dataset.startswith(prefixes):
                files = " or ".join(f"{prefix}FILE" for prefix in prefixes)
                raise ValueError(
                    f"Expected {name}=none, since it is of {files} alone, got {name}={given!r} "
                    f"with dataset={self.dataset!r}."
                )
        if self.missing_value is not None and not math.isfinite(self.missing_value):
            raise ValueError(
                f"Expected missing_value to be finite, got missing_value={self.missing_value}."
            )
        brings = builtin.has_clients(self.dataset) and self.partition == "dirichlet"
        if brings and self.client_column is None:
            object.__setattr__(self, "client_column", SUBJECT)
        _validate.one_of(("stop", "skip"), corrupt_clients=self.corrupt_clients)
        if self.num_clients is not None:
            _validate.positive_int(num_clients=self.num_clients)
        if not self.partition.startswith(OWN):
            _validate.one_of((*partition.NAMES, *SUBJECT_PARTITIONS), partition=self.partition)
        _validate.positive(dirichlet_alpha=self.dirichlet_alpha)
        _validate.positive_int(shards_per_client=self.shards_per_client)
        _validate.non_negative(power_law_exponent=self.power_law_exponent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained."""

    model: str = "mlp"
    """softmax, mlp, cnn, leaf_cnn, lstm, lenet, resnet10, resnet18, resnet20, alexnet, vgg16,
    small_vit; for tokens token_lstm or decoder:tiny, or weights:FOLDER of a decoder as it is
    published; or PACKAGE.MODULE:NAME of one's own: of flax nnx, linen, equinox or haiku.
    """
    lora: int | None = None
    """Rank of small matrices beside the linear layers, which alone are trained; the rest is frozen:
    weights:FOLDER, the model of init, or one that learns from public text first (dataset roles).
    none: all of the model is trained.
    """
    loss: str = "cross_entropy"
    """cross_entropy, or squared: half the squared distance of the outputs to one-hot labels, or to
    numbers; binary_cross_entropy; next_token. A task begins with its own.
    """
    hidden: tuple[int, ...] = ()
    """Widths of the dense layers of mlp, cnn and lstms. (): the model's own."""
    channels: tuple[int, ...] = ()
    """Widths of the convolutions of cnn. (): the model's own."""
    kernel_size: int | None = None
    """Of the convolutions of cnn. none: 3."""
    embedding: int | None = None
    """Width of the embedding of lstms. none: 8."""
    cells: tuple[int, ...] = ()
    """Widths of the LSTM layers of lstms. (): the model's own."""
    init: str | None = None
    """Folder of another run whose model this one begins with; the claim says so. none: a model
    drawn from the seed.
    """

    @property
    def options(self) -> dict[str, Any]:
        """The sizes that are said, by name."""
        named = ("hidden", "channels", "kernel_size", "embedding", "cells")
        said = {name: getattr(self, name) for name in named}
        return {name: value for name, value in said.items() if value not in ((), None)}

    def __post_init__(self) -> None:
        if self.init is not None:  # a run may go on from another working folder
            where = pathlib.Path(self.init).expanduser().absolute()
            object.__setattr__(self, "init", str(where))
        from fljax import models  # flax is slow to import, and `fljax account` does not need it

        prefix = models.classifiers.WEIGHTS
        if self.model.startswith(prefix):
            path = pathlib.Path(self.model.removeprefix(prefix)).expanduser().absolute()
            object.__setattr__(self, "model", f"{prefix}{path}")
        if self.lora is not None:
            _validate.positive_int(lora=self.lora)
            models.classifiers.check_lora(self.model)
        if not self.model.startswith(OWN):
            models.check_name(model=self.model)
            models.classifiers.check_options(self.model, self.options)
        elif self.options:
            raise ValueError(
                f"Expected no sizes with a model of one's own, got {next(iter(self.options))}."
            )
        if not self.loss.startswith(OWN):
            _validate.one_of(models.LOSSES, loss=self.loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """What may be spent, and who counts."""

    target_epsilon: float | None = 4.0
    """Budget: rounds stop before it is exceeded. none: no budget."""
    target_delta: float | None = None
    """delta of the guarantee, well below 1 / (number of protected units). none: that number **
    -1.1, which is large for small populations, so that the run says what it allows; schemes meant
    for few clients or silos want a number.
    """
    accountant: Method = "auto"
    """How epsilon is computed. auto: exactly for plain Gaussian noise, else by privacy-loss
    distributions (pld) where there are any, else by Renyi divergences (rdp); or one of gdp, pld and
    rdp.
    """

    def __post_init__(self) -> None:
        if self.target_epsilon is not None:
            _validate.positive(target_epsilon=self.target_epsilon)
        if self.target_delta is not None:
            _validate.open_unit(target_delta=self.target_delta)
        _validate.one_of(accounting.ACCOUNTANTS, accountant=self.accountant)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, how often, from which seed."""

    num_rounds: int = 60
    """Server rounds."""
    seed: int | Literal["random"] = RANDOM
    """Of everything random: partition, initial model, sampling, noise. random: 256 bits of the
    operating system, kept in a file of their own. A number below 2**32 repeats an experiment; no
    model of such a run is to be released.
    """
    generator: Generator = "auto"
    """What rounds draw from. chacha20: a cipher under a key of 256 bits. threefry: JAX's generator,
    under one of 64. auto: chacha20 of a random seed, threefry of a fixed one.
    """
    eval_every: int = 5
    """Rounds between evaluations on held-out data."""
    checkpoint_every: int = 10
    """Rounds between checkpoints."""
    baseline: bool = True
    """Train a non-private model beside, on the same cohorts, for comparison: FedAvg, tuned for the
    task and not for the scheme.
    """
    groups: int | None = None
    """Add up a round's clients in so many groups: the same order on any number of devices that
    divides it. none: in an order that depends on the devices; but `fljax simulate` chooses 16 for
    several processes of up to 16 devices, and for a CPU alone twice as many as it makes devices,
    where neither devices nor memory are given.
    """
    microbatch_size: int = 64
    """Examples whose gradients a client takes together where a step is over more; speed and
    memory.
    """
    canaries: int = 0
    """Units of crafted gradients to plant among the training data, each there by a coin: the run
    then says what its model tells about them, an audit of one run. Its claim covers them.
    """
    memory: str | None = None
    """Memory of a device that a round may take, 4GiB for example: clients train side by side as far
    as that goes. none: as many as are fastest.
    """

    def __post_init__(self) -> None:
        if self.memory is not None:
            memory.parse(self.memory)
        _not_too_many({"num_rounds": self.num_rounds})
        _validate.positive_int(
            num_rounds=self.num_rounds,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
        )
        _validate.one_of(typing.get_args(Generator), generator=self.generator)
        _validate.positive_int(microbatch_size=self.microbatch_size)
        _validate.non_negative_int(canaries=self.canaries)
        if self.canaries == 1:
            raise ValueError("Expected canaries >= 2, or none, got canaries=1.")
        if self.groups is not None:
            _validate.positive_int(groups=self.groups)
        if isinstance(self.seed, str):
            if self.seed != RANDOM:
                raise ValueError(
                    f"Expected seed to be {RANDOM} or an integer in [0, 2**32), got "
                    f"seed={self.seed!r}."
                )
            return
        _validate.non_negative_int(seed=self.seed)
        if self.seed >= 2**32:
            raise ValueError(f"Expected seed < 2**32, got seed={self.seed}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """A search for hyper-parameters, of whose tries a run is the best: see `simulation.search`.

    mean: of the number of tries, in [1, 1000]. shape: of its law: "poisson" (mean <= 500), or a
      number in [0, 100] for a truncated negative binomial one (0 is logarithmic, 1 geometric).
    score: "accuracy" or "loss" on held-out examples, by which the best is chosen.
    grid: section -> key -> values, of which each try draws one.

    Raises:
      ValueError: a number is out of its range, or the grid is empty or has another section.
    """

    mean: float
    shape: float | Literal["poisson"] = 1.0
    score: str = "accuracy"
    grid: Mapping[str, Mapping[str, tuple[Any, ...]]]

    def __post_init__(self) -> None:
        _validate.positive(mean=self.mean)
        if not 1 <= self.mean <= 1000:
            raise ValueError(f"Expected mean in [1, 1000], got mean={self.mean!r}.")
        if self.shape != "poisson":
            _validate.non_negative(shape=self.shape)
        repeat_select.num_runs(self.mean, self.shape, 0.0)
        _validate.one_of(("accuracy", "loss"), score=self.score)
        if not isinstance(self.grid, Mapping) or not any(self.grid.values()):
            raise ValueError(
                "Expected a grid with values to choose from in [scheme] or [model], got none."
            )
        for section, keys in self.grid.items():
            _validate.one_of(SEARCHED, **{"section of the grid": section})
            if not isinstance(keys, Mapping):
                raise ValueError(
                    f"Expected {section!r} in the grid to be a section [{section}], got {keys!r}."
                )
            for key, values in keys.items():
                if not isinstance(values, list | tuple) or not values:
                    raise ValueError(
                        f"Expected {key} in [{section}] of the grid to be a list of values to "
                        f"choose from, got {key}={values!r}."
                    )
                if (section, key) in _NOT_SEARCHED:
                    raise ValueError(
                        f"Expected a grid without {key}: {_NOT_SEARCHED[section, key]}."
                    )


SEARCHED = ("scheme", "model")  # sections that a grid may have
_NOT_SEARCHED = {
    ("scheme", "scheme"): "all tries are runs of one scheme",
    ("scheme", "noise_multiplier"): "all tries have one noise, for which the search is paid",
    ("model", "init"): "what another run's model owes to its data is claimed once, for all tries",
}


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "privacy": PrivacyConfig,
    "run": RunConfig,
}
DEFAULT_SCHEME = "dp_fedavg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. `scheme_config` is the `Config` of what `scheme` names; None: its defaults.

    Counts that data decide may still be None: `run.prepare` fills them in. The clients to which
    data are dealt are decided here. search: of whose tries the run is the best, if of any.
    scheme_object: the scheme itself, where a caller of `fljax.simulate` brought it.
    """

    scheme: str = DEFAULT_SCHEME
    scheme_config: Any = None
    data: DataConfig = DataConfig()
    model: ModelConfig = dataclasses.field(default_factory=lambda: ModelConfig())
    privacy: PrivacyConfig = PrivacyConfig()
    run: RunConfig = RunConfig()
    search: SearchConfig | None = None
    scheme_object: "Scheme | None" = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def implementation(self) -> "Scheme":
        """What `scheme` names."""
        return schemes.get(self.scheme) if self.scheme_object is None else self.scheme_object

    def __post_init__(self) -> None:
        for section in self.sections().values():
            _not_too_many(dataclasses.asdict(section))
        if self.scheme_config is not None:
            _not_too_many(dataclasses.asdict(self.scheme_config))
        fitting = targets.TARGETS[self.data.task].losses
        if self.model.loss not in fitting and not self.model.loss.startswith(OWN):
            raise ValueError(
                f"Expected loss to be among {list(fitting)} for task={self.data.task!r}, got "
                f"loss={self.model.loss!r}."
            )
        scheme = self.implementation
        wanted = scheme.Config
        if self.scheme_config is None:
            object.__setattr__(self, "scheme_config", wanted())
        if not isinstance(self.scheme_config, wanted):
            got = type(self.scheme_config).__qualname__
            raise ValueError(
                f"Expected scheme_config of scheme {self.scheme} to be its Config, got {got}."
            )
        open_noise = self.scheme_config.noise_multiplier is None and self.scheme != ALGORITHM
        if open_noise and self.privacy.target_epsilon is None:
            raise ValueError(
                "Expected noise_multiplier or target_epsilon to be a number, got "
                "noise_multiplier=None and "
                "target_epsilon=None: there is nothing to calibrate the noise for."
            )
        if self.data.num_clients is None and self.data.are_dealt:
            stated = scheme.population(self.scheme_config).num_clients
            start = _start(scheme, self.model.lora, self.data.dataset).get("data", {})
            usual = start.get("num_clients", _MANY)
            object.__setattr__(
                self, "data", dataclasses.replace(self.data, num_clients=stated or usual)
            )

    def sections(self) -> dict[str, Any]:
        """The sections beside the scheme's, by their names in SECTIONS."""
        return {"data": self.data, "model": self.model, "privacy": self.privacy, "run": self.run}


_MANY = 500


def _start(scheme: "Scheme", lora: Any, dataset: Any = None) -> dict[str, dict[str, Any]]:
    """What a run of the scheme starts from, by sections; lora: as given, NONE or None for none. How
    clients hold the data of fine-tuning is said of that `dataset` alone.
    """
    found = {name: dict(values) for name, values in scheme.start.items()}
    for name, values in ({} if lora in (None, NONE) else scheme.start_of_lora).items():
        if name != "data" or dataset in (None, values.get("dataset")):
            found[name] = {**found.get(name, {}), **values}
    return found


def _arms(hint: Any) -> tuple[Any, ...]:
    """The types that a field of plain data may hold; a Literal holds values of its own types."""
    if typing.get_origin(hint) is typing.Literal:
        return tuple({type(value) for value in typing.get_args(hint)})
    arms = typing.get_args(hint) or (hint,)
    return tuple(
        kind
        for arm in arms
        for kind in (_arms(arm) if typing.get_origin(arm) is Literal else (arm,))
    )


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"list of {typing.get_args(hint)[0].__name__}"
    arms = _arms(hint)
    return " or ".join(f'"{NONE}"' if arm is type(None) else arm.__name__ for arm in arms)


def _typed(section: str, key: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type; TOML's integers serve where a float is meant, and a bool is not
    an integer.
    """
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_typed(section, key, entry, typing.get_args(hint)[0]) for entry in value)
    arms = () if typing.get_origin(hint) is tuple else _arms(hint)
    if value == NONE and type(None) in arms:
        return None
    for arm in arms:
        if isinstance(value, arm) and not (isinstance(value, bool) and arm is not bool):
            return value
        if arm is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    raise ValueError(
        f"Expected {key} in [{section}] to be of type {_type_name(hint)}, got {key}={value!r}."
    )


def _section(section: str, cls: type, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    values = _deprecation.renamed(values, names)
    for key in values:
        if key not in names:
            hint = _near.did_you_mean(key, names)
            raise ValueError(
                f"Expected keys of [{section}] to be among {names}, got unknown key {key!r}.{hint}"
            )
    _not_too_many(values)
    return cls(**{key: _typed(section, key, value, hints[key]) for key, value in values.items()})


def from_sections(sections: Mapping[str, Any], scheme_object: "Scheme | None" = None) -> Config:
    """A checked `Config` from the nested mapping that a TOML file holds; what is missing keeps its
    default.

    A scheme may start from other defaults than the sections have: its `start`.

    Raises:
      ValueError: unknown section or key, wrong type, or a value out of range; one line.
    """
    return Config(**parts(sections, scheme_object), scheme_object=scheme_object)


def parts(sections: Mapping[str, Any], scheme_object: "Scheme | None" = None) -> dict[str, Any]:
    """The arguments of `Config` that `from_sections` gives it; num_clients is None where the
    sections do not say it.
    """
    allowed = ["scheme", *SECTIONS, "search"]
    for name, values in sections.items():
        if name not in allowed:
            hint = _near.did_you_mean(name, allowed)
            raise ValueError(
                f"Expected sections of the config to be among {allowed}, got unknown key "
                f"{name!r}.{hint}"
            )
        if not isinstance(values, Mapping):
            raise ValueError(
                f"Expected {name!r} in the config to be a section [{name}], got {name}={values!r}."
            )
    scheme_values = dict(sections.get("scheme", {}))
    scheme = scheme_values.pop("scheme", DEFAULT_SCHEME)
    if scheme_object is None and str(scheme).startswith(OWN):
        raise ValueError(
            f"Expected scheme to be a name that can be looked up, got {scheme!r} of a run that "
            "began with fljax.simulate: call that again, with the same arguments and run_dir."
        )
    itself = schemes.get(scheme) if scheme_object is None else scheme_object
    exact.check_known(itself, scheme_values)
    model = sections.get("model", {})
    start = _start(itself, model.get("lora"), sections.get("data", {}).get("dataset"))
    start.get("data", {}).pop(
        "num_clients", None
    )  # for `Config` to take where nothing else says it
    task = _start_of_task(sections.get("data", {}), str(model.get("model", "")))
    found = {
        # A scheme knows how its clients hold examples, and a task what learns from them.
        name: _section(
            name,
            cls,
            {
                **(task.get(name, {}) if name == "data" else {}),
                **start.get(name, {}),
                **(task.get(name, {}) if name != "data" else {}),
                **sections.get(name, {}),
            },
        )
        for name, cls in SECTIONS.items()
    }
    scheme_config = _section("scheme", itself.Config, {**start.get("scheme", {}), **scheme_values})
    found["search"] = of_search(sections["search"]) if "search" in sections else None
    return {"scheme": scheme, "scheme_config": scheme_config, **found}


def scheme_of(sections: Mapping[str, Any]) -> "tuple[Scheme, Any] | None":
    """The scheme that all sections of a config name, and its Config. None: no scheme of fljax;
    nothing is imported that the sections name. Raises ValueError where they do not fit it.
    """
    values = dict(sections["scheme"])
    name = values.pop("scheme")
    if name not in schemes.NAMES:
        return None
    scheme = schemes.get(name)
    return scheme, _section("scheme", scheme.Config, values)


def of_search(values: Mapping[str, Any]) -> SearchConfig:
    """The section [search] with its grid. Raises ValueError as `SearchConfig`, and for an unknown
    or missing key.
    """
    names = [field.name for field in dataclasses.fields(SearchConfig)]
    for key in values:
        if key not in names:
            hint = _near.did_you_mean(key, names)
            raise ValueError(
                f"Expected keys of [search] to be among {names}, got unknown key {key!r}.{hint}"
            )
    for key in ("mean", "grid"):
        if key not in values:
            raise ValueError(f"Expected {key} in [search], got {sorted(values)}.")
    grid = values["grid"]
    if isinstance(grid, Mapping):
        grid = {
            section: {key: tuple(v) if isinstance(v, list) else v for key, v in keys.items()}
            if isinstance(keys, Mapping)
            else keys
            for section, keys in grid.items()
        }
    return SearchConfig(**{**values, "grid": grid})


def _start_of_task(given: Mapping[str, Any], model: str) -> dict[str, Mapping[str, Any]]:
    """What a run of the task starts from, unless told otherwise; data that bring their clients are
    not dealt, those of symbols are no images, and the task of text and of decoders is tokens.

    Beside a decoder no other is trained: FedAvg on all that clients have takes far longer.
    """
    from fljax.models import classifiers  # slow to import, as for `ModelConfig`

    dataset = str(given.get("dataset", ""))
    tokens = classifiers.tells_tokens(model) or dataset.startswith(builtin.TEXT)
    task = given.get("task", "tokens" if tokens else None)
    start = dict(targets.TARGETS[task].start) if task in targets.NAMES else {}
    if builtin.has_clients(dataset):
        start.pop("data", None)
    if tokens:
        start["data"] = {"task": task, **start.get("data", {})}
    if classifiers.is_decoder(model):
        start["run"] = {"baseline": False}
    if given.get("dataset") == "roles" and "model" not in start:  # symbols are no sizes
        start["model"] = {"model": "lstm"}
    return start


def to_sections(config: Config) -> dict[str, dict[str, Any]]:
    """The inverse of `from_sections`, with every key present."""
    sections = {"scheme": {"scheme": config.scheme, **dataclasses.asdict(config.scheme_config)}}
    sections |= {name: dataclasses.asdict(section) for name, section in config.sections().items()}
    found = {
        name: {key: NONE if value is None else value for key, value in values.items()}
        for name, values in sections.items()
    }
    return found if config.search is None else found | {"search": dataclasses.asdict(config.search)}


def from_toml(text: str, *, source: str = "config") -> dict[str, Any]:
    """Parses TOML into sections for `from_sections`; `source` names the file in errors.

    Raises:
      ValueError: not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise ValueError(f"Expected {source} to be TOML: {reason}.") from reason


def to_toml(config: Config) -> str:
    """The config as TOML that `from_toml` reads back to an equal config."""
    import tomli_w

    return tomli_w.dumps(to_sections(config))


def digest(config: Config) -> str:
    """A fingerprint: equal for equal configs, on every machine."""
    text = json.dumps(to_sections(config), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def delta_of(config: Config, num_units: int) -> float:
    """The run's delta: the one that was asked for, or `default_delta` of the units that it
    protects.

    Raises:
      ValueError: none was asked for, and the scheme is meant for few units, which `default_delta`
        protects too little.
    """
    asked = config.privacy.target_delta
    if asked is not None:
        return asked
    own = config.implementation.start.get("privacy", {}).get("target_delta")
    if own is not None:
        raise ValueError(
            f"Expected target_delta to be a number for scheme={config.scheme!r}, which is meant "
            f"for few units (its own is {own:g}), got target_delta=none: {num_units} ** -1.1 = "
            f"{default_delta(num_units):.3g} is too large."
        )
    return default_delta(num_units)


def default_delta(num_units: int) -> float:
    """num_units ** -1.1: below 1 / num_units, as a delta must be to rule out publishing some unit's
    data whole.
    """
    _validate.positive_int(num_units=num_units)
    return math.exp(-1.1 * math.log(max(2, num_units)))
