"""Environments that fljax must work in: `make matrix`, or `nox -s "tests-3.13(oldest)"` for one.

Each Python that pyproject.toml names, with the oldest and the newest release of every dependency
that it allows; the kernels alone; no extra; each extra alone. Every session leaves a row in
tests/matrix.json, from which `python -m tests.matrix` writes docs/reference/matrix.md.
"""

import pathlib
import tomllib

import nox

ROOT = pathlib.Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name]
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
# A minute or two a session on a quiet machine: numbers, compiled programs, whole rounds, typed
# configs, attributes after one import, names of other packages.
QUICK = [
    "tests/kernels/test_clip_and_sum.py",
    "tests/schemes/test_contracts.py::test_a_broken_scheme_fails_by_the_check_of_its_fault",
    "tests/schemes/test_contracts.py::test_every_scheme_keeps_every_contract[dp_fedavg]",
    "tests/simulation/test_config.py",
    "tests/test_names_of_others.py",
    "tests/test_rooms.py",
]
# What works without an extra, or with some.
WITHOUT = [
    "tests/accounting/test_search.py",
    "tests/local/test_clipping.py",
    "tests/schemes/test_contract.py",
    "tests/test_names_of_others.py",
]
EXTRAS = {
    "sim": (["sim"], ["tests/simulation/test_config.py", "tests/test_names_of_others.py"]),
    "crypto": (["crypto"], ["tests/upload/test_key_agreement.py"]),
    "secure": (
        ["secure"],
        ["tests/upload/test_secure_sums.py", "tests/upload/test_encrypted_sums.py"],
    ),
    "flower": (["sim", "flower"], ["tests/interop/test_flower.py"]),
    "interop": (["interop"], ["tests/accounting/test_events.py"]),
    "parquet": (["sim", "parquet"], ["tests/data/test_parquet.py"]),
    "hdf5": (["sim", "hdf5"], ["tests/data/test_hdf5.py"]),
    "tokenizers": (["sim", "tokenizers"], ["tests/data/test_texts.py"]),
    "export": (["sim", "export"], ["tests/simulation/test_trained.py"]),
    "keras": (["sim", "keras"], ["tests/models/test_others.py"]),
    "equinox": (["sim", "equinox"], ["tests/models/test_others.py"]),
    "haiku": (["sim", "haiku"], ["tests/models/test_others.py"]),
    "trackers": (["sim", "trackers"], ["tests/simulation/test_watchers.py"]),
}

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


def install(session, folder, *extras, resolution="newest"):
    """The package's dependencies, from wheels only, and the checkout itself."""
    session.run_install(
        *("uv", "pip", "install", "--quiet", "--only-binary", ":all:"),
        *("--resolution", RESOLUTIONS[resolution], "-r", f"{folder}/pyproject.toml"),
        *(f"--extra={extra}" for extra in extras),
        external=True,
    )
    session.run_install("uv", "pip", "install", "--quiet", "--no-deps", folder, external=True)


def run(session, what, tests, resolution="newest"):
    """Runs the tests on the installed package, and leaves a row of what was found."""
    whole = session.posargs[:1] == ["default"]
    report = pathlib.Path(session.create_tmp()) / "report.xml"
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"),
        *([] if whole else tests),
        env={"PYTHONPATH": ""},
        success_codes=[0, 1],
    )
    selection = "default" if whole else "quick"
    session.run("python", "-m", "tests.matrix", what, resolution, selection, str(report))


@nox.session(python=PYTHONS)
@nox.parametrize("resolution", list(RESOLUTIONS), ids=list(RESOLUTIONS))
def tests(session, resolution):
    """Everything that tests need, in its oldest or newest release."""
    install(session, ".", "test", resolution=resolution)
    run(session, "all extras of the tests", QUICK, resolution)


@nox.session(python=PYTHONS)
def kernels(session):
    """`fljax-kernels` alone, with numpy and JAX."""
    install(session, "kernels")
    session.install("pytest", "hypothesis")
    run(session, "fljax-kernels alone", ["tests/kernels/test_clip_and_sum.py"])


@nox.session(python=PYTHONS[0])
def core(session):
    """No extra."""
    install(session, ".")
    session.install("pytest", "hypothesis")
    run(session, "no extra", WITHOUT)


@nox.session(python=PYTHONS[0])
@nox.parametrize("extra", list(EXTRAS), ids=list(EXTRAS))
def extra(session, extra):
    """One extra."""
    extras, tests = EXTRAS[extra]
    install(session, ".", *extras)
    session.install("pytest", "hypothesis")
    run(session, " and ".join(f"extra {name}" for name in extras), tests)
