"""`fljax attack`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from fljax import _validate, attacks, schemes
from fljax.attacks import rounds
from fljax.cli import _args, _attack_observed, _output, _run_files
from fljax.data import builtin
from fljax.simulation.record import folder

_DESCRIPTION = """Attacks a scheme on real digits, at several budgets, next to what the scheme
certifies.

With --attack inversion there are two attackers, both of whom know model, label and mechanism: one
inverts the gradient and learns the candidates only afterwards, the other knows them and picks one.
Schemes with an epsilon certify how often anybody can pick right; channels certify a squared error,
of an attacker who knows the covariance of training data. inversion_lbfgs searches by L-BFGS;
inversion_gauss_newton by damped Gauss-Newton steps, and knows mean and covariance of the training
split's images; inversion_feature_prior knows which features they usually have; dlg searches for
label and image together. With --batch-size they look for all images of a batch, by their labels, or
with --read-labels by those that the last layer's bias tells; with --clients behind the sum of
several clients, with --local-epochs behind several steps of each. recursive solves linear equations
layer by layer, behind leaky ReLUs; first_dense reads an image off a first layer that is dense.
imprint and fishing are of a malicious server, which sends a model that is made for it: a layer
whose gradient holds the images, or a head through which one image of a batch alone, of --batch-size
images, has a gradient. The certificate is that of an honest server's round, for whoever sees only
what the mechanism releases.

With --attack lira, rmia or another attack on membership models are trained by the scheme, on
--dataset by --model, and who was trained on is inferred; of text, too (--dataset roles --model
token_lstm), where exposure ranks canaries, texts of drawn symbols among those of the data.
white_box looks at the weights, too: how much of each example's gradient is in them.
gradient_alignment sees the models between all rounds, and how far each moved along an example's
gradient. subject_lira tells persons, each of four examples at several clients. Any other attack is
a game: thousands of runs with one unit and without it, and the epsilon that their scores prove. The
first line of each table is the same attack without noise.

With --attack symbols a round has one text, of --dataset by --model, whole or by --lora. Which
symbols the text has is read off the update, and which of the candidates it is, beside the share of
candidates that anybody tells by the certificate.

With --attack decepticons a malicious server sends a decoder whose attention notes each token's
place and text, and whose MLPs' gradient holds them: a batch of texts is read off one update. Which
of the candidates is among them is held to the certificate, which is the same for every model that
is sent, for whoever sees only what the mechanism releases.

With --attack properties a round has one client's images, --batch-size of them, and its update says
whether they are turned, and the mix of their labels. No bound is taken.

With --attack model_inversion a model is trained by the scheme on --pool images, and whoever holds
it reads off its gradient what each class looks like. No bound is taken.

With --settings it is the scheme of a run's folder, or of a TOML, with its own numbers but for few
clients, or of an inversion or symbols one record; its data, and of attacks on membership or symbols
its model, beside the weights that the folder of a run with LoRA keeps. Without --budgets its own
noise is attacked, and what that spends here is the budget.

With --sweep an inversion, or a malicious server, is set on many schemes, and each scheme's
signal-to-noise ratio stands over its noise beside the largest that the certificate allows, in one
picture.

Writes config.toml, attack.json and report.html into one folder, of a sweep sweep.svg, too. Exits
with 1 where a bound did not hold.
"""

_GAME_BUDGETS = (0.5, 1.0, 2.0, 4.0)
_LIRA_ROUNDS = 60


def _fits(name: str, attack: str) -> bool:
    """Whether the attack can be made on the scheme: it promises something (if nats, of noise in
    records) and trains any model; lira only where the unit is one of the examples that it tells
    apart.
    """
    scheme = schemes.get(name)
    if scheme.promise == "none" or scheme.needs_network:
        return False
    if scheme.promise == "nats" and scheme.uploads_seen:  # of noise on uploads see `fljax audit`
        return False
    inverts = attack in (*attacks.INVERSIONS, *attacks.MALICIOUS, attacks.PROPERTIES)
    of_models = attack in (attacks.TEXTS, attacks.SYMBOLS, attacks.CLASSES)
    if inverts or (of_models and scheme.promise == "epsilon"):
        return True
    if scheme.promise != "epsilon":
        return False
    unit = scheme.event(rounds.config(name, noise_multiplier=1.0)).privacy_unit
    if attack in attacks.OF_SUBJECTS:
        return bool(unit == "subject")
    return bool(unit != "client")


def _trains(attack: str) -> bool:
    """Whether the attack is on a model by its name."""
    return attack in (*attacks.MEMBERSHIP, attacks.TEXTS, attacks.SYMBOLS, attacks.CLASSES)


def _against(attack: str) -> list[str]:
    return [name for name in rounds.promising() if _fits(name, attack)]


_ATTACK = (
    f"{', '.join(attacks.INVERSIONS)} reconstruct images from one round; "
    f"{' and '.join(attacks.MALICIOUS)}, of a malicious server, too; "
    f"{', '.join(attacks.MEMBERSHIP)} tell who was trained on; {attacks.SYMBOLS} tells which "
    f"symbols a text has, from its update; {attacks.TEXTS} reads batches of texts, of a malicious "
    f"server; {attacks.PROPERTIES} tells what all of a client's "
    f"images share, from its update; {attacks.CLASSES} tells what each class looks like, from the "
    f"trained model; {', '.join(attacks.names())} and "
    "PACKAGE.ATTACK are games about one unit."
)
_SCHEME = (
    f"One of {', '.join(_against('inversion'))}; with --attack lira one of "
    f"{', '.join(_against('lira'))}."
)


_SETTINGS = (
    "A run's folder, or a TOML of fljax simulate: attack its scheme, data and model. None: scheme, "
    "with numbers of a small world."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to attack, and how hard."""

    scheme: Annotated[str, tyro.conf.arg(help=_SCHEME)] = "higradavg"
    attack: Annotated[str, tyro.conf.arg(help=_ATTACK)] = "inversion"
    settings: Annotated[pathlib.Path | None, tyro.conf.arg(help=_SETTINGS)] = None
    sweep: tuple[str, ...] | None = None
    """Schemes to attack side by side, in place of scheme; without a name all that fit."""
    budgets: tuple[float, ...] | None = None
    """Epsilons at delta, or nats a use for channels; ascending. none: what the noise of settings
    spends, or four, from well hidden to in plain sight.
    """
    delta: float = 1e-5
    """delta that goes with an epsilon."""
    dataset: str | None = None
    """Whose images are reconstructed, or whose examples are told: a name as for fljax simulate.
    none: those of settings, or digits.
    """
    model: str | None = None
    """What is trained and asked for members, or whose gradient is inverted: a name as for fljax
    simulate. none: that of settings, or mlp; of an inversion DLG's LeNet.
    """
    lora: int | None = None
    """Rank of small matrices beside the model's linear layers, which alone are trained; the layers'
    weights are those of the model's folder or of settings, or drawn. none: all of it is trained.
    """
    targets: int = 10
    """Images or texts, which are the candidates as well."""
    batch_size: int = 1
    """Images behind one upload, of inversions, imprint and fishing, or texts, of decepticons: the
    one that is attacked and others of the training split; of properties images of a client.
    """
    clients: int = 1
    """Of searches for images: clients with batch_size images each, of whose sum alone is seen."""
    local_epochs: int = 1
    """Of searches for images: passes of a client over its images in a round, of dp_fedavg and other
    schemes whose clients train.
    """
    local_batch_size: int | None = None
    """Images in a step of these passes. none: batch_size."""
    read_labels: bool = False
    """Searches for images are not told labels, but read them off the last layer's bias."""
    repeats: int = 4
    """Rounds of each image or text, with noise of their own."""
    iterations: int = 400
    """Steps of the inversion; of inversion_gauss_newton products with the Jacobian."""
    shadows: int = 16
    """Shadow models of attacks on membership."""
    pool: int = 160
    """Examples of their pool, half of them trained on; of model_inversion all of them; of
    properties clients.
    """
    num_rounds: int | None = None
    """Rounds of training before them, or of a run of a game; of fishing those of the same batch,
    each for another feature. none: 60; 1 for a game; for fishing 1, or four times the images that a
    batch of more than there are classes has of one.
    """
    trials: int = 4000
    """Runs of a game in each of its two worlds."""
    learning_rate: float | None = None
    """Of that training. none: that of settings; or of 2, 0.6 and 0.2 the one by which the target
    memorises most without noise; or 0.4 for text.
    """
    seed: int = 0
    """Of everything random."""
    run_dir: pathlib.Path | None = None
    """Folder for what is found, empty or not there yet. None: the next free
    runs/attack-SCHEME-NNN.
    """

    def __post_init__(self) -> None:
        schemes.check_name(scheme=self.scheme)
        if self.attack not in attacks.PROGRAMS:
            attacks.check_name(attack=self.attack)
            rounds.check_name(scheme=self.scheme, attack=self.attack)
        else:
            of_models = self.attack in (attacks.TEXTS, attacks.SYMBOLS, attacks.CLASSES)
            which = self.attack if of_models else "inversion"
            _validate.one_of(_against(which), scheme=self.scheme)
        if self.attack in attacks.MEMBERSHIP and not _fits(self.scheme, self.attack):
            whom = "subjects" if self.attack in attacks.OF_SUBJECTS else "examples or subjects"
            raise ValueError(
                f"Expected a scheme with an epsilon for {whom} with attack={self.attack!r}, one of "
                f"{_against(self.attack)}, got scheme={self.scheme!r}."
            )
        if self.dataset is not None:
            builtin.check_name(dataset=self.dataset)
        game = self.attack not in attacks.PROGRAMS
        if game and self.dataset is not None:
            raise ValueError(
                "Expected no dataset with a game, whose data are the attacker's, got "
                f"dataset={self.dataset!r}."
            )
        if (game or self.attack == "recursive") and self.model is not None:
            raise ValueError(
                "Expected no model with a game or recursive, which have their own, got "
                f"model={self.model!r}."
            )
        if self.model is not None:
            from fljax import models  # flax is slow to import

            models.check_name(model=self.model)
        if self.lora is not None:
            _validate.positive_int(lora=self.lora)
            trains = _trains(self.attack) and self.attack != attacks.TEXTS
            if self.model is None or not trains:
                raise ValueError(
                    "Expected model and an attack on membership or symbols with lora, got "
                    f"lora={self.lora}, model={self.model!r}, attack={self.attack!r}."
                )
        _validate.open_unit(delta=self.delta)
        _validate.positive_int(
            targets=self.targets, repeats=self.repeats, iterations=self.iterations
        )
        _validate.positive_int(batch_size=self.batch_size)
        _validate.positive_int(clients=self.clients, local_epochs=self.local_epochs)
        if self.local_batch_size is not None:
            _validate.positive_int(local_batch_size=self.local_batch_size)
        several = (*attacks.SEARCHES, *attacks.MALICIOUS, attacks.TEXTS, attacks.PROPERTIES)
        if self.batch_size > 1 and self.attack not in several:
            raise ValueError(
                f"Expected batch_size 1 with attack={self.attack!r}, or one of "
                f"{', '.join(several)}, got batch_size={self.batch_size}."
            )
        _validate.positive_int(shadows=self.shadows, pool=self.pool, trials=self.trials)
        if self.sweep is not None:
            self._check_sweep()
        behind = (self.scheme,) if self.sweep is None else self.sweep
        nats = any(schemes.get(name).promise == "nats" for name in behind)
        if nats and self.batch_size > 1 and self.attack in (*attacks.SEARCHES, "imprint"):
            raise ValueError(
                f"Expected batch_size 1 with {self.attack} on a scheme that promises nats: which "
                "of a batch's images is the one is told by candidates, which its attacker has not, "
                f"got batch_size={self.batch_size}."
            )
        _attack_observed.check(self, attacks.SEARCHES)
        if self.num_rounds is not None:
            _validate.positive_int(num_rounds=self.num_rounds)
        if nats and self.attack == "fishing" and (self.num_rounds or 1) > 1:
            raise ValueError(
                "Expected num_rounds=1 with fishing on a scheme that promises nats: which round "
                "caught the image is told by candidates, which its attacker has not, got "
                f"num_rounds={self.num_rounds}."
            )
        if self.trials < 8:
            raise ValueError(f"Expected trials >= 8, got trials={self.trials}.")
        if self.learning_rate is not None:
            _validate.positive(learning_rate=self.learning_rate)
        _validate.non_negative_int(seed=self.seed)
        if not (self.shadows >= 4 and 8 <= self.pool <= 1000):
            raise ValueError(
                f"Expected shadows >= 4 and pool in [8, 1000], got shadows={self.shadows}, "
                f"pool={self.pool}."
            )
        if self.budgets is not None:
            if not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
                raise ValueError(
                    "Expected budgets in ascending order, one at least, got "
                    f"budgets={self.budgets!r}."
                )
            for budget in self.budgets:
                _validate.positive(budgets=budget)
        if not 2 <= self.targets <= 300:
            raise ValueError(f"Expected targets in [2, 300], got targets={self.targets}.")

    def _check_sweep(self) -> None:
        """Raises ValueError."""
        if self.attack not in (*attacks.INVERSIONS, *attacks.MALICIOUS):
            raise ValueError(
                "Expected an inversion or a malicious server with sweep, one of "
                f"{', '.join((*attacks.INVERSIONS, *attacks.MALICIOUS))}, got "
                f"attack={self.attack!r}."
            )
        if self.settings is not None:
            raise ValueError(
                f"Expected no settings with sweep, got settings={str(self.settings)!r}."
            )
        if self.batch_size > 1 and self.attack in attacks.INVERSIONS:
            raise ValueError(
                "Expected batch_size 1 with an inversion and sweep, whose schemes do not clip "
                f"alike, got batch_size={self.batch_size}."
            )
        if len(set(self.sweep or ())) < len(self.sweep or ()):
            raise ValueError(
                f"Expected each scheme once in sweep, got {' '.join(self.sweep or ())}."
            )
        for name in self.sweep or ():
            schemes.check_name(sweep=name)
            _validate.one_of(_against(self.attack), sweep=name)


def main(args: Sequence[str]) -> int:
    """Attacks, prints the table, writes the folder."""
    try:
        options = _args.parse(Options, args, prog="fljax attack", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.cli import (
        _attack,
        _attack_classes,
        _attack_game,
        _attack_membership,
        _attack_properties,
        _attack_sweep,
        _attack_symbols,
        _attack_texts,
        _own,
    )

    own = None if options.settings is None else _own.read(options.settings)
    options = _settled(options, own)
    game = options.attack not in attacks.PROGRAMS
    member = options.attack in attacks.MEMBERSHIP
    kind: Any = _attack_game if game else _attack_membership if member else _attack
    if options.attack == attacks.SYMBOLS:
        kind = _attack_symbols
    if options.attack == attacks.TEXTS:
        _attack_texts.check_model(options)
        kind = _attack_texts
    if options.attack == attacks.PROPERTIES:
        kind = _attack_properties
    if options.attack == attacks.CLASSES:
        kind = _attack_classes
    if options.sweep is not None:
        kind = _attack_sweep
        options = dataclasses.replace(options, sweep=options.sweep or tuple(_swept(options)))
    elif own is None and options.budgets is None:
        budgets = _GAME_BUDGETS if game else _attack.BUDGETS[schemes.get(options.scheme).promise]
        options = dataclasses.replace(options, budgets=budgets)
    if options.num_rounds is None and options.attack != "fishing":
        options = dataclasses.replace(options, num_rounds=1 if game else _LIRA_ROUNDS)
    behind = options.scheme if options.sweep is None else "sweep"
    with _run_files.opened(options.run_dir, f"attack-{behind}", options) as run_dir:
        # One step for each budget and one without noise, and of an inversion one for all together;
        # of a sweep one for each scheme.
        count = 1 + len(options.budgets or ((),)) + (kind is _attack)
        if options.sweep is not None:
            count = 1 + len(options.sweep)
        found = kind.run(options, own, _output.steps(count))
    _run_files.print_table(kind.HEAD, [kind.cells(line) for line in found.lines])
    if kind is _attack:
        looks = [_attack.looks_cells(line) for line in found.lines]
        _run_files.print_table(_attack.LOOKS_HEAD, looks)
    print(f"bound: {found.bound}; {found.standing}")
    rows = [
        {name: _plain(value) for name, value in line._asdict().items() if name != "images"}
        for line in found.lines
    ]
    results: dict[str, Any] = {"bound": found.bound, "standing": found.standing, "rows": rows}
    _run_files.write_json(run_dir / "attack.json", results)
    title = kind.TITLE if options.sweep is not None else f"{kind.TITLE} through {options.scheme}"
    report = _run_files.write_report(run_dir, title, kind.sections(options, found))
    if options.sweep is not None:
        results["picture"] = run_dir / _attack_sweep.PICTURE
        folder.write_atomically(results["picture"], found.picture + "\n")
    _output.give({"run_dir": run_dir, "report": report, **results})
    broken = [line for line in found.lines if line.holds is False]
    whose = lambda line: "" if options.sweep is None else f"{line.scheme} at "
    return _run_files.verdict([f"{whose(line)}budget {line.budget:g}" for line in broken])


def _swept(options: Options) -> list[str]:
    """The schemes of a sweep that names none: those that the options fit."""
    fit = _against(options.attack)
    several = options.attack == "fishing" and (options.num_rounds or 1) > 1
    if several or (options.attack == "imprint" and options.batch_size > 1):
        fit = [name for name in fit if schemes.get(name).promise != "nats"]
    return fit


def _settled(options: Options, own: Any) -> Options:
    """The options, with what `own` settings, or else nobody, says of scheme, data and model.

    Raises:
      ValueError: the attack is not for that scheme, neither says how much noise there is, both say
        a learning rate, or settings of LoRA do not keep what it is trained beside.
    """
    told: dict[str, Any] = {}
    if own is not None:
        told["scheme"] = own.scheme
        if options.learning_rate is not None:
            raise ValueError(
                "Expected no learning_rate with settings, which say it, got "
                f"learning_rate={options.learning_rate}."
            )
        if options.budgets is None and own.config.noise_multiplier is None:
            raise ValueError(
                "Expected budgets with settings that leave the noise to be calibrated, got none."
            )
    text = options.attack in (attacks.TEXTS, attacks.SYMBOLS, "exposure")
    if options.attack in attacks.PROGRAMS and options.dataset is None:
        told["dataset"] = "roles" if text else "digits"
        if own is not None:
            told["dataset"] = own.data.dataset
    if _trains(options.attack) and options.model is None:
        told["model"] = "token_lstm" if text else "mlp"
        if options.attack == attacks.TEXTS:
            told["model"] = "decoder:tiny"
        if own is not None:
            if own.lacks_base:
                raise ValueError(
                    "Expected settings to be the folder of a run, which keeps what LoRA is trained "
                    f"beside, got another with lora={own.model.lora}: or name model and lora, for "
                    "weights that are drawn."
                )
            told["model"], told["lora"] = own.model.model, own.model.lora
    return dataclasses.replace(options, **told)


def _plain(value: Any) -> Any:
    """Rates by the names of their fields."""
    return [each._asdict() for each in value] if isinstance(value, tuple) else value
