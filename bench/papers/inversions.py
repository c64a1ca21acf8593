"""How sharp is an inversion, by how it searches?

    python -m bench.papers.inversions

Patches of photographs in colour behind the gradient of a fresh network, labels known: the same
targets for each search, ours all in one program, compile time apart, shared out over the devices
that the CPU's cores are made. Public are other patches, of which none shares a pixel with a target.
Noise is Gaussian, as long as the gradient. torch's loops have the same weights, gradients and
steps, and take one target after the other, as breaching does.
"""

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import models
from fljax.attacks import gradient_inversion, metrics, victims
from fljax.papers.channel.rounds import photographs
from fljax.simulation.devices import mesh

CLASSES, SEEDS = 10, 3
Settings = gradient_inversion.Settings
SHARP = Settings(optimizer="gauss_newton", tv_weight=0.0)
SHORT = Settings(optimizer="gauss_newton", tv_weight=0.0, num_iterations=200)


class Search(NamedTuple):
    """How it is called in the table, its settings, and whether it has a prior."""

    name: str
    settings: Settings
    informed: bool = False


SEARCHES = (
    Search("Adam, signed, cosine + TV, 1,000 steps", Settings(tv_weight=1e-3)),
    Search("L-BFGS, cosine, 300 steps", Settings(optimizer="lbfgs", num_iterations=300)),
    Search("Gauss-Newton, 1,000 products", SHARP),
    Search("Gauss-Newton, 1,000 products, prior", SHARP, informed=True),
    Search("Gauss-Newton, 200 products, prior", SHORT, informed=True),
)


THEIRS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("torch: Adam, signed, cosine + TV, 1,000 steps", {"search": "adam", "tv_weight": 1e-3}),
    ("torch: L-BFGS, cosine, 300 steps", {"search": "lbfgs", "tv_weight": 0.0}),
)
STEPS = {"adam": 1000, "lbfgs": 300}


class Case(NamedTuple):
    """A network, how many examples are behind a gradient, how many gradients a seed, noise in
    lengths of the gradient, the images' side, and how many seeds.
    """

    name: str
    net: str
    batch: int
    targets: int
    noise: float = 0.0
    side: int = 32
    seeds: int = SEEDS


CASES = (
    Case("smooth LeNet, one image", "smooth", 1, 4),
    Case("smooth LeNet, one image, noise", "smooth", 1, 4, 1.0),
    Case("smooth LeNet, a batch of 8", "smooth", 8, 2),
    Case("ReLU CNN, one image", "cnn", 1, 4),
    Case("ReLU LeNet with max pooling, one image", "lenet", 1, 4),
    Case("vision transformer, one image", "small_vit", 1, 2, seeds=1),
    Case("smooth LeNet, one image of 64 x 64", "smooth", 1, 2, side=64, seeds=1),
    Case("ResNet-20, one image", "resnet20", 1, 2, seeds=1),
)


def network(name: str, seed: int, side: int = 32) -> Any:
    """A fresh one."""
    ours = {"smooth": victims.smooth_lenet}
    make = ours.get(name) or functools.partial(models.create, name)
    key = jax.random.key(seed)
    return make(example_shape=(side, side, 3), num_classes=CLASSES, key=key)


def noised(uploads: Any, length: float, rng: np.random.Generator) -> Any:
    """`uploads`, leaves `[T, ...]`, and so many times their length of noise."""
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(uploads)]
    scale = length * np.sqrt(
        sum(np.square(v).sum(1) for v in leaves) / sum(v.shape[1] for v in leaves)
    )

    def add(leaf: jax.Array) -> jax.Array:
        each = scale.reshape(-1, *(1,) * (leaf.ndim - 1))
        return leaf + jnp.asarray(each * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree.map(add, uploads)


def measure(case: Case, seeds: int, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row for each search, or each whose name has a word of `only`: every target's PSNR, seconds
    a target.
    """
    asked = lambda name: not only or any(word in name for word in only)
    public, others = photographs(case.side)
    here = devices(case.targets)
    prior = gradient_inversion.gaussian_prior(public["x"])
    found: dict[str, tuple[list[float], list[float]]] = {}
    programs: dict[str, Any] = {}  # of all seeds: weights are arguments

    def add(name: str, images: Any, x: Any, seconds: float) -> None:
        each = np.asarray(jax.vmap(jax.vmap(metrics.psnr))(images, x)).mean(1)
        so_far = found.setdefault(name, ([], []))
        so_far[0].extend(each.tolist())
        so_far[1].append(seconds / case.targets)

    for seed in range(seeds):
        net, rng = network(case.net, seed, case.side), np.random.default_rng(seed)
        observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(net.apply))
        picks = rng.choice(len(others["y"]), case.targets * case.batch, replace=False)
        x = jnp.asarray(others["x"][picks])
        x = x.reshape(case.targets, case.batch, *x.shape[1:])
        y = jnp.tile(jax.nn.one_hot(np.arange(case.batch), CLASSES), (case.targets, 1, 1))
        uploads = jax.jit(jax.vmap(observe, (None, 0, 0)))(net.params, x, y)
        uploads = noised(uploads, case.noise, rng) if case.noise else uploads
        for search in SEARCHES:
            if not asked(search.name):
                continue
            given = (net.params, uploads, y, jax.random.split(jax.random.key(seed), len(here)))
            if search.name not in programs:
                run = functools.partial(
                    gradient_inversion.invert,
                    observe,
                    shape=x.shape[1:],
                    settings=search.settings,
                    prior=prior if search.informed else None,
                )
                programs[search.name] = jax.jit(shared_out(run, here)).lower(*given).compile()
            began = time.perf_counter()
            images = jax.block_until_ready(programs[search.name](*given))
            add(search.name, images, x, time.perf_counter() - began)
        for name, how in THEIRS if theirs(case) else ():
            if not asked(name):
                continue
            images, seconds = in_torch(case.net, net.params, uploads, x, y, seed, how)
            add(name, images, x, seconds)
    return [
        {
            "case": case.name,
            "search": name,
            "psnr_db": [round(value, 2) for value in values],
            "seconds": float(np.median(seconds)),
        }
        for name, (values, seconds) in found.items()
    ]


def devices(targets: int) -> list[jax.Device]:
    """As many as share the targets evenly, a core each."""
    most = min(_harness.cores(), jax.device_count())
    return jax.devices()[: max(n for n in range(1, most + 1) if targets % n == 0)]


def shared_out(run: Callable[..., Any], here: list[jax.Device]) -> Callable[..., Any]:
    """`run`, an `invert` of (params, uploads, y, key), on a part of the targets on each device;
    with a key each. Gives the images.
    """
    part = jax.P("targets")
    return jax.shard_map(
        lambda params, uploads, y, keys: run(params, uploads, y, keys[0]).x,
        mesh=jax.make_mesh((len(here),), ("targets",), (jax.sharding.AxisType.Auto,), devices=here),
        in_specs=(jax.P(), part, part, part),
        out_specs=part,
        check_vma=False,  # carries of its loops begin alike on all devices
    )


def theirs(case: Case) -> bool:
    """Whether torch is here, for a case without noise."""
    here = importlib.util.find_spec("torch") is not None
    return here and not case.noise


def in_torch(
    net: str,
    params: Any,
    uploads: Any,
    x: jax.Array,
    y: jax.Array,
    seed: int,
    how: dict[str, Any],
) -> tuple[np.ndarray, float]:
    """(images as `x`, seconds) of torch's loop, one target after the other."""
    import torch

    from bench.papers import _torch_inversions as peer

    torch.set_num_threads(_harness.cores())
    torch.manual_seed(seed)
    weights = peer.parameters(jax.device_get(params))
    images, seconds = [], 0.0
    for at in range(len(x)):
        upload = jax.tree.map(lambda leaf, at=at: np.asarray(leaf[at]), uploads)
        target = [leaf.detach() for leaf in peer.leaves(peer.parameters(upload))]
        truth = torch.tensor(np.asarray(x[at]).transpose(0, 3, 1, 2).copy())
        start, labels = torch.rand(truth.shape), torch.tensor(np.asarray(y[at]))
        own = peer.gradient(peer.NETS[net], weights, truth, labels)
        for theirs, ours in zip(own, target, strict=True):  # the same network
            torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)
        began = time.perf_counter()
        found = peer.invert(
            peer.NETS[net], weights, target, labels, start, steps=STEPS[how["search"]], **how
        )
        seconds += time.perf_counter() - began
        images.append(found.permute(0, 2, 3, 1).numpy())
    return np.stack(images), seconds


def table(rows: _tables.Rows) -> str:
    """Median, least and largest PSNR by search; seconds a target."""
    order = [case.name for case in CASES]
    body = [
        [
            row["case"],
            row["search"],
            f"{np.median(row['psnr_db']):.1f} ({min(row['psnr_db']):.1f} to "
            f"{max(row['psnr_db']):.1f})",
            f"{row['seconds']:.2f}",
        ]
        for row in sorted(rows, key=lambda row: order.index(row["case"]))
    ]
    head = ["gradient of", "search", "PSNR in dB: median (range)", "seconds a gradient"]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one case, no JSON: does it run?")
    parser.add_argument("--only", nargs="*", default=[], help="cases; other rows stay")
    parser.add_argument("--searches", nargs="*", default=[], help="of --only, by words of names")
    options = parser.parse_args()
    mesh.as_devices(_harness.cores())
    if options.searches and not options.only:
        parser.error("--searches goes with --only")
    rows: list[dict[str, Any]] = []
    for case in CASES[:1] if options.quick else CASES:
        if options.only and case.name not in options.only:
            continue
        rows += measure(case, 1 if options.quick else case.seeds, options.searches)
        print(table(rows), flush=True)
    if options.only:
        print(_harness.amend("inversions", rows, keys=("case", "search")))
    elif not options.quick:
        path = _harness.write("inversions", rows, note=f"{SEEDS} seeds: network, targets, start")
        print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
