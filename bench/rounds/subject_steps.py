"""What HiGradAvg costs over item clipping, and what one program for all silos saves over a Python
loop.

    python -m bench.rounds.subject_steps            # about 3 minutes on 2 idle cores
    python -m bench.rounds.subject_steps --quick    # small workloads, to see that it runs

1. One silo's step on the FEMNIST CNN and LSTM workloads of `bench.kernels`: the hierarchical
   average against the plain sum of clipped gradients, same batch, four items of a subject, noise
   included. Target: at most 1.1 times.
2. 16 silos, `STEPS` noisy steps each, the mean of their models: one jitted round of
   `fljax.schemes.higradavg` against a Python loop over silos and steps that calls the same jitted
   step (compiled once) and averages at the end. Target: at least 3 times faster. The profile says
   where the loop's time goes: `dispatch_ms` is a call of a jitted step with the same arguments that
   computes nothing, `noise_ms` and `gradients_ms` are the program with only that part. What both
   forms must compute is no gain's to have: the ratio is at most the loop's time over theirs.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from bench.kernels import workloads
from fljax import _keys, data, models
from fljax.local import silo, silo_query, subject
from fljax.schemes.silos import higradavg
from fljax.server.rounds import Performance

ITEMS_PER_SUBJECT = 4
NUM_SILOS, STEPS = 16, 10
SAMPLING_PROB = 0.1
MICROBATCH = 128
MAKERS = {"hierarchical average": subject.hierarchical_average, "item sum": subject.item_sum}


def step_costs(quick: bool) -> list[dict[str, Any]]:
    """The hierarchical average against the item sum."""
    made = [workloads.make("a")] if quick else [workloads.make("b"), workloads.make("d")]
    rows = []
    for work in made:
        size = jax.tree.leaves(work.batch)[0].shape[0]
        examples = {**work.batch, "subject": jnp.arange(size, dtype=jnp.int32) // ITEMS_PER_SUBJECT}
        key = jax.random.key(0, impl="threefry2x32")
        steps, whole = {}, {}
        for name, maker in MAKERS.items():
            query = maker(work.loss, item_sampling_prob=1.0, l2_clip_norm=0.5, batch_size=size)
            train = silo.noisy_steps(
                query, num_steps=1, learning_rate=0.1, stddev=0.5, divisor=float(size)
            )
            everybody = jnp.arange(size, dtype=jnp.int32)
            args = (
                work.params,
                examples,
                everybody,
                key,
                jax.random.fold_in(key, 1),
                jnp.float32(1),
            )
            steps[name] = _harness.compile_step(train, *args)
            alone = {**examples, "subject": everybody}
            whole[name] = jax.jit(query)(work.params, alone, everybody, key).grad_sum
        # One item of each subject: both are the same sum.
        _harness.check("sums of single items", *(whole[name] for name in MAKERS), rtol=1e-5)
        timings = _harness.interleaved({name: step.run for name, step in steps.items()}, repeats=9)
        ratio = _harness.paired_ratio(*(timings[name] for name in MAKERS))
        for name, timing in timings.items():
            rows.append(
                {
                    "case": work.title,
                    "what": name,
                    **timing.row(),
                    **steps[name].row(),
                    "ratio": round(ratio, 3),
                }
            )
        print(f"{work.title}: hierarchical average / item sum = {ratio:.3f}", flush=True)
    return rows


def silos_in_one_program(model_name: str) -> list[dict[str, Any]]:
    """One jitted round against a loop of jitted steps, on the writers."""
    dataset = data.load("writers")
    ids = dataset.train[data.subjects.SUBJECT]
    table = jnp.asarray(data.subjects.uniform(ids, NUM_SILOS, np.random.default_rng(0)))
    examples = jax.tree.map(jnp.asarray, dataset.train)
    key = jax.random.key(0, impl="threefry2x32")
    model = models.create(
        model_name, example_shape=(8, 8, 1), num_classes=10, key=jax.random.fold_in(key, 1)
    )
    loss = models.softmax_cross_entropy(model.apply)
    config = higradavg.Config(
        num_parties=NUM_SILOS,
        num_local_steps=STEPS,
        item_sampling_prob=SAMPLING_PROB,
        noise_multiplier=5.0,
        max_items_per_subject=4,
        local_learning_rate=0.1,
    )
    cohort = data.Cohort(examples, table, jnp.arange(NUM_SILOS, dtype=jnp.int32))
    cases, texts = {}, {}
    for chunk in (None, NUM_SILOS):
        performance = Performance(chunk_size=chunk, microbatch_size=MICROBATCH)
        algorithm = higradavg.make(config, loss, num_units=400, performance=performance)
        state = algorithm.init(model.params)
        compiled = _harness.compile_step(algorithm.round, state, cohort, key)
        name = "one program" if chunk is None else "one program, silos side by side"
        cases[name], texts[name] = compiled.run, compiled

    query = subject.hierarchical_average(
        loss,
        item_sampling_prob=SAMPLING_PROB,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=MICROBATCH,
    )
    stddev = 5.0 * config.l2_clip_norm
    options: dict[str, Any] = {
        "learning_rate": 0.1,
        "stddev": stddev,
        "divisor": config.expected_subjects,
    }
    one = silo.noisy_steps(query, num_steps=1, **options)

    @jax.jit
    def step(
        params: Any, examples: Any, rows: jax.Array, sample_key: jax.Array, noise_key: jax.Array
    ) -> Any:
        rows = silo_query.within_cap(
            rows, examples["subject"][jnp.maximum(rows, 0)], config.max_items_per_subject
        )
        update = one(params, examples, rows, sample_key, noise_key, jnp.float32(1)).update
        return jax.tree.map(jnp.subtract, params, update)

    @jax.jit
    def nothing(
        params: Any, examples: Any, rows: jax.Array, sample_key: jax.Array, noise_key: jax.Array
    ) -> Any:
        return params

    silo_keys = [
        [_keys.client_keys(key, 0, jnp.arange(NUM_SILOS), purpose)[i] for i in range(NUM_SILOS)]
        for purpose in (_keys.Purpose.SAMPLE_EXAMPLES, _keys.Purpose.NOISE)
    ]
    step_keys = [
        [(jax.random.fold_in(a, t), jax.random.fold_in(b, t)) for t in range(STEPS)]
        for a, b in zip(*silo_keys, strict=True)
    ]
    rows = [table[i] for i in range(NUM_SILOS)]
    mean = jax.jit(lambda trained: jax.tree.map(lambda *leaves: sum(leaves) / NUM_SILOS, *trained))

    def loop(step: Any) -> Any:
        trained = []
        for i in range(NUM_SILOS):
            params = model.params
            for t in range(STEPS):
                params = step(params, examples, rows[i], *step_keys[i][t])
            trained.append(params)
        return mean(trained)

    def zero_query(
        params: Any, examples: Any, rows: jax.Array, key: jax.Array
    ) -> silo_query.SiloSum:
        zero = jnp.float32(0)
        return silo_query.SiloSum(
            jax.tree.map(jnp.zeros_like, params), zero, *(jnp.int32(0),) * 3, zero
        )

    def part(query: Any, stddev: float) -> Any:
        """All silos' steps, side by side, with one of their parts left out."""
        train = jax.jit(
            jax.vmap(
                silo.noisy_steps(query, num_steps=STEPS, **{**options, "stddev": stddev}),
                in_axes=(None, None, 0, 0, 0, None),
            )
        )
        keys = [jnp.stack(one) for one in silo_keys]
        return lambda: train(model.params, examples, table, *keys, jnp.float32(1)).update

    cases |= {
        "only the noise": part(zero_query, stddev),
        "only the gradients": part(query, 0.0),
        "Python loop of jitted steps": lambda: loop(step),
        "the same loop, steps that do nothing": lambda: loop(nothing),
    }
    first, second = cases["one program"](), cases["one program, silos side by side"]()
    _harness.check("chunks of silos", second[0].params, first[0].params, rtol=1e-4)
    timings = _harness.interleaved(cases, repeats=7)
    looped, idle = (
        timings["Python loop of jitted steps"],
        timings["the same loop, steps that do nothing"],
    )
    out = []
    for name, timing in timings.items():
        row: dict[str, Any] = {
            "case": f"{model_name}, {NUM_SILOS} silos, {STEPS} steps",
            "what": name,
            **timing.row(),
        }
        row["loop / this"] = round(_harness.paired_ratio(looped, timing), 2)
        if name in texts:
            row |= texts[name].row()
        out.append(row)
        print({k: row[k] for k in ("case", "what", "min_ms", "loop / this")}, flush=True)
    calls = NUM_SILOS * STEPS
    out.append(
        {
            "case": out[0]["case"],
            "what": "profile, milliseconds per step",
            "dispatch_ms": round(idle.min_ms / calls, 4),
            "step_in_loop_ms": round(looped.min_ms / calls, 4),
            "step_in_program_ms": round(timings["one program"].min_ms / calls, 4),
            "noise_ms": round(timings["only the noise"].min_ms / calls, 4),
            "gradients_ms": round(timings["only the gradients"].min_ms / calls, 4),
        }
    )
    return out


def table(rows: _tables.Rows) -> str:
    """Hierarchical averages beside item clipping; silos in one program beside a loop."""
    body = [
        [f"{row['case']}: hierarchical average over item sum", f"{row['ratio']:.2f}x the time"]
        for row in rows
        if row["what"] == "hierarchical average"
    ]
    body += [
        [
            f"{row['case']}: one program over a loop of jitted steps",
            f"{row['loop / this']:.1f}x as fast",
        ]
        for row in rows
        if row["what"] == "one program"
    ]
    return _tables.markdown(["subject-level training", ""], body)


def main() -> None:
    """Runs both questions; writes results/subject_steps-<platform>.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small workloads; nothing is written")
    quick = parser.parse_args().quick
    rows = []
    for name in ("softmax",) if quick else ("softmax", "mlp"):
        rows += silos_in_one_program(name)
    rows += step_costs(quick)
    print(_harness.table(rows, ["case", "what", "min_ms", "spread", "ratio", "loop / this"]))
    profiles = [row for row in rows if "dispatch_ms" in row]
    columns = [
        "case",
        "dispatch_ms",
        "step_in_loop_ms",
        "step_in_program_ms",
        "noise_ms",
        "gradients_ms",
    ]
    print(_harness.table(profiles, columns))
    if not quick:
        _harness.write("subject_steps", rows)


if __name__ == "__main__":
    main()
