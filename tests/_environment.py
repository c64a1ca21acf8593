"""How the programs of a test run are compiled, and where they are kept: read before JAX is.

Compiling is most of the suite's time, and most tests ask for values only, which the cheapest
machine code gives too. What depends on XLA's own optimisations carries the mark "optimized", and
runs with FLJAX_TEST_OPTIMIZED set. Programs are kept in one folder for all workers, modules and
processes of a run; FLJAX_TEST_PROGRAMS names one that outlives it.
"""

import importlib.metadata
import os
import tempfile

GPU = bool(os.environ.get("FLJAX_TEST_GPU"))
OPTIMIZED = GPU or bool(os.environ.get("FLJAX_TEST_OPTIMIZED"))

# Small programs: splitting each among threads costs more than it saves.
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if not OPTIMIZED:
    _FLAGS += [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # To search loops for work to save takes longer than the tests' loops do. How often they run
        # is counted: tests read it.
        "--xla_disable_hlo_passes=simplify-while-loops,while-loop-invariant-code-motion,"
        "while-loop-constant-sinking",
    ]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends where it knows no flag
        _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
elif not GPU:
    # LLVM's search for the best way to count through loops takes a third of such a compilation, and
    # no number depends on it.
    _FLAGS.append("--xla_backend_extra_options=-disable-lsr")
_flags = os.environ.get("XLA_FLAGS", "").split()  # a worker of pytest-xdist inherits all of them
os.environ["XLA_FLAGS"] = " ".join(_flags + [flag for flag in _FLAGS if flag not in _flags])

# `compiler_options` of programs of which the text or the memory alone is read: XLA has decided both
# before LLVM translates what it made, and that is half of the time.
_CHEAPLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
READ_ONLY = {} if GPU else _CHEAPLY

# Processes that tests start need not compile our sources anew each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The folder that this process made and must remove; "" where one was given.
_kept = os.environ.get("FLJAX_TEST_PROGRAMS", "")
_given = _kept or os.environ.get("JAX_COMPILATION_CACHE_DIR")
MADE = "" if _given else tempfile.mkdtemp(prefix="fljax-xla-")
if _kept or MADE:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _kept or MADE
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

# What a process that a test starts is given even where it must not see the rest of the
# environment: its bits are those of this process, and it compiles nothing twice.
COMPILING = {
    name: value
    for name, value in os.environ.items()
    if name == "XLA_FLAGS" or name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))
}
