"""How many clients a second do rounds train on a GPU, where clients lie side by side?

    python -m bench.rounds.side_by_side [--models a,b,c,f] [--clients 1000] [--forms NAME,...]

Clients have 20 to 100 examples each, one local epoch in batches of 20, client clipping, Gaussian
noise on the sum. Models are those of `bench.kernels.workloads`.

- fljax: a round of `dp_fedavg` in the chunks that it takes by itself; fljax_chunk_K in chunks of K
- native: the same round with convolutions and pools as the model has them, not rewritten, as `vmap`
  over clients makes them
- one_model: the mean gradient of the cohort's examples at one model's weights, in batches of as
  many as a chunk's step has: what no client with weights of its own can reach
- torch_loop: one client after the other in torch, eagerly, on the first clients; on their examples
  in the GPU's memory

All multiply in TF32 on a GPU, as XLA does by default and torch is told to. Before the clock runs
the update of a few clients is held against that of "native", both in products of full precision;
`distance` is how far TF32 moves it.
"""

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from bench import _harness, _tables
from bench.kernels import workloads
from bench.peers import tasks
from bench.rounds import round as one_round
from fljax.server import aggregate

SMALL, IN_TORCH = 16, 50  # clients of the check, and of torch's loop
ROUNDING = 5e-3  # over a few steps: a max pool may be decided the other way
ROUNDING_TF32 = 0.1
FORMS = ("native", "fljax", "fljax_chunk_256", "one_model", "torch_loop")


def make_task(letter: str, num_clients: int) -> tuple[str, one_round.Task]:
    """(words, the round)."""
    model = workloads.make(letter)
    x, classes = model.batch["x"], int(np.max(model.batch["y"])) + 1
    clients = one_round.random_clients(
        num_clients, x.shape[1:], classes, one_round.LEAST, one_round.MOST
    )
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    task = one_round.Task(model.params, model.loss, clients, ids, jax.random.key(2))
    return model.title.split(", batch")[0], task


@contextlib.contextmanager
def not_rewritten() -> Iterator[None]:
    """What is traced inside keeps its convolutions and pools."""
    with mock.patch.object(fljax_kernels, "loop_friendly", lambda fun, **_: fun):
        yield


def one_model(task: one_round.Task) -> _harness.Step:
    """The sum of the gradients of batches of the cohort's examples."""
    size = task.batch_size * aggregate.default_chunk_size(1, None)
    total = len(jax.tree.leaves(task.clients.examples)[0])
    batches = jax.tree.map(
        lambda leaf: jnp.pad(
            leaf, [(0, -total % size), *[(0, 0)] * (leaf.ndim - 1)], mode="edge"
        ).reshape(-1, size, *leaf.shape[1:]),
        task.clients.examples,
    )

    def run(params: Any, batches: Any) -> Any:
        mean = lambda p, batch: jax.vmap(task.loss, (None, 0))(p, batch).mean()

        def add(total: Any, batch: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(mean)(params, batch)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)[0]

    return _harness.compile_step(run, task.params, batches)


def torch_loop(letter: str, task: one_round.Task, noise: float) -> Callable[[], Any]:
    """Returns a function that waits for the GPU, and returns its parameters."""
    import torch

    from bench.kernels import _torch_models
    from bench.peers import torch_client

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    on = "cuda" if jax.default_backend() == "gpu" else "cpu"
    net = _torch_models.model(letter, jax.device_get(task.params)).to(on)
    server = [p.detach().clone() for p in net.parameters()]
    clients = [
        tuple(_torch_models.tensor(array).to(on) for array in pair) for pair in tasks.in_order(task)
    ]

    def run() -> Any:
        total = [torch.zeros_like(p) for p in server]
        for x, y in clients:
            update = torch_client.clipped_update(
                net,
                server,
                x,
                y,
                batch_size=task.batch_size,
                learning_rate=one_round.LEARNING_RATE,
                l2_clip_norm=one_round.CLIP,
            )
            torch._foreach_add_(total, update)
        mean = list(torch._foreach_div(total, float(len(clients))))
        new = torch_client.server_step(server, mean, noise * one_round.CLIP / len(clients))
        if on == "cuda":
            torch.cuda.synchronize()
        return [np.asarray((a - b).cpu()) for a, b in zip(new, server, strict=True)]

    return run


def build(form: str, letter: str, task: one_round.Task, noise: float) -> Callable[[], Any]:
    """What is timed."""
    if form == "torch_loop":
        return torch_loop(letter, task, noise)
    if form == "one_model":
        return one_model(task).run
    chunk = int(form.removeprefix("fljax_chunk_")) if "chunk" in form else None
    with not_rewritten() if form == "native" else contextlib.nullcontext():
        return one_round.ours(task, noise, chunk).run


def moved(form: str, letter: str, task: one_round.Task) -> Any:
    """The round's step without noise."""
    after = build(form, letter, task, 0.0)()
    return after if form == "torch_loop" else jax.tree.map(jnp.subtract, after, task.params)


def measure(
    letter: str, forms: list[str], num_clients: int, rounds: int, budget_s: float
) -> list[dict[str, Any]]:
    """One row a form."""
    title, task = make_task(letter, num_clients)
    _, small = make_task(letter, min(SMALL, num_clients))
    with jax.default_matmul_precision("highest"):
        exact = {form: moved(form, letter, small) for form in ("native", "fljax")}
    _harness.check("fljax", exact["fljax"], exact["native"], rtol=ROUNDING)
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, _harness.Case] = {}
    for form in forms:
        clients = min(IN_TORCH, num_clients) if form == "torch_loop" else num_clients
        rows[form] = row = {"model": letter, "title": title, "form": form, "clients": clients}
        try:
            if form == "torch_loop":  # in torch's layouts
                longer = _harness.l2(moved(form, letter, small)) / _harness.l2(exact["native"])
                assert abs(longer - 1) <= ROUNDING_TF32, f"wrong: its update is {longer:.3f} times"
            elif form in exact:
                actual = moved(form, letter, small)
                row["distance"] = _harness.check(form, actual, exact["native"], rtol=ROUNDING_TF32)
            of = make_task(letter, clients)[1] if form == "torch_loop" else task
            start = time.perf_counter()
            cases[form] = build(form, letter, of, one_round.NOISE)
            row["build_s"] = round(time.perf_counter() - start, 1)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    for form, timing in _harness.interleaved(cases, repeats=rounds, budget_s=budget_s).items():
        rows[form] |= timing.row()
        rows[form]["clients_per_s"] = round(1e3 * rows[form]["clients"] / timing.median_ms, 1)
    return list(rows.values())


def table(rows: _tables.Rows) -> str:
    """Clients a second, by form."""
    heads = {
        "native": "grouped convolutions",
        "fljax": "fljax",
        "fljax_chunk_256": "chunks of 256",
        "one_model": "one model's gradient",
        "torch_loop": "torch, one by one",
    }
    body = []
    for title in dict.fromkeys(row["title"] for row in rows):
        timed = {row["form"]: row for row in rows if row["title"] == title and "median_ms" in row}
        cells = [f"{timed[f]['clients_per_s']:,.0f}" if f in timed else "" for f in heads]
        body.append([title, *cells])
    return _tables.markdown(["clients/s, medians", *heads.values()], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints, writes the JSON after each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="a,b,c,f", help="letters, comma-separated")
    parser.add_argument("--forms", default=",".join(FORMS), help="names, comma-separated")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing a model")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for letter in options.models.split(","):
        forms = options.forms.split(",")
        new = measure(letter, forms, options.clients, options.rounds, options.budget)
        columns = ("title", "form", "clients", "clients_per_s", "median_ms", "spread", "distance")
        print(_harness.table(new, (*columns, "build_s", "error")), flush=True)
        rows += new
        write = functools.partial(_harness.write, "side_by_side", rows)
        write(note=f"--clients {options.clients} --rounds {options.rounds}")
        jax.clear_caches()


if __name__ == "__main__":
    main()
