"""The host loop from Python: anyone's scheme, arrays, module, loss and metrics, in one call."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from fljax import _deprecation, _near, _validate, schemes
from fljax.accounting.events import PrivacyEvent
from fljax.data import Dataset, arrays
from fljax.data.arrays import Examples
from fljax.schemes import base, exact
from fljax.schemes.base import FederatedAlgorithm, Scheme
from fljax.simulation import config as config_lib
from fljax.simulation import own, result, run, secret_file, seeds
from fljax.simulation.config import Config
from fljax.simulation.devices import mesh, processes
from fljax.simulation.evaluation import Metric
from fljax.simulation.observers import trackers
from fljax.simulation.record import folder
from fljax.simulation.report import run_page
from fljax.simulation.result import Result

Setting = bool | int | float | str | tuple[float, ...] | None
Function = Callable[..., object]
Model = str | tuple[object, Function] | Function  # modules and their classes are called, too


def simulate(
    scheme: str | Scheme | FederatedAlgorithm = config_lib.DEFAULT_SCHEME,
    *,
    data: str | Dataset | Examples | Sequence[Examples] | None = None,
    clients: object = None,
    test_data: Examples | None = None,
    num_classes: int | None = None,
    model: Model | None = None,
    loss: str | Function | None = None,
    metrics: Mapping[str, Function] | None = None,
    event: PrivacyEvent | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    observers: Sequence[run.Observer] = (),
    devices: int | None = None,
    model_devices: int = 1,
    more_rounds: int | None = None,
    secret: str | os.PathLike[str] | None = None,
    passphrase: str | None = None,
    **settings: Setting,
) -> Result:
    """Trains a federated model under differential privacy, and a non-private one beside it.

    What `fljax simulate` does, with anything of one's own: cohorts, calibrated noise, a ledger that
    stops at the budget, checkpoints, report.html. The same call with the same `run_dir` goes on
    with a run that was interrupted, to the same bits; of one that has ended it returns the result.

    Guarantee: as the scheme's `make` states for one round, with its idealisation; the rounds are
    composed by the accountant that `accountant` names. `Result.statement` is the claim in words.
    Of an algorithm or a scheme of one's own, what `event` says is what is accounted: that a round
    keeps to it is the author's responsibility.

    Args:
      scheme: a name of `fljax.schemes`, a scheme, or an algorithm that is built already, which then
        needs `event`, and does with its own loss what it does.
      data: a name as for `--dataset`, a `fljax.data.Dataset`, arrays by name {"x": `[M, ...]`, ..},
        or a list of such arrays, one entry a client. None: what the scheme starts from.
      clients: whose the examples are: the name of a field of integers or strings, integers
        `[num_clients, N]` of rows, padded with -1, or a list of the rows of each client. None: they
        come client by client, or are dealt as `partition` and `num_clients` say.
      test_data: held-out examples, with the fields of `data`; taken to be public.
      num_classes: labels "y" are below it. None: as they are, where the loss is a named one; else
        there are no classes, and no accuracy.
      model: a name as for `--model`; a flax nnx or linen module that takes a batch; a class of nnx
        modules, made as `fljax.models.register` says; or `(params, apply)`, apply of ONE example.
      loss: "cross_entropy", "squared", or `loss(params, example) -> []` of ONE example.
      metrics: name -> `metric(params, apply, examples)`, which gives `[M]` or `[]`. Measured on
        held-out examples at each evaluation, and on each client's own at the end.
      event: what one round of an algorithm does, where `scheme` is one.
      run_dir: folder of the run. None: the next free runs/DATA-SCHEME-NNN.
      observers: who watches.
      devices, model_devices: as for `fljax simulate`. None: one on a CPU, else all.
      more_rounds: beyond those that the run in `run_dir` has, added at each such call: at its
        noise, within its budget. None: none.
      secret: file for the run's 256 secret bits, outside of its folder; the same call needs it
        again. None: seed.secret in the folder.
      passphrase: under which these bits are encrypted (extra `crypto`). None: they are not.
      **settings: any key of config.toml, such as num_rounds, target_epsilon, seed, sampling_prob.

    Returns:
      `Result`.

    Raises:
      ValueError: an unknown setting, or a number out of range; parts that do not fit each other;
        `run_dir` holds another run; a fixed seed with secret or passphrase, or a secret that is not
        the run's. One line; nothing is compiled or written before.
      PrivacyPreconditionError: the data are not what the scheme's claim assumes.
      Interrupted: stopped by a signal, after a checkpoint.
      DiskFullError, CorruptDataError: as their names say.
    """
    config, brought = _of_call(
        scheme, data, clients, test_data, num_classes, model, loss, metrics, event, settings
    )
    for observer in observers:
        for method in ("start", "round", "stop"):
            if not callable(getattr(observer, method, None)):
                raise ValueError(
                    f"Expected observers with start, round and stop, got {observer!r}."
                )
    if devices is not None:
        mesh.as_devices(devices)
    watcher = trackers.Several(observers if processes.first() else ())
    if not isinstance(secret, str | os.PathLike | None):
        raise ValueError(f"Expected secret to be a path, got a {type(secret).__name__}.")
    if not isinstance(passphrase, str | None):
        raise ValueError(f"Expected passphrase to be text, got a {type(passphrase).__name__}.")
    kept = secret_file.Kept(None if secret is None else pathlib.Path(secret), passphrase)
    seeds.check_kept(config, kept)
    where: dict[str, Any] = {
        "devices": devices,
        "model_devices": model_devices,
        "secret": kept,
    }
    chosen = None if run_dir is None else pathlib.Path(run_dir)
    if more_rounds is not None:
        _validate.positive_int(more_rounds=more_rounds)
        if chosen is None or not (chosen / folder.CONFIG).is_file():
            raise ValueError(
                f"Expected run_dir to hold a run with more_rounds={more_rounds}, got "
                f"run_dir={run_dir!r}."
            )
    if chosen is not None and (chosen / folder.CONFIG).is_file():
        where["more_rounds"] = more_rounds
        outcome = run.resume(chosen, watcher, config=config, brought=brought, **where)
    else:
        if chosen is not None and processes.first():
            folder.check_free(chosen)
        outcome = run.launch(run.prepare(config, None, brought), chosen, lambda _: watcher, **where)
    report = outcome.run_dir / folder.REPORT
    if processes.first():
        run_page.write(outcome)
    return result.of(outcome, report)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltConfig:
    """The config of an algorithm that is built already: none. Its noise is a part of it."""

    noise_multiplier: float | None = None


def of_algorithm(algorithm: FederatedAlgorithm, event: PrivacyEvent) -> Scheme:
    """A bare algorithm as a scheme, with what one round of it does."""
    return Scheme(
        summary="an algorithm of the caller's own",
        promise="epsilon",
        Config=BuiltConfig,
        make=lambda config, loss, **options: algorithm,
        event=lambda config: event,
        fitted=base.fitted,
        non_private=lambda config: config,
    )


def _of_call(
    scheme: Any,
    given_data: Any,
    clients: Any,
    test_data: Any,
    num_classes: int | None,
    model: Any,
    loss: Any,
    metrics: Any,
    event: Any,
    settings: Mapping[str, Setting],
) -> tuple[Config, own.Own]:
    """The config that the call stands for, and what it brings beside that."""
    name, itself = _scheme(scheme, event)
    sections: dict[str, dict[str, Any]] = {"scheme": {"scheme": name}}
    for section in config_lib.SECTIONS:
        sections[section] = {}
    _put(sections, itself, settings)
    if num_classes is not None:
        _validate.positive_int(num_classes=num_classes)
    brought = own.NOTHING._replace(metrics=_metrics(metrics))
    dealt = {"dataset": given_data} if isinstance(given_data, str) else {}
    if isinstance(clients, str):
        dealt["client_column"] = clients
    if given_data is not None and not isinstance(given_data, str):
        found, table = _dataset(given_data, test_data, num_classes, dealt.get("client_column"))
        if clients is not None and not isinstance(clients, str):
            if table is not None:
                raise ValueError(
                    "Expected clients=None with data that come client by client, got both."
                )
            table = arrays.client_table(clients, len(next(iter(found.train.values()))))
        brought = brought._replace(dataset=found, table=table)
        dealt["dataset"] = f"{config_lib.OWN}{found.name}"
        if table is not None:
            dealt["partition"] = f"{config_lib.OWN}table"
    elif test_data is not None or num_classes is not None or (clients is not None and not dealt):
        raise ValueError(
            "Expected data of your own with clients, test_data or num_classes, got a name."
        )
    sections["data"] |= dealt
    if isinstance(model, str):
        sections["model"]["model"] = model
    elif model is not None:
        model_name, maker = own.model(model)
        sections["model"]["model"] = f"{config_lib.OWN}{model_name}"
        given = isinstance(model, tuple | nnx.Module) or None
        brought = brought._replace(model=maker, given_params=given)
    if isinstance(loss, str):
        sections["model"]["loss"] = loss
    elif loss is not None:
        loss_name, function = own.loss(loss)
        sections["model"]["loss"] = f"{config_lib.OWN}{loss_name}"
        brought = brought._replace(loss=function)
    return config_lib.from_sections(sections, itself), brought


def _scheme(scheme: Any, event: Any) -> tuple[str, Scheme | None]:
    if isinstance(scheme, FederatedAlgorithm):
        if not isinstance(event, PrivacyEvent):
            raise ValueError(
                "Expected event, a fljax.PrivacyEvent of one round, with an algorithm that is "
                f"built already, got event={event!r}."
            )
        return config_lib.ALGORITHM, of_algorithm(scheme, event)
    if event is not None:
        raise ValueError("Expected event=None with a scheme, which has its own, got an event.")
    if isinstance(scheme, str):
        return scheme, None
    if isinstance(scheme, Scheme):
        return f"{config_lib.OWN}{scheme.Config.__module__}", scheme
    raise ValueError(
        "Expected scheme to be a name, a fljax.Scheme or a fljax.FederatedAlgorithm, got "
        f"{type(scheme).__name__}."
    )


def _put(
    sections: dict[str, dict[str, Any]], itself: Scheme | None, settings: Mapping[str, Setting]
) -> None:
    """Each setting into the section that has its key."""
    scheme = schemes.get(sections["scheme"]["scheme"]) if itself is None else itself
    exact.check_known(scheme, settings)
    kinds = {"scheme": scheme.Config, **config_lib.SECTIONS}
    where = {field.name: name for name, kind in kinds.items() for field in dataclasses.fields(kind)}
    for key in ("dataset", "client_column", "model", "loss"):
        where.pop(key)  # arguments of their own
    arguments = {"dataset": "data", "client_column": "clients"}  # and how they are called here
    for key, value in _deprecation.renamed(settings, where).items():
        if key not in where:
            raise ValueError(
                f"Expected settings to be keys of config.toml, got unknown {key}={value!r}."
                f"{_near.did_you_mean(arguments.get(key, key), [*where, *arguments.values()])}"
            )
        sections[where[key]][key] = config_lib.NONE if value is None else value


def _dataset(
    given: Any, test_data: Any, num_classes: int | None, column: str | None
) -> tuple[Dataset, Any]:
    if not isinstance(given, Dataset):
        return arrays.dataset(given, test_data, num_classes=num_classes, column=column)
    if test_data is not None:
        raise ValueError("Expected test_data=None with a Dataset, which has its own, got both.")
    count = num_classes or given.num_classes or None
    found, table = arrays.dataset(given.train, given.test, num_classes=count, column=column)
    return found._replace(name=given.name, covariance=given.covariance), table


def _metrics(metrics: Any) -> Mapping[str, Metric]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(callable(metric) for metric in metrics.values()):
        raise ValueError(f"Expected metrics to be functions by name, got {metrics!r}.")
    return dict(metrics)
