"""One process of a run on several, which the test forks from one that has imported all of this:
`main(port, processes, id, what, run_dir, config, log, words, programs, hold_s)`.

Writes the ids of the clients whose bytes it read into `log`, and what it says into `words`. What it
compiles it keeps in the folder `programs`, which no other process of the run may share.
"""

import json
import os
import time
import types

import jax
from jax._src import compiler, distributed

from fljax.data import store
from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.devices import processes


class Held:
    """hold_s: how long the first process, which alone has watchers that hold it up, waits after its
    third round.
    """

    def __init__(self, hold_s):
        self.hold_s = hold_s

    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        if record["round"] == 3:
            time.sleep(self.hold_s if processes.first() else 0)

    def stop(self):
        pass


def main(port, num_processes, process_id, what, run_dir, config, log, words, programs, hold_s):
    os.dup2(os.open(words, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_compilation_cache_dir", str(programs))
    processes.join(f"127.0.0.1:{port}", num_processes, process_id)
    # JAX would keep what the first process compiles alone: with it that one runs ahead of the
    # others, and gives up waiting for them.
    every = {**vars(distributed.global_state), "process_id": 0}
    compiler.distributed = types.SimpleNamespace(global_state=types.SimpleNamespace(**every))
    seen: set[int] = set()
    read = store.read

    def noted(clients, ids, *args, **options):
        seen.update(int(i) for i in ids if i >= 0)
        log.write_text(json.dumps(sorted(seen)))
        return read(clients, ids, *args, **options)

    store.read = noted
    with processes.leaving_on_failure():
        assert len(jax.local_devices()) == 2 and jax.process_count() == num_processes
        if what == "start":
            run.start(config_lib.from_sections(config), run_dir, Held(hold_s))
        else:
            run.resume(run_dir, Held(hold_s))
    jax.distributed.shutdown()  # a fork ends without what JAX would do as a process exits
