"""What was tested where: rows of tests/matrix.json, and docs/reference/matrix.md made of them.

Sessions of noxfile.py call `python -m tests.matrix WHAT RESOLUTION SELECTION REPORT` in their own
environment, which leaves a row; `python -m tests.matrix` writes the page.
"""

import datetime
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).parents[1]
ROWS = ROOT / "tests" / "matrix.json"
PAGE = ROOT / "docs" / "reference" / "matrix.md"
PACKAGES = ("jax", "flax", "optax", "numpy")
HEAD = """# Where it was tested

`make matrix` makes these environments with uv and runs tests in each. "oldest" is the lowest
release of every direct dependency that `pyproject.toml` allows and that has a wheel for the Python;
"newest" the highest. The selection "default" is that of `make test`; "quick" are the tests that
`noxfile.py` lists.

An environment without a row has not been run. JAX 0.10.2 is the lowest because XLA of 0.10.0 and
0.10.1 adds up the squares of a long row one after the other on a CPU: a row of a million entries
was clipped to 1.0003 times its bound there, where the promise is 1.00001. This page is made by
`python -m tests.matrix`.

"""


def version(package):
    """The installed one; "-" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def row(what, resolution, selection, report):
    """What this environment is, and what pytest's report says of it."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.strip()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "what": what,
        "dependencies": resolution,
        "versions": {package: version(package) for package in PACKAGES},
        "selection": selection,
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def place(found):
    """What a row is about: a later one takes the place of an earlier one."""
    return found["what"], found["python"], found["dependencies"]


def put(rows, found):
    """The rows with `found`, sorted."""
    others = [other for other in rows if place(other) != place(found)]
    return sorted([*others, found], key=place)


def table(rows):
    """The rows in Markdown."""
    names = [
        "what",
        "Python",
        "dependencies",
        *PACKAGES,
        "selection",
        "passed",
        "failed",
        "skipped",
    ]
    lines = [names, ["---"] * len(names)]
    for found in rows:
        versions = [found["versions"][package] for package in PACKAGES]
        counts = [str(found[name]) for name in ("selection", "passed", "failed", "skipped")]
        about = [found["what"], found["python"], found["dependencies"]]
        lines.append([*about, *versions, *counts])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def order(text):
    """A version's numbers, to compare by."""
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def badge(rows):
    """The sentence of the README: Pythons and JAX releases in which nothing failed."""
    clean = [found for found in rows if not found["failed"]]
    pythons = sorted({found["python"] for found in clean}, key=order)
    jaxes = sorted({found["versions"]["jax"] for found in clean}, key=order)
    chosen = "all" if all(found["selection"] == "default" for found in rows) else "chosen"
    failed = "" if len(clean) == len(rows) else f", not in {len(rows) - len(clean)}"
    return (
        f"Python {', '.join(pythons)} and JAX {jaxes[0]} to {jaxes[-1]} pass {chosen} tests in "
        f"[{len(clean)} environments](docs/reference/matrix.md){failed}."
    )


if __name__ == "__main__":
    known = json.loads(ROWS.read_text()) if ROWS.exists() else []
    if sys.argv[1:]:
        ROWS.write_text(json.dumps(put(known, row(*sys.argv[1:])), indent=1) + "\n")
    else:
        PAGE.write_text(HEAD + table(known))
        print(badge(known))
