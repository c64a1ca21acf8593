"""Which platform a program is lowered for: forms are chosen by that, not by who traces.

A program is traced before anybody knows where it will run, and may be lowered for several platforms
at once (`jax.export`). So a choice is staged as `jax.lax.platform_dependent` with a form for each
platform, of which lowering keeps one. While the form of a platform is traced, choices inside it are
plain Python: only the outermost one is staged.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax

T = TypeVar("T")

PLATFORMS = ("cpu", "cuda", "tpu")  # any other takes what "cuda" takes
_OTHERS = "cuda"

# A user context is part of the keys of JAX's caches: what was traced for one platform is not taken
# for another.
_context = jax.make_user_context(None)


def candidates() -> tuple[str, ...]:
    """The platforms that what is traced here may be lowered for."""
    return _context.value or PLATFORMS


def cpu_alone() -> bool:
    """Whether what is traced here is for CPUs, and for nothing else."""
    return candidates() == ("cpu",)


def tpu_alone() -> bool:
    """Whether what is traced here is for TPUs, and for nothing else."""
    return candidates() == ("tpu",)


def named(platform: str | None) -> str:
    """One of PLATFORMS. None: JAX's default backend, a choice of the host.

    Raises:
      ValueError: it is not one of them.
    """
    if platform is None:
        backend = jax.default_backend()
        return backend if backend in PLATFORMS else _OTHERS
    if platform not in PLATFORMS:
        raise ValueError(f"Expected platform to be one of {PLATFORMS}, got platform={platform!r}.")
    return platform


def only(*platforms: str) -> contextlib.AbstractContextManager[Any]:
    """What is traced inside is for these platforms alone."""
    return _context(tuple(sorted(platforms)))


def choose(*args: Any, default: Callable[..., T], **forms: Callable[..., T]) -> T:
    """The form of the platform that is lowered for, of these arguments.

    Args:
      *args: pytrees of arrays.
      default: of platforms that have no form of their own.
      **forms: by platform, one of PLATFORMS; results have the shapes and dtypes of `default`'s.
        Platforms with equal functions share one trace.
    """
    groups: dict[Callable[..., T], list[str]] = {}
    for platform in candidates():
        groups.setdefault(forms.get(platform, default), []).append(platform)
    if len(groups) == 1:
        (fun,) = groups
        return fun(*args)
    branches: dict[str, Callable[..., T]] = {}
    for fun, platforms in groups.items():
        branch = _traced_for(fun, platforms)
        branches |= {name: branch for name in platforms}
    # The last one is for platforms that nobody named.
    last = branches[_OTHERS if _OTHERS in branches else candidates()[-1]]
    named = {name: branch for name, branch in branches.items() if branch is not last}
    return jax.lax.platform_dependent(*args, default=last, **named)


def _traced_for(fun: Callable[..., T], platforms: list[str]) -> Callable[..., T]:
    def call(*args: Any) -> T:
        with only(*platforms):
            return fun(*args)

    return call


def is_choice(equation: Any) -> bool:
    """Whether an equation, of any primitive, is a staged choice."""
    return equation.params.get("branches_platforms") is not None


def branch_of(equation: Any, *platforms: str) -> Any:
    """The closed jaxpr of a staged choice that these platforms take, all the same one; else None.

    Args:
      equation: of any primitive.
      *platforms: none for `candidates()`.
    """
    if not is_choice(equation):
        return None
    of_branches = equation.params["branches_platforms"]
    taken = {_position(of_branches, platform) for platform in platforms or candidates()}
    return equation.params["branches"][taken.pop()] if len(taken) == 1 else None


def _position(of_branches: tuple[tuple[str, ...] | None, ...], platform: str) -> int:
    return next(k for k, names in enumerate(of_branches) if names is None or platform in names)
