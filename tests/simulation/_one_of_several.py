"""One process of a run on several: `python _one_of_several.py PORT PROCESSES ID WHAT RUN_DIR
CONFIG.json LOG`.

Writes the ids of the clients whose bytes it read into LOG.
"""

import json
import os
import pathlib
import sys
import time

import jax

from fljax.data import store
from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.devices import processes


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        if (
            record["round"] == 3 and "HOLD_S" in os.environ
        ):  # only the first process has watchers that hold it up
            time.sleep(float(os.environ["HOLD_S"]) if processes.first() else 0)

    def stop(self):
        pass


def main(port, num_processes, process_id, what, run_dir, config, log):
    jax.config.update("jax_num_cpu_devices", 2)
    processes.join(f"127.0.0.1:{port}", int(num_processes), int(process_id))
    seen: set[int] = set()
    read = store.read

    def noted(clients, ids, *args, **options):
        seen.update(int(i) for i in ids if i >= 0)
        pathlib.Path(log).write_text(json.dumps(sorted(seen)))
        return read(clients, ids, *args, **options)

    store.read = noted
    with processes.leaving_on_failure():
        assert len(jax.local_devices()) == 2 and jax.process_count() == int(num_processes)
        if what == "start":
            sections = json.loads(pathlib.Path(config).read_text())
            run.start(config_lib.from_sections(sections), pathlib.Path(run_dir), Silent())
        else:
            run.resume(pathlib.Path(run_dir), Silent())


if __name__ == "__main__":
    main(*sys.argv[1:])
