"""Tables and figures of arXiv:2403.01268: the work behind them, and how they look."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.attacks import metrics
from fljax.data import channel
from fljax.papers.channel import attacks, overhead, rounds, sent, victims
from fljax.papers.channel.victims import CHANNELS, HIGH, LOW, METHODS, PRIVATE, Case
from fljax.papers.paper import Found, Item, Picture, Piece, Settings, Table, figure, half_width

RIGHT, WRONG = "right labels", "wrong labels"
_SECONDS = {"digits": 1.0, "fields": 1.8}  # of a second of digits'; others: a large multiple


def _seconds(name: str, settings: Settings, first: float, a_seed: float) -> float:
    """Measured on two cores for digits, and scaled. At full size twice the records, and LeNet."""
    scale = _SECONDS.get(name, 12.0) * (1 if settings.scale == "demo" else 40)
    return first + a_seed * settings.seeds * scale


def number(values: Any, digits: int = 3) -> str:
    """Mean and half its 95 % interval."""
    values = np.asarray(values, np.float64)
    half = half_width(values)
    reach = f" +- {half:.{digits}f}" if math.isfinite(half) else ""
    return f"{values.mean():.{digits}f}{reach}"


# Figures 3, 4, 7 and 17: closed forms


def _toy() -> dict[str, Any]:
    """D ~ N(-1, 1), F = W^2 D, gradient 2 W D: nats by W, of noise on the gradient that gives one
    nat at W = 2, and of noise on D that gives one nat at all.
    """
    on_gradient = 16 / math.expm1(2)
    on_data = 1 / math.expm1(2)
    rows = [
        [w, 0.5 * math.log1p(4 * w**2 / on_gradient), 0.5 * math.log1p(1 / on_data)]
        for w in (0.5, 2.0, 6.0)
    ]
    grid = np.geomspace(0.01, 100, 60)
    curves = {f"{noise:g}": (32 * np.log1p(grid / noise)).tolist() for noise in (0.1, 1.0, 10.0)}
    return {"toy": rows, "values": grid.tolist(), "capacity": curves}


def _toy_drawn(settings: Settings) -> dict[str, Any]:
    """The same from 20,000 drawn records a seed, by the correlation of a record and its upload."""
    rows: dict[str, dict[str, list[float]]] = {}
    for seed in settings.each_seed:
        rng = np.random.default_rng([seed, 4])
        record, noise = rng.normal(-1, 1, 20_000), rng.normal(size=20_000)
        for w in (0.5, 2.0, 6.0):
            sent = {
                "noise on the gradient": 2 * w * record + 4 / math.sqrt(math.expm1(2)) * noise,
                "noise in the data": 2 * w * (record + noise / math.sqrt(math.expm1(2))),
            }
            for way, upload in sent.items():
                told = -0.5 * math.log1p(-(np.corrcoef(record, upload)[0, 1] ** 2))
                rows.setdefault(way, {}).setdefault(f"{w:g}", []).append(told)
    return {"rows": rows}


def _show_toy(settings: Settings, found: Found) -> list[Table | Picture]:
    one = found["closed forms"]
    drawn = figure(6, 3.5)
    axes = drawn.subplots()
    for noise, curve in one["capacity"].items():
        axes.loglog(one["values"], curve, label=f"noise variance {noise}")
    axes.set(xlabel="eigenvalues, all equal", ylabel="nats, 64 dimensions")
    axes.legend()
    drawn_nats = found["toy"]["rows"].values()
    body = [
        [f"{w:g}", f"{gradient:.4f}", f"{data:.4f}", *(number(way[f"{w:g}"]) for way in drawn_nats)]
        for w, gradient, data in one["toy"]
    ]
    ways = ("noise on the gradient, of one nat at W = 2", "noise in the data")
    head = ("W", *ways, *(f"{way}, from 20,000 records" for way in found["toy"]["rows"]))
    return [
        Picture("Figure 3: capacity", drawn),
        Table("Figure 4: nats of a record N(-1, 1) whose loss is W^2 D", head, body),
    ]


# Figures 5 and 17


def _show_pictures(settings: Settings, found: Found) -> list[Table | Picture]:
    shown: list[Table | Picture] = []
    for name, piece in found.items():
        kinds = [kind for kind in piece if kind != "record"]
        columns = len(kinds) // len(CHANNELS) + 1
        drawn = figure(1.3 * columns, 1.5 * len(CHANNELS))
        grid = drawn.subplots(len(CHANNELS), columns)
        for line, defence in zip(grid, CHANNELS, strict=True):
            own = [kind for kind in kinds if kind.startswith(defence)]
            for axes, kind in zip(line, ["record", *own], strict=True):
                image = np.asarray(piece[kind])
                low, high = np.min(piece["record"]), np.max(piece["record"])
                axes.imshow(image, cmap="gray", vmin=low, vmax=high)
                axes.set_axis_off()
                axes.set_title(kind, fontsize=7)
        note = "Budgets are the paper's for 3,072 coordinates, at equal nats per coordinate."
        shown.append(Picture(f"Figure 5, with a record of {name} for a face", drawn, note))
    drawn = figure(3, 3)
    axes = drawn.subplots()
    axes.imshow(channel.eye_mask((32, 32, 1)).reshape(32, 32), cmap="Blues")
    axes.set_axis_off()
    return [*shown, Picture("Figure 17: 50 in the block, 1 elsewhere", drawn)]


# Figure 6


def _show_means(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(4 * len(found), 3.4)
    body = []
    for axes, (name, piece) in zip(
        drawn.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for (series, row), marker in zip(piece["rows"].items(), "osv ", strict=True):
            means = [np.mean(row[str(batch)]) for batch in sent.BATCHES]
            if series != "nats":
                axes.plot(sent.BATCHES, means, marker=marker, label=series)
            cells = [number(row[str(batch)], 4) for batch in sent.BATCHES]
            words = "nats of DP about a record, were gradients Gaussian"
            body.append([f"{name}: {words if series == 'nats' else series}", *cells])
        axes.set(xscale="log", xlabel="batch", ylabel="squared error to the mean", title=name)
        axes.legend(fontsize=8)
        for target, nats in piece["nats"].items():
            words = "the batch's mean" if target == "batch_mean" else "a record, at most"
            if name == next(iter(found)):
                body.append([f"nats of DP about {words}", *(f"{one:.3g}" for one in nats)])
    note = (
        f"DP: S = 1, noise multiplier {sent.DP_MULTIPLIER}. Constant noise has "
        f"{sent.CONSTANT:g} of the norm of a record's gradient. {sent.TARGETS} batches a seed, "
        f"{len(next(iter(found.values()))['rows']['DP']['1'])} seeds."
    )
    head = ("upload", *(f"batch {batch}" for batch in sent.BATCHES))
    return [Picture("", drawn), Table("", head, body, note)]


# Figures 7 and 8


def _show_compressed(settings: Settings, found: Found) -> list[Table | Picture]:
    first = next(iter(found.values()))
    drawn = figure(6, 3.4)
    axes = drawn.subplots()
    for name, piece in found.items():
        dropped, _, noise = zip(*piece["equal nats"], strict=True)
        axes.plot(dropped, noise, marker="o", label=name)
    axes.set(xlabel="largest directions set to 0", ylabel="noise of equal nats", yscale="log")
    axes.legend()
    names = list(first["rows"])
    body = [[what, *(number(piece["rows"][what], 4) for piece in found.values())] for what in names]
    body.append(
        [
            "eigenvalues of directions 0, 1, 10",
            *(", ".join(f"{v:.3g}" for v in piece["eigenvalues"]) for piece in found.values()),
        ]
    )
    note = (
        "Squared error. Directions set to 0, behind noise of the mean eigenvalue, and noise that "
        "tells as much: of the best linear estimate. The rest of gradient inversion: of records "
        "that were sent without one direction, and of gradients of which that share of coordinates "
        f"was sent, the largest or random ones. {len(first['rows']['whole'])} seeds."
    )
    return [
        Picture("Figure 7: noise that does the same to nats, in multiples", drawn),
        Table("Figure 8, and compression", ("sent", *found), body, note),
    ]


# Figures 9 to 13, 15, 16, 18 to 29


def shown_cases(task: victims.Task) -> list[Case]:
    """No defence and the channels, each at the budgets that section 6.3 gives it."""
    return [
        case
        for case in victims.channels(task)
        if not case.budget or case.budget in (LOW if case.defence == "natural" else HIGH)
    ]


def _trained(name: str, labels: str, settings: Settings, kinds: Sequence[str]) -> dict[str, Any]:
    """kinds: defences; without DP's, no attack network is trained either."""
    task = victims.task_of(name, settings, wrong=labels == WRONG)
    private = [kind for kind in kinds if kind in PRIVATE]
    look: Any = attacks.inverted
    if labels == WRONG:
        look = functools.partial(attacks.memberships, network=bool(private))
    wanted = victims.size(settings)
    cases = [case for case in shown_cases(task) if case.defence in ("none", *kinds)]
    by_epoch = victims.train_channels(task, cases, wanted)
    studied = [0, 1 + LOW.index(300)]
    trained = [(case, wanted.epochs[-1]) for case in cases]
    models = [by_epoch[-1]]
    for epochs, params in zip(wanted.epochs[:-1], by_epoch[:-1], strict=True):
        trained += [(cases[at], epochs) for at in studied]
        models.append(victims.taken(params, studied))
    if own := [case for case in victims.private(task, wanted.batch) if case.defence in private]:
        trained += [(case, wanted.epochs[-1]) for case in own]
        models.append(victims.train_private(task, own, wanted)[-1])
    # All at once: looking at them is compiled once.
    seen = look(task, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *models))
    rows = [
        {
            "defence": case.defence,
            "method": case.method,
            "budget": case.budget,
            "nats": victims.nats_after(task, case, epochs),
            "epochs": epochs,
            **one,
        }
        for (case, epochs), one in zip(trained, seen, strict=True)
    ]
    return {"rows": rows, "epochs": list(wanted.epochs)}


def tasks_in(found: Found) -> list[str]:
    """Names of data sets that victims were trained on."""
    return [piece.removesuffix(f", {RIGHT}") for piece in found if piece.endswith(RIGHT)]


def row(
    found: Found,
    task: str,
    labels: str,
    defence: str,
    budget: int = 0,
    method: str = "",
    epochs: int | None = None,
) -> dict[str, Any]:
    """The one row of a victim."""
    piece = found[f"{task}, {labels}"]
    epochs = piece["epochs"][-1] if epochs is None else epochs
    (one,) = (
        r
        for r in piece["rows"]
        if (r["defence"], r["budget"], r["method"], r["epochs"])
        == (defence, budget, method, epochs)
    )
    return dict(one)


def defences() -> list[tuple[str, str, tuple[int, ...]]]:
    """(defence, method, budgets) of figures 15 and 16."""
    return [
        *((name, "", LOW if name == "natural" else HIGH) for name in CHANNELS),
        *((name, method, LOW) for name in PRIVATE for method in METHODS),
    ]


def scores(found: Found, task: str, defence: str, budget: int, method: str) -> dict[str, Any]:
    """accuracy, kept (the share of it that is left), imp_mia, imp_dra, gdc, both (kept and gdc,
    added); each `[S]`.
    """

    def of(labels: str, what: str, name: str, *place: Any) -> Any:
        return np.asarray(row(found, task, labels, name, *place)[what])

    place = budget, method
    plain, auc = of(RIGHT, "accuracy", "none"), of(WRONG, "auc", "none")
    imp_mia = list(map(metrics.imp_mia, auc, of(WRONG, "auc", defence, *place)))
    errors = of(RIGHT, "mse", "none"), of(RIGHT, "mse", defence, *place)
    imp_dra = list(map(metrics.imp_dra, *errors))
    accuracy = of(RIGHT, "accuracy", defence, *place)
    kept, gdc = accuracy / plain, np.array(list(map(metrics.gdc, imp_mia, imp_dra)))
    return {
        "accuracy": accuracy,
        "kept": kept,
        "imp_mia": np.array(imp_mia),
        "imp_dra": np.array(imp_dra),
        "gdc": gdc,
        "both": kept + gdc,
    }


def _show_trained(settings: Settings, found: Found) -> list[Table | Picture]:
    shown: list[Table | Picture] = []
    for task in tasks_in(found):
        drawn = figure(12, 9)
        grid = drawn.subplots(3, 4).ravel()
        epochs = found[f"{task}, {RIGHT}"]["epochs"]
        plain = {labels: row(found, task, labels, "none") for labels in (RIGHT, WRONG)}
        panels = (
            ("accuracy", RIGHT, "test accuracy (9, 18, 21)"),
            ("mse", RIGHT, "error of model inversion (10, 20, 23)"),
            ("psnr", RIGHT, "its PSNR (27)"),
            ("ssim", RIGHT, "its SSIM (28)"),
            ("cosine", RIGHT, "its cosine (29)"),
            ("auc", WRONG, "AUC of membership (19, 22, 25)"),
        )
        for axes, (what, labels, words) in zip(grid, panels, strict=False):
            axes.axhline(np.mean(plain[labels][what]), color="0.6", ls=":", label="no defence")
            for defence, marker in zip(CHANNELS, "osv", strict=True):
                given = LOW if defence == "natural" else HIGH
                means = [np.mean(row(found, task, labels, defence, b)[what]) for b in given]
                axes.plot(given, means, marker=marker, label=defence)
            axes.set(xscale="log", xlabel="nats of 3,072 coordinates", title=words)
        grid[0].legend(fontsize=7)
        for axes, (what, labels, words) in zip(
            grid[6:], (panels[0], panels[1], panels[5]), strict=False
        ):
            for defence, budget in (("natural", 300), ("none", 0)):
                means = [
                    np.mean(row(found, task, labels, defence, budget, "", e)[what]) for e in epochs
                ]
                axes.plot(epochs, means, marker="o", label=defence)
            axes.set(xlabel="uses of a record", title=words.split(" (")[0] + " (12, 13, 26)")
        grid[6].legend(fontsize=7)
        body = []
        for defence, method, budgets in defences():
            style = {"": "-", "paper": "--", "sound": ":"}[method]
            all_scores = [scores(found, task, defence, b, method) for b in budgets]
            centre = {
                what: [float(np.mean(one[what])) for one in all_scores] for what in all_scores[0]
            }
            words = f"{defence}, {method}" if method else defence
            marker = "osvx+"[[*CHANNELS, *PRIVATE].index(defence)]
            line: Any = {"marker": marker, "ls": style, "label": words}
            grid[9].plot(centre["gdc"], centre["accuracy"], **line)
            grid[10].plot(centre["imp_dra"], centre["imp_mia"], **line)
            for budget, one in zip(budgets, all_scores, strict=True):
                attacked = row(found, task, RIGHT, defence, budget, method)
                exposed = row(found, task, WRONG, defence, budget, method)
                body.append(
                    [
                        f"{task}: {words}",
                        str(budget),
                        f"{attacked['nats']:.4g}",
                        number(one["accuracy"]),
                        number(attacked["mse"], 4),
                        number(exposed["auc"]),
                        number(exposed["network"]),
                        number(one["gdc"]),
                    ]
                )
        grid[9].set(xlabel="GDC", ylabel="test accuracy", title="Figure 15")
        grid[10].set(xlabel="IMP_DRA", ylabel="IMP_MIA", title="Figure 16")
        grid[10].legend(fontsize=6)
        for defence in CHANNELS:  # figures 11 and 24: one against the other
            given = LOW if defence == "natural" else HIGH
            two = [
                [np.mean(row(found, task, RIGHT, defence, b)[what]) for b in given]
                for what in ("mse", "accuracy")
            ]
            grid[11].plot(*two, marker="o", label=defence)
        along = [row(found, task, RIGHT, "natural", 300, "", e) for e in epochs]
        grid[11].plot(
            *([np.mean(one[what]) for one in along] for what in ("mse", "accuracy")),
            "k--",
            label="natural, 300, by uses",
        )
        grid[11].set(xlabel="error of model inversion", ylabel="accuracy", title="11 and 24")
        grid[11].legend(fontsize=6)
        undefended = [
            number(plain[RIGHT]["accuracy"]),
            number(plain[RIGHT]["mse"], 4),
            number(plain[WRONG]["auc"]),
            number(plain[WRONG]["network"]),
        ]
        body.insert(0, [f"{task}: no defence", "", "", *undefended, ""])
        head = ("defence", "budget", f"nats after {epochs[-1]} uses", "accuracy")
        note = (
            "Budget: nats of a use, for 3,072 coordinates; DP at the natural channel's by Theorem "
            "4 as printed (paper) or by what holds about a record (sound). Accuracy and model "
            "inversion are of networks that were trained on right labels, membership of those on "
            f"{victims.WRONG:.0%} random ones: by the loss, and by the paper's attack network."
        )
        attacked_by = ("model inversion", "AUC", "AUC, network", "GDC")
        shown += [
            Picture(f"{task}: figures 9 to 13, 15, 16 and 18 to 29", drawn),
            Table(task, (*head, *attacked_by), body, note),
        ]
    return shown


# Figures 12, 15, 19, 20, 22, 23, 25 and section 6.1, once more


def _show_again(settings: Settings, found: Found) -> list[Table | Picture]:
    shown: list[Table | Picture] = []
    for task in tasks_in(found):
        epochs = found[f"{task}, {RIGHT}"]["epochs"]
        along = [row(found, task, RIGHT, "natural", 300, "", e)["accuracy"] for e in epochs]
        uses = [f"{e} uses" for e in epochs]
        shown.append(Table(f"{task}: accuracy, 300 nats", uses, [[number(one) for one in along]]))
        body = []
        for defence in CHANNELS:
            for budget in LOW if defence == "natural" else HIGH:
                one = scores(found, task, defence, budget, "")
                body.append(
                    [defence, str(budget)]
                    + [number(values) for values in (one["kept"], one["gdc"], one["both"])]
                )
        head = ("channel", "budget", "accuracy kept", "GDC", "sum of both")
        note = f"Over {len(along[0])} seeds. Kept: of the accuracy without a defence."
        shown.append(Table(f"{task}: trade-off", head, body, note))
        attacked = [
            [
                defence,
                str(budget),
                number(row(found, task, RIGHT, defence, budget)["mse"], 4),
                number(row(found, task, WRONG, defence, budget)["auc"]),
            ]
            for defence in CHANNELS
            for budget in (LOW if defence == "natural" else HIGH)
        ]
        plain = {labels: row(found, task, labels, "none") for labels in (RIGHT, WRONG)}
        note = (
            f"Without a defence the error is {number(plain[RIGHT]['mse'], 4)}, and the AUC of "
            f"membership by the loss {number(plain[WRONG]['auc'])}."
        )
        named = ("channel", "budget", "squared error", "AUC")
        shown.append(Table(f"{task}: model inversion, membership", named, attacked, note))
    return shown


# Figures 14 and 30 to 33


def budgets_of(piece: Any, kind: str, what: str = "mse") -> dict[int, np.ndarray]:
    """By budget, values `[S]` of one kind of channel."""
    return {
        r["budget"]: np.asarray(r[what]) for r in piece["rows"] if r["kind"] == kind and what in r
    }


def _show_sent(settings: Settings, found: Found) -> list[Table | Picture]:
    shown: list[Table | Picture] = []
    for name, piece in found.items():
        maps = figure(11, 2.4)
        for axes, what in zip(maps.subplots(1, len(attacks.LOOKS)), attacks.LOOKS, strict=True):
            values = np.array(
                [
                    [budgets_of(piece, kind, what)[b].mean() for b in sent.BUDGETS]
                    for kind in CHANNELS
                ]
            )
            shades = axes.imshow(values, aspect="auto", cmap="viridis")
            axes.set_xticks(range(len(sent.BUDGETS)), sent.BUDGETS, rotation=60, fontsize=7)
            axes.set_yticks(range(len(CHANNELS)), CHANNELS, fontsize=7)
            axes.set_title(what)
            maps.colorbar(shades, ax=axes)
        drawn = figure(6, 4)
        axes = drawn.subplots()
        body = []
        for kind, marker in zip(sent.KINDS, "osv^xd", strict=True):
            linear = budgets_of(piece, kind, "linear")
            search = budgets_of(piece, kind)
            best = [
                min(linear[b].mean(), search[b].mean() if b in search else math.inf) for b in linear
            ]
            axes.plot(list(linear), best, marker=marker, label=kind)
            ways = {"search": search, "linear": linear}
            for way, errors in ways.items():
                if errors:
                    body.append(
                        [f"{name}: {kind}", way, *(f"{errors[b].mean():.4f}" for b in sent.BUDGETS)]
                    )
        bounds = {r["budget"]: r["bound"] for r in piece["rows"] if r["kind"] == "natural"}
        certain = any(r.get("certified") for r in piece["rows"])
        words = "bound, certified" if certain else "bound, were records Gaussian"
        axes.plot(list(bounds), list(bounds.values()), "k--", label=words)
        axes.set(xscale="log", yscale="log", xlabel="nats of 3,072 coordinates")
        axes.set_ylabel("squared error of the better attack")
        axes.legend(fontsize=7)
        body.append([f"{name}: bound", "", *(f"{bounds[b]:.4f}" for b in sent.BUDGETS)])
        head = ("channel", "attack", *(f"{budget} nats" for budget in sent.BUDGETS))
        plain = budgets_of(piece, "none")[0]
        note = (
            f"Squared errors, {len(plain)} seeds of {sent.TARGETS} records, each sent once, label "
            f"known; without a defence the search errs by {number(plain, 4)}. linear: the best "
            "linear estimate. parameters: noise on the gradient by an estimate of its covariance; "
            "clipped: by the clip norm, which is DP-SGD on a batch of one."
        )
        shown += [
            Picture(f"{name}: figures 14 and 30 to 33, by search", maps),
            Picture(f"{name}: reconstruction against nats, all channels", drawn),
            Table(name, head, body, note),
        ]
    return shown


# Schemes


def _show_rounds(settings: Settings, found: Found) -> list[Table | Picture]:
    body, note = [], ""
    for name, piece in found.items():
        for row in piece["rows"]:
            told = "" if row["nats"] is None else f"{row['nats']:.3g}"
            looks = [number(row[when]["mse"], 4) for when in ("first", "last")]
            looks += [number(row[when]["ssim"], 2) for when in ("first", "last")]
            body.append([f"{name}: {row['kind']}", told, number(row["accuracy"]), *looks])
        note = (
            f"{rounds.CLIENTS} clients of {rounds.RECORDS} records, all in each of "
            f"{piece['rounds']} rounds, {piece['nats']:.3g} nats a use: {rounds.NATS} of 3,072 "
            f"coordinates. A search knows the model and the label, and reads each of "
            f"{rounds.TARGETS} records from the upload of a client that holds it alone, in the "
            "first round and in the last. Embedding: a quarter of the principal directions. "
            "Parameters: noise on the mean of clipped gradients, whose nats are of an upload and "
            "add up. Compression sends the largest tenth of an update, and promises nothing: the "
            "search knows which numbers those are."
        )
    head = ("defence", "nats of a record, all rounds", "accuracy", "error, first", "error, last")
    return [Table("", (*head, "SSIM, first", "SSIM, last"), body, note)]


def _show_colour(settings: Settings, found: Found) -> list[Table | Picture]:
    piece = found["photographs"]
    body = []
    for row in piece["rows"]:
        linear = number(row["linear"], 4) if "linear" in row else ""
        cells = [number(row["mse"], 4), number(row["ssim"], 2), linear]
        body.append([row["kind"], str(row["budget"] or ""), *cells])
    note = (
        "Patches of two photographs, LeNet's first gradient of one record, label known; the mean "
        f"of public patches errs by {piece['variance']:.4f}. linear: the best linear estimate from "
        "the noisy record by the covariance of public ones."
    )
    return [Table("", ("defence", "nats", "error of a search", "SSIM", "linear"), body, note)]


# Table 2


def _show_overhead(settings: Settings, found: Found) -> list[Table | Picture]:
    body = []
    for name, (sgd, private, theirs) in overhead.PRINTED.items():
        cells = ["not in the demo", *[""] * (1 + len(_FORMS))]
        if (piece := found.get(name)) is not None:
            plain = np.asarray(piece["seconds"]["plain"])
            cells = [f"{piece['parameters']:,}", f"{1000 * np.median(plain):.1f}"]
            cells += [overhead.percent(overhead.over(piece, form)) for form in _FORMS]
        body.append([name, *cells, f"{theirs / sgd - 1:.1%}", f"{private / sgd - 1:.1%}"])
    head = (
        "network",
        "parameters",
        "plain step, processor ms",
        *(f"{form}, more" for form in _FORMS),
    )
    note = (
        "One step on 64 images, processor time of this machine: medians over rounds, and where "
        "they are with 95 %; printed: on GPUs, with Opacus as DP-SGD."
    )
    if settings.scale == "demo":
        note += " VGG16 is measured at full scale alone: its steps take minutes in all."
    return [Table("", (*head, "natural, printed", "DP-SGD, printed"), body, note)]


_FORMS = ("natural", "white", "DP-SGD")


def _pieces(first: float, a_seed: float, compute: Any, *, times: int = 1) -> Any:
    """Over that many times the seeds."""

    def pieces(settings: Settings) -> list[Piece]:
        settings = dataclasses.replace(settings, seeds=times * settings.seeds)
        return [
            Piece(
                name.split(":")[0],
                _seconds(name, settings, first, a_seed),
                functools.partial(compute, name, settings),
            )
            for name in victims.tasks(settings)
        ]

    return pieces


def _victims(
    times: Mapping[str, int],
    first: float,
    a_seed: Mapping[str, float],
    kinds: Sequence[str] = (),
) -> Any:
    """Over that many times the seeds, by data set or for all others ("").

    kinds: some of the defences, of which more is asked than ten seeds tell. Their victims are
    trained as long whatever the settings' length: over how many uses is a part of what is asked.
    Empty: all defences.
    """

    def pieces(settings: Settings) -> list[Piece]:
        length = 1.0 if kinds else settings.length
        own = {
            name: dataclasses.replace(
                settings, seeds=times.get(name, times[""]) * settings.seeds, length=length
            )
            for name in victims.tasks(settings)
        }
        return [
            Piece(
                f"{name.split(':')[0]}, {labels}",
                _seconds(name, more, first, a_seed[labels]),
                functools.partial(_trained, name, labels, more, kinds or (*CHANNELS, *PRIVATE)),
            )
            for name, more in own.items()
            for labels in (RIGHT, WRONG)
        ]

    return pieces


ITEMS = (
    Item("fig1", "Figures 1 and 2: drawings of the system", why="they show no result"),
    Item("table1", "Table 1: notation", why="it shows no result"),
    Item(
        "fig3",
        "Figures 3 and 4: capacity, and the toy example",
        lambda settings: [
            Piece("closed forms", 0.1, _toy),
            Piece("toy", 0.1, lambda: _toy_drawn(settings)),
        ],
        _show_toy,
    ),
    Item(
        "fig5",
        "Figures 5 and 17: noisy records, and the mask",
        _pieces(1.0, 0.2, sent.pictures),
        _show_pictures,
    ),
    Item(
        "fig6",
        "Figure 6: one image read from a batch's gradient",
        _pieces(6.0, 0.8, sent.means_of_batches, times=2),
        _show_means,
    ),
    Item(
        "fig7",
        "Figures 7 and 8: compression",
        _pieces(2.0, 0.5, sent.compressed, times=3),
        _show_compressed,
    ),
    Item(
        "fig9",
        "Figures 9 to 13, 15, 16, 18 to 29: trained networks",
        _victims({"": 2}, 6.0, {RIGHT: 1.4, WRONG: 3.0}),
        _show_trained,
    ),
    Item(
        "fig12",
        "Figures 12, 15, 19, 20, 22, 23 and 25 over more seeds: what is close",
        _victims({"fields": 16, "": 8}, 5.0, {RIGHT: 0.35, WRONG: 0.22}, CHANNELS),
        _show_again,
    ),
    Item(
        "fig14",
        "Figures 14 and 30 to 33: gradient inversion, record by record",
        _pieces(4.0, 1.8, sent.one_record, times=2),
        _show_sent,
    ),
    Item(
        "rounds",
        "Section 6 in federated rounds: what clients of the schemes send",
        lambda settings: [
            Piece(
                name.split(":")[0],
                (10 + 5 * settings.seeds) * (1 if settings.scale == "demo" else 30),
                functools.partial(rounds.in_rounds, name, settings),
            )
            for name in victims.tasks(settings)[:1]
        ],
        _show_rounds,
    ),
    Item(
        "colour",
        "Section 6 on records of 32 x 32 pixels in colour",
        lambda settings: [
            Piece("photographs", 10 + 6.5 * settings.seeds, lambda: rounds.in_colour(settings))
        ],
        _show_colour,
    ),
    Item(
        "table2",
        "Table 2: time of a step",
        lambda settings: [
            Piece(
                name,
                {"lenet": 10.0, "resnet10": 60.0, "alexnet": 36.0, "vgg16": 600.0}[name],
                functools.partial(overhead.measured, name),
            )
            for name in overhead.networks(settings)
        ],
        _show_overhead,
    ),
)
