"""Arrays on a mesh with Explicit axes, whose types carry their sharding; and what devices have to
agree on that share arrays.

JAX refuses an operation there whose result could be sharded in several ways, and what is private
has many. So the axes become Auto inside, where XLA chooses, and results are given the sharding that
a caller expects, as `jax.grad` gives it.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

Spec = tuple[Any, ...]


class Home:
    """The mesh that arrays come from and go back to; `auto` is the same with Auto axes for Explicit
    ones.
    """

    def __init__(self, mesh: Any):
        explicit = [
            axis
            for axis in mesh.axis_names
            if mesh.axis_types[mesh.axis_names.index(axis)] is AxisType.Explicit
        ]
        self.mesh, self.auto = mesh, mesh.update_axis_types(dict.fromkeys(explicit, AxisType.Auto))

    def inside(self) -> contextlib.AbstractContextManager[Any]:
        """XLA chooses in here. Arrays must have been through `enter`, what is closed over too."""
        return jax.sharding.use_abstract_mesh(self.auto)

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Within `inside`, what it was outside."""
        return jax.sharding.use_abstract_mesh(self.mesh)

    def enter(self, tree: Any) -> Any:
        """Arrays of this mesh as `inside` takes them, where they are; all else unchanged."""
        return self._moved(tree, self.mesh, self.auto)

    def whole(self, tree: Any) -> Any:
        """Arrays, also from inside, whole on every device."""
        return self._moved(self._moved(tree, self.mesh, self.mesh), self.auto, self.mesh)

    def leave(self, x: jax.Array, spec: Spec) -> jax.Array:
        """A result as an array of this mesh, sharded by `spec`."""
        return jax.sharding.reshard(x, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def _moved(self, tree: Any, from_mesh: Any, to_mesh: Any) -> Any:
        everywhere = NamedSharding(to_mesh, PartitionSpec())

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array) or _sharding(leaf).mesh != from_mesh:
                return leaf
            return jax.sharding.reshard(leaf, everywhere)

        return jax.tree.map(move, tree)


def _sharding(x: Any) -> Any:
    return jax.typeof(x).sharding


def spec(x: Any) -> Spec:
    """Over which Explicit axes each axis of x is spread: as many entries as x has axes, None for
    none.
    """
    ndim = np.ndim(x)
    if not isinstance(x, jax.Array):
        return (None,) * ndim
    parts = tuple(_sharding(x).spec)
    return parts + (None,) * (ndim - len(parts))


def is_spread(x: Any) -> bool:
    """Whether XLA may cut x into parts: it is of a mesh with an Auto axis of several devices."""
    if not isinstance(x, jax.Array):
        return False
    mesh = _sharding(x).mesh
    return any(
        kind is AxisType.Auto and mesh.shape[name] > 1
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )


def in_step() -> tuple[str, ...]:
    """Axes along which devices have to take the same steps of loops, and the same branches: those
    of a `shard_map`, where XLA may cut arrays along others. Empty: each may go its own way.

    XLA then moves parts of arrays between devices wherever it likes, in loops and branches too. A
    CPU waits for all devices of a mesh at some of these moves (collective-permute), so that one
    which takes a step or a branch alone waits for ever.
    """
    mesh = jax.sharding.get_abstract_mesh()
    by_hand = tuple(axis for axis in mesh.manual_axes if mesh.shape[axis] > 1)
    cut = any(size > 1 for axis, size in mesh.shape.items() if axis not in mesh.manual_axes)
    return by_hand if cut else ()


def any_has(x: jax.Array) -> jax.Array:
    """x, True or False, or where devices have to be in step whether any has True."""
    axes = in_step()
    return jax.lax.pmax(x.astype(jnp.int32), axes) > 0 if axes else x


def all_have(x: jax.Array) -> jax.Array:
    """The same, whether all have True: which branch is taken."""
    return ~any_has(~x) if in_step() else x


def while_loop(go_on: Callable[[Any], jax.Array], body: Callable[[Any], Any], start: Any) -> Any:
    """`jax.lax.while_loop`; where devices have to be in step, one whose loop is over takes the
    others' steps along, and keeps its state.
    """
    if not in_step():
        return jax.lax.while_loop(go_on, body, start)

    def step(state: Any) -> Any:
        more = go_on(state)
        return jax.tree.map(lambda new, old: jnp.where(more, new, old), body(state), state)

    return jax.lax.while_loop(lambda state: any_has(go_on(state)), step, start)


def fori_loop(
    low: int | jax.Array, high: jax.Array, body: Callable[[jax.Array, Any], Any], start: Any
) -> Any:
    """`jax.lax.fori_loop`, as `while_loop`."""
    if not in_step():
        return jax.lax.fori_loop(low, high, body, start)

    def step(state: Any) -> Any:
        i, inner = state
        return i + 1, body(i, inner)

    first = jnp.asarray(low, high.dtype), start
    return while_loop(lambda state: state[0] < high, step, first)[1]


def leading(tree: Any) -> Any:
    """The Explicit axes that the common leading axis of a batch is spread over; None for none."""
    parts = [spec(leaf)[0] for leaf in jax.tree.leaves(tree) if np.ndim(leaf)]
    return next((part for part in parts if part is not None), None)


def beside(first: Any, rest: Spec) -> Spec:
    """The spec (first, *rest), without axes in `rest` that `first` takes: none may stand twice."""
    taken = {first} if isinstance(first, str) else set(first or ())

    def free(part: Any) -> Any:
        names = {part} if isinstance(part, str) else set(part or ())
        return None if names & taken else part

    return (first, *map(free, rest))


def home(*trees: Any) -> Home | None:
    """Where some array is spread over Explicit axes: their mesh. None: there is nothing to
    choose.
    """
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and any(part is not None for part in spec(leaf)):
            return Home(_sharding(leaf).mesh)
    return None


def compute(at: Home, fun: Callable[..., Any], *trees: Any) -> Any:
    """`fun(*trees)` inside; its results still have to leave.

    An array of the mesh that `fun` closes over cannot be moved inside. Then everything is computed
    on every device.
    """
    try:
        with at.inside():
            return fun(*at.enter(trees))
    except (TypeError, ValueError):  # or it is an error of the caller's own, which is raised again
        return fun(*at.whole(trees))
