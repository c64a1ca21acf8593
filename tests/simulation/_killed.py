"""Runs that are killed: `python _killed.py` does what each line of its input says, as JSON.

A job is `{"do": name of CASES, "run_dir": folder, "disk": folder of clients}` and one of
- "at": the run kills itself before so many operations on its folder, after half of what it was to
  write then; null: it goes on to its end
- "after": it is killed after so many seconds of rounds
- "other_data": it is to go on with other data
- "points", "seed": it is run without a kill, and once more from the same secret; there its folder
  is copied at so many of its operations, as a kill would leave it, and each copy goes on.

Each job is done by a child that is forked when all is imported and nothing has begun: no job pays
for the imports of another. An operation is what the interpreter's audit hook tells of a file, each
write, flush to the disk and truncation, and each message of a secure sum. The answer is a line
`{"status": exit code, "cpu": seconds, ...}`, with what went wrong in "words".
"""

import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import threading
import time
import traceback

from fljax import data, schemes
from fljax.data import store
from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.devices import mesh
from fljax.simulation.record import checkpoint, folder
from fljax.simulation.report import run_page
from fljax.upload.secure_sum import secagg

# One scheme of each family and more: what each keeps between rounds, or draws, is of its own kind.
FEW = {"num_clients": 6}
OF_SUBJECTS = {"dataset": "writers", "partition": "subject_uniform", "num_clients": 4}
CASES = {
    "central, exact noise": ("dp_fedavg", {"noise": "exact", "sampling_prob": 0.5}, FEW),
    "clients that keep something": ("dp_scaffold", {"sampling_prob": 0.5}, FEW),
    "correlated noise": ("dp_ftrl", {"rounds_per_start": 4}, FEW),
    "bins and bands": (
        "dp_fedavg",
        {
            "sampling": "allocation",
            "correlation": "banded",
            "banded_for": 4,
            "allocation_rounds": 2,
            "sampling_prob": 0.5,
        },
        FEW,
    ),
    "bands of silos": ("higradavg", {"correlation": "banded", "bands": 3}, OF_SUBJECTS),
    "silos, exact noise": ("higradavg", {"noise": "exact"}, OF_SUBJECTS),
    "bands of uploads": ("lightdp", {"correlation": "buffered", "min_separation": 2}, FEW),
    "integers": ("skellam", {"max_colluders": 1, "max_stragglers": 1}, FEW),
    "clients on disk": ("dp_fedavg", {"sampling_prob": 0.5}, {}),
    "silos": ("user_ldp", {"privacy_unit": "client", "num_local_steps": 2}, FEW),
    "uploads": ("lightdp", {"max_colluders": 1, "max_stragglers": 1}, FEW),
    "a secure sum": (
        "distributed_dgauss",
        {"max_colluders": 1, "max_stragglers": 1, "execution": "protocol"},
        FEW,
    ),
    "weighted": ("gsgd_dp", {"batch_size": 4}, {"num_clients": 40}),
    "a channel": ("natural_channel", {}, {}),
    "disguised": ("bidirectional", {"local_batch_size": 8}, FEW),
}
ON_DISK, NOWHERE = "clients on disk", "/nowhere"
SECONDS = 300  # of one job: far more than it takes


def config(name, disk):
    """Of a run of four rounds, with two checkpoints and bits of the operating system."""
    scheme, settings, dealt = CASES[name]
    where = {"dataset": f"disk:{disk}"}
    if name != ON_DISK:
        where = {"dataset": "digits", "partition": "iid", **dealt}
    noise = {} if schemes.get(scheme).promise == "nats" else {"noise_multiplier": 4.0}
    return config_lib.from_sections(
        {
            "scheme": {"scheme": scheme, **noise, **settings},
            "data": where,
            "privacy": {"target_epsilon": "none", "target_delta": 1e-3},
            "run": {"num_rounds": 4, "eval_every": 4, "checkpoint_every": 2, "baseline": False},
        }
    )


class Operations:
    """Counts what is done to a folder; `reached(count, half)` may stop it there. half: `(folder)`
    does half of what was to be written in a copy of it.
    """

    def __init__(self, run_dir, reached):
        self.run_dir, self.reached, self.count = str(run_dir), reached, 0
        self.lock = threading.RLock()  # while a copy is made nobody else does anything

    def __call__(self, half=None):
        with self.lock:
            self.count += 1
            self.reached(self.count, half or (lambda where: None))

    def listen(self):
        """From now on."""
        for name in ("write", "pwrite", "fsync", "fdatasync", "ftruncate"):
            setattr(os, name, self._of_descriptor(getattr(os, name), name))
        self._of_lines()
        for party, name in ((secagg.Client, "send"), (secagg.Server, "collect")):
            setattr(party, name, self._before(getattr(party, name)))
        sys.addaudithook(self._audit)

    def _audit(self, event, args):
        of_files = event == "open" or event.startswith(("os.", "shutil."))
        paths = (arg for arg in args if isinstance(arg, str)) if of_files else ()
        if any(path.startswith(self.run_dir) for path in paths):
            self()

    def _before(self, usual):
        def call(*args):
            self()
            return usual(*args)

        return call

    def _of_descriptor(self, usual, name):
        def call(file, *args):
            path = os.readlink(f"/proc/self/fd/{file}")
            if not path.startswith(self.run_dir):
                return usual(file, *args)
            half = None
            if name in ("write", "pwrite"):
                place = args[1] if name == "pwrite" else None
                half = functools.partial(self._write_half, path, bytes(args[0]), place)
            self(half)
            return usual(file, *args)

        return call

    def _write_half(self, path, content, place, where):
        with open(where / os.path.relpath(path, self.run_dir), "r+b") as file:
            file.seek(*((0, 2) if place is None else (place,)))
            file.write(content[: len(content) // 2])

    def _of_lines(self):
        """Lines that are added to metrics.jsonl and chain.jsonl."""
        usual, operations = pathlib.Path.open, self

        class Appended:
            def __init__(self, file):
                self._file = file

            def __getattr__(self, name):
                return getattr(self._file, name)

            def __enter__(self):
                return self

            def __exit__(self, *reason):
                self._file.close()

            def write(self, line):
                path = str(self._file.name)
                operations(functools.partial(operations._write_half, path, line, None))
                return self._file.write(line)

        def opened(path, mode="r", *args, **options):
            file = usual(path, mode, *args, **options)
            mine = mode == "ab" and str(path).startswith(operations.run_dir)
            return Appended(file) if mine else file

        pathlib.Path.open = opened


class Told:
    """What a run says, to the parent: when rounds begin, and how long they took."""

    def __init__(self, pipe):
        self.pipe, self.began = pipe, None

    def start(self, plan, rounds_done):
        self.began = time.monotonic()
        os.write(self.pipe, b"b")

    def round(self, record):
        pass

    def stop(self):
        pass


def with_other_data(run_dir):
    """Why a run does not go on with other data of its clients; nothing where it does."""
    usual, read, other = data.load, store.open_store, run_dir.with_name("other")

    def load(name):
        found = usual(name)
        found.train["x"][:] = 1 - found.train["x"]
        return found

    def opened(path):
        if path.name == "train" and not other.exists():
            found = read(path)
            each = zip(found.offsets, found.offsets[1:], strict=False)
            fields = {**found.fields, "x": 1 - found.fields["x"]}
            store.write(other, ({k: v[a:b] for k, v in fields.items()} for a, b in each))
        return read(other if path.name == "train" else path)

    data.load, store.open_store = load, opened
    try:
        run.resume(run_dir, Told(os.open(os.devnull, os.O_WRONLY)))
    except ValueError as reason:
        return str(reason)
    finally:
        data.load, store.open_store = usual, read
    return ""


def begin_or_resume(job, told):
    """The run of a job, to its end."""
    run_dir = pathlib.Path(job["run_dir"])
    if (run_dir / folder.CONFIG).exists():
        return run.resume(run_dir, told)
    return run.start(config(job["do"], job["disk"]), run_dir, told)


def work(job, pipe):
    """What a child does; returns what it has to say."""
    run_dir = pathlib.Path(job["run_dir"])
    if job.get("other_data"):
        return {"words": with_other_data(run_dir)}
    if "points" in job:
        return injected(job, pipe)

    def reached(count, half):
        if count == job.get("at"):
            half(run_dir)
            os.kill(os.getpid(), signal.SIGKILL)

    operations, told = Operations(run_dir, reached), Told(pipe)
    operations.listen()
    outcome = begin_or_resume(job, told)
    seconds = time.monotonic() - told.began
    run_page.write(outcome)
    return {"operations": operations.count, "seconds": seconds}


def of_one_secret(run_dir, another):
    """A folder in which the run of `run_dir` begins once more."""
    another.mkdir()
    for name in (folder.CONFIG, folder.SEED):
        shutil.copy2(run_dir / name, another / name)
    return another


def bits(run_dir):
    """All that a run writes and nothing of when it did: files, and the digest of the last state."""
    names = (folder.METRICS, folder.PRIVACY, folder.CONFIG, folder.FINGERPRINT)
    last = checkpoint.committed(run_dir)[-1]
    state = checkpoint.read(run_dir, last)[1]["digest"]
    return [(run_dir / name).read_text() for name in names], last, state


def traced_once():
    """Runs of one fingerprint, of config, seed and data, share their programs in this process."""
    jobs, programs, usual_prepare, usual_jit = {}, {}, run.prepare, mesh.jit

    def prepare(*given):
        found = usual_prepare(*given)
        return jobs.setdefault(json.dumps(found.began_with), found)

    run.round_fun = functools.cache(run.round_fun)

    def jit(device_mesh, fun, *args, **options):
        parts = (getattr(fun, "func", fun), *(id(arg) for arg in getattr(fun, "args", ())))
        if parts not in programs:
            programs[parts] = usual_jit(device_mesh, fun, *args, **options)
        return programs[parts]

    run.prepare, mesh.jit = prepare, jit


def copied(source, target):
    """A copy of a folder in which the threads of a checkpoint may be at work: first checkpoints,
    then what they know of.
    """
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(source.iterdir(), key=lambda path: path.name != folder.CHECKPOINTS):
            target.mkdir(exist_ok=True)
            if path.is_dir():
                copied(path, target / path.name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy2(path, target / path.name)


def injected(job, pipe):
    """Copies of a run's folder at some of its operations, and what became of each."""
    traced_once()
    reference = pathlib.Path(job["run_dir"])
    told, chosen, copies = Told(pipe), set(), {}

    def reached(count, half):
        if count in chosen:
            copies[count] = reference.with_name(f"copy-{count}")
            operations.run_dir, mine = NOWHERE, operations.run_dir  # copying is not counted
            copied(pathlib.Path(mine), copies[count])
            operations.run_dir = mine
            half(copies[count])

    operations = Operations(reference, reached)
    operations.listen()
    begin_or_resume(job, told)
    most, operations.run_dir, operations.count = operations.count, NOWHERE, 0
    wanted, watched = bits(reference), of_one_secret(reference, reference.with_name("watched"))
    chosen |= set(random.Random(job["seed"]).sample(range(1, most + 1), min(job["points"], most)))
    operations.run_dir = str(watched)
    run.resume(watched, told)
    operations.run_dir = NOWHERE
    chosen.clear()  # messages of the runs that go on are none of its
    wrong = [] if bits(watched) == wanted else ["the run that was watched"]
    for point, copy in copies.items():
        try:
            run.resume(copy, told)
            if bits(copy) != wanted:
                wrong.append(f"{point}: other bits")
        except Exception as reason:
            wrong.append(f"{point}: {type(reason).__name__}: {reason}")
    return {"operations": most, "kills": len(copies), "wrong": wrong}


def done(job):
    """The answer to a job."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        said, code = {}, 1
        try:
            said, code = work(job, write), 0
        except BaseException:
            said = {"words": traceback.format_exc()}
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(said))
            pipe.flush()
        os._exit(code)
    os.close(write)
    signal.alarm(SECONDS)  # a job that hangs ends this process, and the test with it
    with os.fdopen(read, "rb") as pipe:
        first = b"" if job.get("after") is None else pipe.read(1)
        if first == b"b":
            time.sleep(job.get("after"))
            os.kill(child, signal.SIGKILL)
        said = (first + pipe.read()).lstrip(b"b")
    _, status, used = os.wait4(child, 0)
    signal.alarm(0)
    cpu = used.ru_utime + used.ru_stime
    return {
        "status": os.waitstatus_to_exitcode(status),
        "cpu": cpu,
        **(json.loads(said) if said else {}),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(done(json.loads(line))), flush=True)
