"""Changes the code in a few hundred small ways, and sees that tests fail.

    python -m pip install -e ".[dev,release]"
    python -m tests.mutants --record FOLDER     # the suite under coverage, a quarter of an hour
    python -m tests.mutants FOLDER              # an hour on two cores; goes on where it stopped

A mutant is one change of one expression: an operator, a comparison, a number, a sign, a condition.
Mutants are drawn by a seed from what computes and accounts. The tests that run the changed line are
tried on it, cheap ones first; one that fails has killed the mutant, if it passes on the sound tree.
The result is `tests/mutants.json`. A survivor is a hole in the tests, or it changes nothing that a
user could see: then somebody writes there why, and the next run keeps the reason.
"""

import argparse
import ast
import collections
import functools
import importlib
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / "tests/mutants.json"
SEED = 30
# Where mutants are drawn, and how many.
DRAWN = {
    "fljax/accounting": 90,
    "kernels/fljax_kernels/clipped_sum": 25,
    "kernels/fljax_kernels/gaussian": 20,
    "kernels/fljax_kernels/sampling": 15,
    "fljax/local/clipping.py": 12,
    "fljax/server/aggregate.py": 14,
    "fljax/schemes": 40,
}
_SECONDS = 90  # of tests on one mutant, by what they took when they were recorded
_CPU_SECONDS = 240  # of a process: a mutant that never ends is dead


class Mutant(NamedTuple):
    """`code` instead of the bytes at `place`, which makes `new` of `old`; function: where."""

    path: str
    function: str
    line: int
    place: tuple[int, int]
    code: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """Without numbers of lines, which move."""
        return f"{self.path}: {self.function}: {self.old} -> {self.new}"


_SWAPPED = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Pow: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.And: "or",
    ast.Or: "and",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
_CALLED = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "floor": "ceil",
    "ceil": "floor",
    "all": "any",
    "any": "all",
    "exp": "expm1",
    "expm1": "exp",
    "log": "log1p",
    "log1p": "log",
    "sum": "max",
    "nextafter": "maximum",
}


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a file; one may not parse.

    Messages, annotations, docstrings, decorators, defaults of classes and what only type checkers
    read are left as they are.
    """
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    text = source.encode()
    found: list[Mutant] = []

    def offsets(node: ast.AST) -> tuple[int, int]:
        end = lines[node.end_lineno - 1] + node.end_col_offset
        return lines[node.lineno - 1] + node.col_offset, end

    def add(node: ast.AST, first: int, last: int, new: str, function: str) -> None:
        begin, end = offsets(node)
        shown = text[begin:end], text[begin:first] + new.encode() + text[last:end]
        old_code, new_code = (" ".join(code.decode().split()) for code in shown)
        place = (first, last)
        found.append(Mutant(path, function, node.lineno, place, new, old_code, new_code))

    def between(left: ast.AST, right: ast.AST, op: ast.AST, node: ast.AST, function: str) -> None:
        if type(op) not in _SWAPPED:
            return
        old, (first, last) = symbols[type(op)], (offsets(left)[1], offsets(right)[0])
        place = text[first:last].decode().find(old)
        if place >= 0:
            add(node, first + place, first + place + len(old), _SWAPPED[type(op)], function)

    symbols = {
        ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//",
        ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
        ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
        ast.And: "and", ast.Or: "or", ast.BitAnd: "&", ast.BitOr: "|",
    }  # fmt: skip

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for child in node.body:
                if not (isinstance(node, ast.ClassDef) and isinstance(child, ast.AnnAssign)):
                    visit(child, node.name if not function else f"{function}.{node.name}")
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, function)
            return
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
            ("_validate.", "warnings.")
        ):
            return
        if isinstance(node, ast.BinOp) and type(getattr(node.left, "value", 0)) is not str:
            between(node.left, node.right, node.op, node, function)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, right, op in zip(operands, operands[1:], node.ops, strict=False):
                between(left, right, op, node, function)
        if isinstance(node, ast.BoolOp):
            between(node.values[0], node.values[1], node.op, node, function)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            first, _ = offsets(node)
            add(node, first, offsets(node.operand)[0], "", function)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            first, last = offsets(node)
            value = node.value
            new = (
                str(not value)
                if type(value) is bool
                else str(value + 1)
                if type(value) is int
                else repr(2 * value if value else 1.0)
            )
            add(node, first, last, new, function)
        if isinstance(node, ast.Call):
            name = node.func
            if isinstance(name, ast.Attribute) and name.attr in _CALLED:
                last = offsets(name)[1]
                add(node, last - len(name.attr), last, _CALLED[name.attr], function)
            if isinstance(name, ast.Name) and name.id in _CALLED:
                add(node, *offsets(name), _CALLED[name.id], function)
        if isinstance(node, ast.IfExp | ast.If):
            first, last = offsets(node.test)
            code = text[first:last].decode()
            add(node.test, first, last, f"(not ({code}))", function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    for node in ast.parse(source).body:
        visit(node, "")
    return found


@functools.cache
def draw() -> list[Mutant]:
    """Those of `DRAWN`, in an order that mixes the places; no two of one line."""
    rng, chosen = random.Random(SEED), []
    for place, count in DRAWN.items():
        top = ROOT / place
        paths = [top] if top.is_file() else sorted(top.rglob("*.py"))
        paths = [path for path in paths if path.name != "cases.py"]  # what tests share
        sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
        pool = [one for path, source in sources.items() for one in mutants(path, source)]
        rng.shuffle(pool)
        taken: set[object] = set()
        for one in pool:
            marks = {(one.path, one.line), one.name}
            if len(taken) < 2 * count and not marks & taken and parses(one, sources[one.path]):
                taken |= marks
                chosen.append(one)
    rng.shuffle(chosen)
    return chosen


def parses(mutant: Mutant, source: str) -> bool:
    """Whether the source is Python with the mutant in it."""
    try:
        ast.parse(changed(mutant, source.encode()))
    except SyntaxError:
        return False
    return True


def changed(mutant: Mutant, sound: bytes) -> bytes:
    """The source with the mutant in it."""
    first, last = mutant.place
    return sound[:first] + mutant.code.encode() + sound[last:]


class Record(NamedTuple):
    """seconds: of each test. lines: (path, line) to the tests that run it. breadth: lines that a
    test runs.
    """

    seconds: dict[str, float]
    lines: dict[tuple[str, int], list[str]]
    breadth: dict[str, int]


def record(folder: pathlib.Path) -> None:
    """Runs the suite under coverage, test by test."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "coverage")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    command += ["--cov=fljax", "--cov=fljax_kernels", "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={folder / 'durations.xml'}"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def recorded(folder: pathlib.Path) -> Record:
    """What `record` left in a folder."""
    import coverage

    seconds = {}
    for case in ElementTree.parse(folder / "durations.xml").iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        seconds[f"{path}::{case.get('name')}"] = float(case.get("time", 0))
    data = coverage.CoverageData(basename=str(folder / "coverage"))
    data.read()
    lines: dict[tuple[str, int], list[str]] = {}
    breadth: dict[str, int] = collections.Counter()
    wanted = {one.path for one in draw()}
    for file in data.measured_files():
        path = next((one for one in wanted if file.endswith("/" + one)), None)
        if path is None:
            continue
        for line, contexts in data.contexts_by_lineno(file).items():
            lines[path, line] = sorted({one.partition("|")[0] for one in contexts if one})
            breadth.update(lines[path, line])
    return Record(seconds, lines, breadth)


def tests_for(mutant: Mutant, known: Record) -> list[str]:
    """Tests that run the line, or else the file: those that run little else, and are cheap, come
    first.
    """
    tests = known.lines.get((mutant.path, mutant.line), [])
    if not tests:
        near = {t for (path, _), found in known.lines.items() if path == mutant.path for t in found}
        tests = sorted(near)

    def cost(test: str) -> float:
        return (0.05 + known.seconds.get(test, 1.0)) * (300 + known.breadth[test])

    chosen, total = [], 0.0
    for test in sorted(tests, key=cost):
        total += known.seconds.get(test, 1.0)
        if total > _SECONDS and chosen:
            break
        chosen.append(test)
    return chosen[:400]


class _First:
    """A plugin that remembers the first test that failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        if report.failed and not self.failed:  # type: ignore[attr-defined]
            self.failed = report.nodeid  # type: ignore[attr-defined]

    def pytest_collectreport(self, report: object) -> None:
        if report.failed and not self.failed:  # type: ignore[attr-defined]
            self.failed = f"{report.nodeid} (collection)"  # type: ignore[attr-defined]


def _in_child(tests: list[str], pipe: int) -> None:
    """Runs tests in this process and writes the first failure's name; ends the process."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 5))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    first, ended = _First(), 1
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov"]
    try:
        pytest.main([*options, *tests], plugins=[first])
        os.write(pipe, first.failed.encode())  # an end for want of a test kills nothing
        ended = 0
    finally:
        os._exit(ended)


def killer(tests: list[str]) -> str:
    """The first test that fails, or ""; each call is a fork of this process."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        _in_child(tests, there)
    os.close(there)
    told = b""
    while part := os.read(here, 4096):
        told += part
    os.close(here)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"Expected pytest to run {tests[:3]}, got an exception in it.")
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "no end" if name == "SIGXCPU" else name
    return told.decode()


def killer_of(mutant: Mutant, tests: list[str], tree: pathlib.Path) -> str:
    """`killer` on the tree with the mutant in it."""
    path = tree / mutant.path
    sound = path.read_bytes()
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()  # of the same size and second as the mutant, it would be taken for it
    path.write_bytes(changed(mutant, sound))
    try:
        return killer(tests)
    finally:
        path.write_bytes(sound)


def _tree(folder: pathlib.Path, number: int) -> pathlib.Path:
    """A copy of what is tested, into which this process goes; JAX and what it needs are imported.

    Programs are kept in the folder: most of them are not changed by a mutant.
    """
    tree = folder / f"tree{number}"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    os.chdir(tree)
    os.environ |= {
        "PYTHONPATH": f"{tree}:{tree / 'kernels'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_PLATFORMS": "cpu",
    }
    sys.path[:0] = [str(tree), str(tree / "kernels")]
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "fljax", "kernels"], cwd=tree, check=True
    )
    sys.dont_write_bytecode = True
    importlib.import_module("tests._environment")  # before jax, which reads what it sets
    for name in ("flax.nnx", "optax", "scipy.stats"):  # no plugin of pytest: it rewrites them
        importlib.import_module(name)
    return tree


def _work(folder: pathlib.Path, number: int, workers: int) -> None:
    """One worker: its own copy of the tree, its share of the mutants."""
    tree = _tree(folder, number)
    known, done = recorded(folder), _rows(folder)
    for mutant in draw()[number::workers]:
        if mutant.name in done:
            continue
        tests = tests_for(mutant, known)
        killed_by = killer_of(mutant, tests, tree) if tests else ""
        row = {
            "name": mutant.name,
            "line": mutant.line,
            "tests": len(tests),
            "killed_by": killed_by,
        }
        with (folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def _rows(folder: pathlib.Path) -> dict[str, dict[str, object]]:
    """What is known of each mutant: the last line of its name."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def _again(folder: pathlib.Path, tests: list[str]) -> None:
    """Tries tests on all that survived."""
    tree = _tree(folder, 9)
    rows = _rows(folder)
    for mutant in draw():
        row = rows.get(mutant.name)
        if row and not row["killed_by"]:
            row["killed_by"] = killer_of(mutant, tests, tree)
            with (folder / "results.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


def _unsound(killers: Iterable[str]) -> set[str]:
    """Those of the killers that fail on the sound tree, into which this process has gone."""
    found: set[str] = set()
    for _, tests in itertools.groupby(sorted(killers), lambda test: test.partition("::")[0]):
        rest = list(tests)
        while rest and (first := killer(rest)):
            # An end that names no test condemns all of them.
            found |= {first} if first in rest else set(rest)
            rest = [test for test in rest if test not in found]
    return found


def _write(folder: pathlib.Path) -> int:
    """Runs all killers on the sound tree, and writes the result; the number of mutants that survive
    without a reason.
    """
    rows, chosen = _rows(folder), {mutant.name for mutant in draw()}
    killed_by = {name: str(row["killed_by"]) for name, row in rows.items() if name in chosen}
    _tree(folder, 8)
    # A file that cannot be imported under a mutant could be when the suite was recorded.
    unsound = _unsound({how for how in killed_by.values() if "::" in how})
    told = {name: "" if how in unsound else how for name, how in sorted(killed_by.items())}
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, check=True
    )
    reasons = json.loads(RESULT.read_text())["survivors"] if RESULT.exists() else {}
    survivors = {name: reasons.get(name, "") for name, how in told.items() if not how}
    result = {
        "commit": head.stdout.decode().strip(),
        "seed": SEED,
        "mutants": len(told),
        "killed": len(told) - len(survivors),
        "killed_by": {name: how for name, how in told.items() if how},
        "survivors": survivors,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(told)} mutants, {len(survivors)} survive; killers that fail anyway: {unsound}")
    unseen = [name for name, reason in survivors.items() if not reason]
    for name in unseen:
        print(name)
    return len(unseen)


def main() -> int:
    """Records, or tries mutants, or tries tests on survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--again", nargs="+", metavar="TEST", help="on all that survived")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.record:
        record(folder)
        return 0
    if options.worker is not None:
        _work(folder, options.worker, 2)
        return 0
    if options.again:
        _again(folder, options.again)
    else:
        command = [sys.executable, "-m", "tests.mutants", str(folder), "--worker"]
        workers = [subprocess.Popen([*command, str(number)], cwd=ROOT) for number in range(2)]
        if any([worker.wait() for worker in workers]):
            return 1
    return int(_write(folder) > 0)


if __name__ == "__main__":
    sys.exit(main())
