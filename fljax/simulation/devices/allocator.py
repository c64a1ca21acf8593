"""How this process keeps memory that it has freed."""

import ctypes
import os
import sys

import jax

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h
_SAID = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed, for the rest of this process; True where it does.

    For programs with large batches on one device of a CPU. XLA asks for a program's scratch memory
    anew at each call, and glibc gives blocks of 32 MiB and more back to the operating system when
    they are freed, which hands them out again page by page, each cleared first: up to a third of
    the time of a step. From here on they come from the main heap, which does not shrink: the
    process holds what it held at its peak, and more where blocks of many sizes leave gaps. Only the
    main thread allocates blocks above 64 MiB there, so one-device programs are run in the thread
    that calls them (`jax_cpu_enable_async_dispatch=False`). Call it in the main thread, before JAX
    starts.

    Nothing changes, and the result is False, where the C library has no `mallopt`, and where the
    environment says how malloc works (MALLOC_MMAP_MAX_ and its like, or GLIBC_TUNABLES).
    """
    said = any(name in os.environ for name in _SAID) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = (
        getattr(ctypes.CDLL(None), "mallopt", None)
        if sys.platform == "linux" and not said
        else None
    )
    if mallopt is None or not all(
        mallopt(name, value) == 1 for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    ):
        return False
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return True
