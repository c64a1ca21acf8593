"""Layers that stay with a client: which arrays of a model they are, and the model that has them."""

from typing import Any

import jax

from fljax.types import Params


def by_path(tree: Params) -> dict[str, Any]:
    """The arrays of a tree by their paths, whose names have slashes between."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def layers(params: Params, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The arrays of the named layers, by their paths."""
    return {
        path: leaf for path, leaf in by_path(params).items() if set(names) & set(path.split("/"))
    }


def merged(params: Params, own: dict[str, Any]) -> Params:
    """The parameters, with a client's own in place of those that have their paths."""
    leaves = [own.get(path, leaf) for path, leaf in by_path(params).items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)
