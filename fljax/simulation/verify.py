"""Whether a run's folder is as the run left it: the hash chain, every file, the ledger replayed and
epsilon recomputed by two accountants. Nothing is written, and no code is imported that only the
folder names.
"""

import dataclasses
import functools
import json
import math
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fljax import accounting
from fljax.accounting import Ledger, events
from fljax.accounting.events import PrivacyEvent
from fljax.errors import UnsupportedEventError
from fljax.simulation import (
    base_model,
    budget,
    fingerprint,
    job,
    own,
    secret_file,
    seeds,
    trained,
)
from fljax.simulation import config as config_lib
from fljax.simulation.record import chain, checkpoint, client_states, folder

_EXPORTS = ("model.safetensors", "model.npz", "model.orbax")
_KNOWN = {
    folder.CONFIG,
    folder.METRICS,
    folder.PRIVACY,
    folder.REPORT,
    folder.CHECKPOINTS,
    folder.MODEL,
    folder.BASE,
    folder.CANARIES,
    folder.SESSIONS,
    folder.SEED,
    folder.FINGERPRINT,
    folder.CHAIN,
    ".lock",
}
# What other programs write, or what stands for nothing that is claimed.
_BESIDE = {client_states.CLIENTS, "trace", "tensorboard", "wandb"}
_LEFT = "as a kill may leave it; no reader reads it"
_BESIDE_A_CLAIM = ("information", "as_printed")  # of privacy.json
_ROUNDING = 1e-9  # relative, of an epsilon computed again on another machine
_MOST_REPLAYED = 25


_Part = Callable[[pathlib.Path, list[chain.Link]], Iterator["Check"]]


class Check(NamedTuple):
    """what: was looked at. found: in words. fits: whether it is as the run left it."""

    what: str
    found: str
    fits: bool


class Verified(NamedTuple):
    """head: the chain's last link; "" where it is damaged. rounds: that it holds. closed: whether
    the run has ended and its report been written. not_shown: sentences.
    """

    head: str
    rounds: int
    closed: bool
    checks: list[Check]
    not_shown: list[str]

    @property
    def fits(self) -> bool:
        """Whether all checks do."""
        return all(check.fits for check in self.checks)


def run(
    run_dir: str | pathlib.Path,
    *,
    head: str | None = None,
    data: bool = False,
    secret: secret_file.Kept = secret_file.IN_FOLDER,
) -> Verified:
    """Holds every file of a run's folder against the others.

    Guarantee: where all checks fit, every file that is named is what a run wrote whose chain has
    this head, and epsilon is no less than its ledger spends. It is not shown that the rounds were
    computed as the files say, and whoever writes all of the folder anew, or cuts it back to an
    earlier checkpoint, is found only by a head that was published before.

    Args:
      run_dir: folder of a run of `fljax simulate` or `fljax.simulate` that nobody writes now.
      head: a link that was published: the chain must have it.
      data: also load what the config names, as `fljax simulate` would, and hold data, partition,
        model and scheme against the fingerprint. This imports code that the config names by path.
      secret: where the run's secret is, which `data` needs. Of one that is not in the folder, or is
        encrypted, it is checked that it is the run's.

    Raises:
      ValueError: no folder of a run; or with `data`, one of what a caller of `fljax.simulate`
        brought, which no name leads to, or without its secret seed; or a secret is given, and the
        seed is fixed.
    """
    where = pathlib.Path(run_dir).expanduser()
    if not (where / folder.CONFIG).is_file() or not (where / folder.FINGERPRINT).is_file():
        raise ValueError(
            f"Expected {where} to be the folder of a run of `fljax simulate`, with a "
            f"{folder.CONFIG} and a {folder.FINGERPRINT}, got none there."
        )
    if data or secret != secret_file.IN_FOLDER:
        _check_loadable(where, secret, data)
    try:
        links = chain.read(where)
    except chain.ChainError as reason:
        checks = [Check("chain", str(reason), False), *_strangers(where)]
        return Verified("", 0, False, checks, _not_shown(where, [], data))
    checks = [Check("chain", f"{len(links)} links, each follows from the one before", True)]
    if head is not None:
        known = any(link.head == head for link in links)
        said = "is a link of the chain" if known else "is no link of the chain: it was made anew"
        checks.append(Check("published head", f"{head} {said}", known))
    parts: dict[str, _Part] = {
        "beginning": functools.partial(_begun, secret),
        folder.METRICS: _metrics,
        "ledger": _ledger,
        folder.CHECKPOINTS: _checkpoints,
        "files": _closed,
    }
    for what, part in (
        parts | ({"data": functools.partial(_data, secret)} if data else {})
    ).items():
        checks += _named(what, part, where, links)
    closed = links[-1].kind == "closed"
    checks += [*_strangers(where, ended=closed), *_exports(where)]
    rounds = sum(link.kind == "round" for link in links)
    return Verified(links[-1].head, rounds, closed, checks, _not_shown(where, links, data))


def _check_loadable(where: pathlib.Path, secret: secret_file.Kept, data: bool) -> None:
    sections = config_lib.from_toml(folder.read_text(where / folder.CONFIG), source=folder.CONFIG)
    random = sections["run"]["seed"] == config_lib.RANDOM
    if not random and secret != secret_file.IN_FOLDER:
        raise ValueError("Expected a random seed with secret or passphrase, got a fixed one.")
    if not data:
        return
    own = [
        value
        for section in sections.values()
        for value in (section.values() if isinstance(section, dict) else ())
        if isinstance(value, str) and value.startswith(config_lib.OWN)
    ]
    if own:
        raise ValueError(
            f"Expected data, model and scheme that go by names to load them again, got {own[0]!r}: "
            "the same call of fljax.simulate with this run_dir holds its own against the run."
        )
    if random:
        secret_file.read(secret, where)  # with which the digests of the data are keyed


def _named(what: str, part: _Part, where: pathlib.Path, links: list[chain.Link]) -> list[Check]:
    """The checks of a part; what it cannot read, which anybody may have written, is a check that
    does not fit.
    """
    checks = []
    try:
        for check in part(where, links):
            checks.append(check)
    except Exception as reason:
        first = (str(reason).strip().splitlines() or [""])[0][:300]
        checks.append(Check(what, f"cannot be read: {type(reason).__name__}: {first}", False))
    return checks


def _held(what: str, wrong: str, right: str) -> Check:
    """A check that fits where nothing is wrong."""
    return Check(what, wrong or right, not wrong)


def _of(links: list[chain.Link], kind: str) -> list[dict[str, Any]]:
    return [link.body for link in links if link.kind == kind]


def _begun(
    secret: secret_file.Kept, where: pathlib.Path, links: list[chain.Link]
) -> Iterator[Check]:
    """What the run began with."""
    begins = _of(links, "begin")
    first, last = begins[0], begins[-1]
    text = (where / folder.CONFIG).read_bytes()
    wrong = "" if chain.digest(text) == last["config_file"] else "is not the one of the run"
    yield _held(folder.CONFIG, wrong, "as the run began with it")
    kept = ("config", "fingerprint", "round_does", "code")
    odd = [name for begin in begins for name in kept if begin[name] != first[name]]
    yield _held("beginnings", f"another {odd[0]} later on" if odd else "", "of one run")
    found = fingerprint.read(where)
    assert found is not None
    wrong = ""
    if fingerprint.digest(found) != first["fingerprint"]:
        wrong = "is not the one of the run"
    elif found["config"] != first["config"]:
        wrong = "is of another config"
    yield _held(folder.FINGERPRINT, wrong, "digests of the data as the run began with them")
    path = secret.path(where)
    if secret != secret_file.IN_FOLDER or (path.exists() and not secret_file.is_sealed(path)):
        same = seeds.name(secret_file.read(secret, where)) == found["seed"]
        yield _held(path.name, "" if same else "is of another run", "of this run")


def _metrics(where: pathlib.Path, links: list[chain.Link]) -> Iterator[Check]:
    """A line for each round, in order."""
    path, rounds = where / folder.METRICS, _of(links, "round")
    lines = path.read_bytes().splitlines(keepends=True)
    wrong = ""
    for number, told in enumerate(rounds, start=1):
        if told["round"] != number:
            wrong = f"round {told['round']} stands in the chain where round {number} is due"
        elif len(lines) < number:
            wrong = f"line {number} is missing"
        elif chain.digest(lines[number - 1].removesuffix(b"\n")) != told["metrics"]:
            wrong = f"line {number} is not what round {number} wrote"
        elif json.loads(lines[number - 1])["epsilon"] != told["epsilon"]:
            wrong = f"line {number} has another epsilon than the chain"
        if wrong:
            break
    # A kill may come between a line and its link.
    more = len(lines) - len(rounds) - (links[-1].kind != "closed")
    if not wrong and more > 0:
        wrong = f"{len(lines) - len(rounds)} lines more than the chain has rounds"
    yield _held(folder.METRICS, wrong, f"{len(rounds)} rounds, in order")


def _ledger(where: pathlib.Path, links: list[chain.Link]) -> Iterator[Check]:
    """The ledger replayed, and epsilon of it by two accountants."""
    does, rounds = _of(links, "begin")[0]["round_does"], _of(links, "round")
    event, delta = events.from_json(does["event"]), float(does["delta"])
    uses = [0, *(told["uses"] for told in rounds)]
    yield _counted(where, uses)
    path = where / folder.PRIVACY
    if path.exists() or links[-1].kind == "closed":
        claim = folder.read_json(path)
        wrong = _misclaimed(where, claim, links, event, uses)
        yield _held(folder.PRIVACY, wrong, f"the claim of {claim.get('rounds')} rounds")
    told = rounds[-1]["epsilon"] if rounds else math.inf
    if not math.isfinite(float(told)):
        yield Check("epsilon", "none is claimed that could be recomputed", True)
        return
    yield from _epsilons(does, delta, rounds)


def _counted(where: pathlib.Path, uses: list[int]) -> Check:
    """Whether a round's event counts after each round as often as its scheme says."""
    last = f"counts {uses[-1]} after {len(uses) - 1} rounds"
    if uses != sorted(uses) or 0 in uses[1:]:
        return Check("ledger", "does not count every round", False)
    sections = config_lib.from_toml(folder.read_text(where / folder.CONFIG), source=folder.CONFIG)
    found = config_lib.scheme_of(sections)
    if found is None:
        grows = uses == sorted(set(uses))
        asked = f"{last}, as only its scheme can say, which --data asks"
        return Check("ledger", last if grows else asked, True)
    scheme, scheme_config = found
    for number, count in enumerate(uses[1:], start=1):
        wanted = budget.uses_of(scheme, scheme_config, number)
        if count != wanted:
            wrong = f"counts {count} after round {number}, where its scheme counts {wanted}"
            return Check("ledger", wrong, False)
    return Check("ledger", last, True)


def _misclaimed(
    where: pathlib.Path,
    claim: dict[str, Any],
    links: list[chain.Link],
    event: PrivacyEvent,
    uses: list[int],
) -> str:
    """What is wrong with privacy.json, in words; "" where it is what the chain and the newest
    checkpoint say.
    """
    does, told = _of(links, "begin")[0]["round_does"], _of(links, "round")
    steps = checkpoint.committed(where)
    done = claim.get("rounds")
    least = len(told) if links[-1].kind == "closed" else max(steps, default=0)
    if not isinstance(done, int) or not least <= done <= len(told):
        return f"is of {done} rounds, the chain of {len(told)}"
    ledger = Ledger(
        privacy_unit=event.privacy_unit, neighboring_relation=event.neighboring_relation
    )
    if done and does["search"] is None:
        ledger.append(event, uses[done])
    elif done:
        ledger.append(_all_of(does, uses[done]))
    wanted = {
        "epsilon": told[done - 1]["epsilon"] if done else 0.0,
        "ledger": ledger.to_json(),
        **{name: does[name] for name in ("delta", "accountant", "num_units")},
        "privacy_unit": event.privacy_unit,
        "neighboring_relation": str(event.neighboring_relation),
    }
    odd = [name for name, value in wanted.items() if claim.get(name) != value]
    if odd:
        return f"has another {odd[0]} than {done} rounds of the chain"
    if steps:
        meta = where / folder.CHECKPOINTS / str(steps[-1]) / "meta" / "metadata"
        kept = folder.read_json(meta)["ledger"]
        odd = sorted({*claim, *kept} - {*claim.keys() & kept.keys(), *_BESIDE_A_CLAIM})
        if steps[-1] == done:
            odd += [name for name in kept if claim.get(name) != kept[name]]
        if odd:
            return f"has another {odd[0]} than the newest checkpoint"
    return ""


def _all_of(does: dict[str, Any], uses: int) -> PrivacyEvent:
    """What so many uses of a round's event are, in each try of a search if there was one."""
    event = events.from_json(does["event"]).repeat(uses)
    if does["search"] is None:
        return event
    best = events.RepeatAndSelect(event.mechanism, **does["search"])
    return dataclasses.replace(event, mechanism=best)


def _spent(event: PrivacyEvent, delta: float, method: Any) -> accounting.Spent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accounting.spent(event, delta=delta, method=method)


def _epsilons(does: dict[str, Any], delta: float, rounds: list[dict[str, Any]]) -> Iterator[Check]:
    """Epsilon again by the run's accountant, after up to 25 of the rounds, and by another one."""
    method = does["accountant"]
    step = -(-len(rounds) // _MOST_REPLAYED)
    some = sorted({*range(step, len(rounds) + 1, step), len(rounds)})
    wrong, before = "", 0.0
    for number in some:
        told, uses = float(rounds[number - 1]["epsilon"]), rounds[number - 1]["uses"]
        again = _spent(_all_of(does, uses), delta, method).epsilon_upper
        if not told >= again * (1 - _ROUNDING):
            wrong = wrong or f"{told!r} after round {number} is less than {again!r}"
        if told < before:
            wrong = wrong or f"falls at round {number}"
        before = told
    yield _held("epsilon", wrong, f"{told:.6g} after {len(rounds)} rounds, again by {method}")
    whole, found = _all_of(does, rounds[-1]["uses"]), []
    for other in accounting.METHODS:
        if other == method:
            continue
        try:
            found.append(_spent(whole, delta, other))
        except (UnsupportedEventError, ValueError):
            continue
    if not found:
        yield Check("second accountant", "none has a bound for such rounds", True)
        return
    # What proves most from below; without that, the tightest from above.
    best = max(found, key=lambda one: (one.epsilon_lower, -one.epsilon_upper))
    said = f"{best.method} proves [{best.epsilon_lower:.6g}, {best.epsilon_upper:.6g}]"
    below = told < best.epsilon_lower * (1 - _ROUNDING)
    yield _held("second accountant", f"{said}, more than {told:.6g}" if below else "", said)


def _checkpoints(where: pathlib.Path, links: list[chain.Link]) -> Iterator[Check]:
    """Every byte of each."""
    told = {body["step"]: body["state"] for body in _of(links, "checkpoint")}
    steps = checkpoint.committed(where)
    path = where / folder.CHECKPOINTS
    # "02", or digits of another script, would be numbers, and no step's folder.
    others = sorted(entry.name for entry in path.glob("*") if entry.name not in map(str, steps))
    if links[-1].kind != "closed":
        left = [name for name in others if ".orbax-checkpoint-tmp" in name or name == ".room"]
        others = [name for name in others if name not in left]
        for name in left:
            yield Check(f"{folder.CHECKPOINTS}/{name}", _LEFT, True)
    if others:
        yield Check(f"{folder.CHECKPOINTS}/{others[0]}", "is no checkpoint of the run", False)
    for step in steps:
        name, wrong = f"{folder.CHECKPOINTS}/{step}", ""
        if step not in told:
            yield Check(name, "is in no link of the chain", False)
            continue
        try:
            _, meta = checkpoint.read(where, step)
        except checkpoint.CheckpointError as reason:
            wrong = str(reason)
        else:
            if meta["digest"] != told[step]:
                wrong = "has another state than the run wrote"
        yield _held(name, wrong, "the state that the run wrote")
    if links[-1].kind == "closed" and told and max(told) not in steps:
        yield Check(f"{folder.CHECKPOINTS}/{max(told)}", "is missing", False)


def _closed(where: pathlib.Path, links: list[chain.Link]) -> Iterator[Check]:
    """The files as they were when the report was written."""
    if links[-1].kind != "closed":
        if (where / folder.REPORT).exists() and not _of(links, "closed"):
            yield Check(folder.REPORT, "is in no link of the chain", False)
        return
    told, now = links[-1].body["files"], chain.files(where)
    for name in sorted({*told, *now}):
        if told.get(name) != now.get(name):
            missing = "is missing" if name not in now else "is not the one of the run"
            extra = "is in no link of the chain" if name not in told else missing
            yield Check(name, extra, False)
    if told == now:
        yield Check("files", f"{len(now)} as they were when the run ended", True)


def _strangers(where: pathlib.Path, *, ended: bool = True) -> Iterator[Check]:
    """Files that no run writes, or not to their end."""
    exports = {*_EXPORTS, *(f"{name}.json" for name in _EXPORTS)}
    for path in sorted(where.iterdir()):
        known = path.name.removeprefix(".").removesuffix(".tmp")
        if not ended and known in _KNOWN and path.name == f".{known}.tmp":
            yield Check(path.name, _LEFT, True)
        elif path.name not in _KNOWN | _BESIDE | exports:
            yield Check(path.name, "is no file of a run", False)


def _exports(where: pathlib.Path) -> Iterator[Check]:
    """What `fljax export` wrote into the folder."""
    for name in _EXPORTS:
        beside = where / f"{name}.json"
        if (where / name).exists() or beside.exists():
            yield from _named(name, functools.partial(_export, name), where, [])


def _export(name: str, where: pathlib.Path, links: list[chain.Link]) -> Iterator[Check]:
    about = folder.read_json(where / f"{name}.json")
    told = folder.read_json(where / folder.PRIVACY)
    beside = {part: told[part] for part in _BESIDE_A_CLAIM if part in told}
    wrong = ""
    if about["rounds"] not in checkpoint.committed(where):
        wrong = f"is of {about['rounds']} rounds, of which no checkpoint is left"
    else:
        state, meta = checkpoint.read(where, about["rounds"])
        kept = meta["ledger"]
        if told.get("rounds") != about["rounds"]:  # an earlier claim told other numbers beside it
            beside = {part: about["claim"].get(part) for part in beside}
        described = folder.read_json(where / folder.MODEL)
        if about != {"claim": kept | beside, "model": described, "rounds": about["rounds"]}:
            wrong = "has another claim than the checkpoint, or another description of the model"
        elif not trained.says(where / name, about):
            wrong = "says something else in itself than beside"
        elif not trained.holds(where / name, state[0]["params"]):
            wrong = "is another model than the checkpoint's"
    yield _held(name, wrong, f"the model of {about['rounds']} rounds")


def _data(
    secret: secret_file.Kept, where: pathlib.Path, links: list[chain.Link]
) -> Iterator[Check]:
    """Data, partition, model and scheme as the config names them, loaded again."""
    config = config_lib.from_sections(
        config_lib.from_toml(folder.read_text(where / folder.CONFIG), source=folder.CONFIG)
    )
    before = fingerprint.read(where)
    assert before is not None
    brought = own.NOTHING._replace(base=base_model.read(where))
    again = job.prepare(config, seeds.of_run(config, where, secret), brought)
    changed = fingerprint.changed(before, again.began_with)
    if events.to_json(again.plan.event) != links[0].body["round_does"]["event"]:
        changed.append("ledger of a round")
    uses = functools.partial(budget.uses_of, again.config.implementation, again.plan.scheme_config)
    told = [body["uses"] for body in _of(links, "round")]
    if told != [uses(number) for number in range(1, len(told) + 1)]:
        changed.append("count of rounds")
    wrong = f"another {', '.join(changed)}" if changed else ""
    yield _held("data", wrong, "as the run began with them, and so are model and scheme")


def _not_shown(where: pathlib.Path, links: list[chain.Link], data: bool) -> list[str]:
    """What no check says."""
    found = [
        "Whoever writes every file anew, chain and all, or cuts a run's end off, which makes its "
        "epsilon smaller, is found by the head alone: publish it, and verify with --head.",
        "That the rounds were computed as the files say: only who has the data and the secret seed "
        "can run them again.",
    ]
    if not data:
        found.append("That the data are what they were: with --data they are loaded again.")
    if links and links[-1].kind != "closed":
        found.append(
            "How the run ended: it has not, or was killed before its report was written. "
            "fljax simulate --resume goes on with it. Until then no link is of "
            f"{folder.SESSIONS}, of {folder.MODEL}, of {folder.BASE}, of {folder.CANARIES}, of a "
            f"last line of {folder.METRICS}, nor of what {folder.PRIVACY} tells in nats or as a "
            "paper prints it, nor whether the newest checkpoint is there."
        )
    if links and links[0].body["code"] != chain.code():
        found.append("What the run's code did: it was another fljax than the one that checks here.")
    beside = [name for name in sorted(_BESIDE) if (where / name).exists()]
    if beside:
        found.append(f"Anything about {', '.join(beside)}.")
    if not (where / folder.SEED).exists():
        found.append(
            f"By which noise: {folder.SEED} is not there, as it should be once a run ended."
        )
    return found
