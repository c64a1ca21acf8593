"""What must hold of a release: `make release-check`, about ten minutes and a package index.

From the files of HEAD: both wheels and source archives are built twice, to the same bytes; twine
finds no fault; each is installed into an empty environment, where the README's snippets run and
every command of the command line answers.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = {"fljax": ".", "fljax_kernels": "kernels"}
KERNELS = """
import jax.numpy as jnp, fljax_kernels
assert "site-packages" in fljax_kernels.__file__, fljax_kernels.__file__
total, _ = fljax_kernels.clip_and_sum(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
assert abs(float(jnp.linalg.norm(total)) - 1.5) < 1e-6, total
"""
# Arguments with which each command does its work in seconds.
COMMANDS = {
    "simulate": "--num-rounds 1 --num-clients 20 --seed 0 --model softmax --no-baseline",
    "data": "describe digits",
    "predict": "runs/digits-dp_fedavg-001 digits",
    "export": "runs/digits-dp_fedavg-001 --to npz",
    "report": "runs/digits-dp_fedavg-001",
    "verify": "runs/digits-dp_fedavg-001",
    "watch": "--help",  # goes on until it is stopped
    "compare": "--help",  # trains six methods
    "schemes": "",
    "completion": "bash",
    "attack": "--scheme dp_fedavg --attack one_unit --trials 200",
    "audit": "--scheme local_dp --trials 200",
    "account": "--noise-multiplier 1.1 --sampling-prob 0.01 --steps 100 --delta 1e-5",
    "calibrate": "--epsilon 3 --sampling-prob 0.01 --steps 100 --delta 1e-5",
    "reproduce": "wfna --item fig3",
    "errata": "E1 --paper wfna",
    "bench": "--help",  # measures for a minute
}


def run(*command, cwd=ROOT, **variables):
    """What a command prints; ends the check where it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    print("+", *(str(part) for part in command[:8]), flush=True)
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=kept | {"JAX_PLATFORMS": "cpu"} | variables,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}failed: {' '.join(map(str, command))}")
    return done.stdout


def exported(folder, commit="HEAD"):
    """The committed files, in a folder of their own."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--format=tar", "-o", archive, commit)
    shutil.unpack_archive(archive, folder, filter="data")
    return folder


def built(checkout, out, epoch):
    """Both packages as wheel and source archive: file -> SHA-256 of its bytes."""
    for source in SOURCES.values():
        command = [sys.executable, "-m", "hatchling", "build", "-d", out]
        run(*command, cwd=checkout / source, SOURCE_DATE_EPOCH=epoch)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def commit_time():
    """Seconds of the commit, as a string: what files in archives are dated."""
    return run("git", "log", "-1", "--format=%ct").strip()


def snippets():
    """Python of the README."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def try_out(artifact, folder):
    """Installs one file into an empty environment and uses it there."""
    venv.create(folder, with_pip=True)
    python, kernels = folder / "bin" / "python", artifact.name.startswith("fljax_kernels")
    wanted = f"{artifact}" if kernels else f"{artifact}[sim]"
    run(python, "-m", "pip", "install", "--quiet", wanted, cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)
    run(python, "-c", KERNELS, cwd=folder)
    if kernels:
        return
    for code in snippets():
        run(python, "-c", code, cwd=folder)
    found = run(folder / "bin" / "fljax", "--help", cwd=folder)
    listed = re.findall(r"^  (\w+)  ", found, flags=re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS), f"a command without a smoke test: {listed}"
    for command, options in COMMANDS.items():
        run(folder / "bin" / "fljax", command, *options.split(), cwd=folder)
    run(python, "-m", "fljax", "--version", cwd=folder)


def main():
    """The whole check; files are left in dist/."""
    out, epoch = ROOT / "dist", commit_time()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        first = built(exported(work / "one"), out, epoch)
        again = built(exported(work / "another"), work / "dist", epoch)
        differ = sorted(file for file in first if first[file] != again.get(file))
        assert first.keys() == again.keys() and not differ, f"other bytes: {differ or again}"
        run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir())
        for i, artifact in enumerate(sorted(out.iterdir())):
            try_out(artifact, work / f"venv{i}")
    for file, digest in sorted(first.items()):
        print(digest, f"dist/{file}")


if __name__ == "__main__":
    main()
