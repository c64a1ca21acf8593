"""The model of a run that has been trained: loaded, used and written for other programs."""

import json
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, models
from fljax.models.functions import Apply
from fljax.simulation import base_model, description, own
from fljax.simulation import config as config_lib
from fljax.simulation.record import checkpoint, folder
from fljax.types import Params

FORMS = ("safetensors", "orbax", "npz")
_AT_A_TIME = 1024  # examples


class Trained(NamedTuple):
    """A run's private model.

    params: nested dicts of arrays. rounds: that trained it. claim: what is certified of it, as in
    privacy.json. about: what it takes and gives, as in model.json. base: frozen weights, beside
    which params are the matrices of LoRA; None where all was trained, or a folder of published
    weights has them.
    """

    params: Params
    rounds: int
    claim: dict[str, Any]
    about: dict[str, Any]
    base: Params | None = None


def load(run_dir: str | pathlib.Path) -> Trained:
    """The model of the newest checkpoint of a run; the data that it was trained on are not needed.

    What is done with the model spends no more of its budget. The folder is only read; a run that
    is still going on is not disturbed.

    Args:
      run_dir: folder of a run of `fljax simulate` or `fljax.simulate`.

    Raises:
      ValueError: no such folder, or one without a checkpoint; or its frozen weights are not those
        that it began with.
      CheckpointError: the checkpoint is damaged.
    """
    where = pathlib.Path(run_dir).expanduser()
    about = description.read(where)
    params, rounds, claim = checkpoint.read_model(where)
    base = base_model.read(where)
    if base is not None and own.digest_of(base) != about.get("base"):
        raise ValueError(
            f"Expected {where / folder.BASE} to be what the run began with, its digest is another."
        )
    return Trained(params, rounds, claim | _beside_epsilon(where), about, base)


def _beside_epsilon(run_dir: pathlib.Path) -> dict[str, Any]:
    """What privacy.json says that no checkpoint holds: nats, and what a paper claims. It is written
    before the checkpoint, so that it may be of more rounds, never of fewer.
    """
    path = run_dir / folder.PRIVACY
    told = json.loads(folder.read_text(path)) if path.is_file() else {}
    return {name: told[name] for name in ("information", "as_printed") if name in told}


def apply_of(trained: Trained, model: str | None = None) -> Apply:
    """`apply(params, x)` of one example, of a model that goes by a name.

    Args:
      trained: whose `about` may be anybody's.
      model: the name once more, where it is a path: such code is imported and called for a caller
        who names it. None: a model of fljax's own, of an installed package, or registered.

    Raises:
      ValueError: the model is by a path that was not given; it was a Python object of the run's
        caller, or its code has changed since; or clients have layers of their own, which in the
        released model are as they began.
    """
    about = trained.about
    if about.get("clients_have_own_models"):
        raise ValueError(
            "Expected a model that all clients use, got one without the layers that each client "
            "keeps: take fljax.Result.client_params of the call that trained it."
        )
    name = about["model"]
    if name.startswith(config_lib.OWN) or about["example"] is None:
        raise ValueError(
            f"Expected a model by a name that can be looked up, got {name!r} of a run that began "
            "with fljax.simulate: use its own function with the params of "
            "fljax.simulation.trained.load."
        )
    known = models.classifiers.is_own(name) or name in models.classifiers.names()
    if not known and name != model:
        raise ValueError(
            f"Expected model={name!r} to be given, since that is code by a path, which the run's "
            f"folder names and which would be imported and called, got model={model!r}."
        )
    options: dict[str, Any] = {
        size: tuple(value) if isinstance(value, list) else value
        for size, value in about.get("options", {}).items()
    }
    create: Callable[..., models.Functional] = partial(
        models.create,
        name,
        example_shape=tuple(about["example"]["shape"]),
        num_classes=about.get("num_outputs", about["num_classes"]),
        key=jax.random.key(0),
        dtype=np.dtype(about["example"]["dtype"]),
        **options,
    )
    lora, base = about.get("lora"), None
    if lora is not None:
        base = create().params if trained.base is None else trained.base
        if own.digest_of(base) != about.get("base"):
            raise ValueError(
                f"Expected the frozen weights of {name!r} that the run began with, got others."
            )
    made = create(lora=lora, base=base)
    if checkpoint.structure(made.params) != checkpoint.structure(trained.params):
        raise ValueError(
            f"Expected model {name!r} to have the arrays that were trained, got others: its code "
            "has changed since."
        )
    return made.apply


def shapes(params: Params) -> dict[str, Any]:
    """Name -> (shape, dtype) of each array."""
    return {name: (leaf.shape, str(leaf.dtype)) for name, leaf in named(params).items()}


def named(params: Params) -> dict[str, np.ndarray]:
    """The arrays on the host by the names of their places, joined by dots.

    Raises:
      ValueError: two places have one name.
    """
    found: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        steps = [getattr(step, "key", getattr(step, "idx", step)) for step in path]
        name = ".".join(map(str, steps))
        if name in found:
            raise ValueError(f"Expected a name for each array of the model, got {name!r} twice.")
        found[name] = np.asarray(leaf)
    return found


def holds(path: pathlib.Path, params: Params) -> bool:
    """Whether a file or folder that `export` wrote has these arrays, bit for bit.

    Raises:
      ImportError: safetensors is not installed.
    """
    wanted = named(params)
    if path.suffix == ".safetensors":
        import safetensors.numpy

        found = safetensors.numpy.load_file(path)
    elif path.suffix == ".npz":
        wanted = {name: _for_numpy(leaf) for name, leaf in wanted.items()}
        with np.load(path) as arrays:
            found = dict(arrays)
    else:
        found = named(checkpoint.read_tree(path))
    return wanted.keys() == found.keys() and all(
        (leaf.dtype, leaf.shape, leaf.tobytes())
        == (found[name].dtype, found[name].shape, found[name].tobytes())
        for name, leaf in wanted.items()
    )


def says(path: pathlib.Path, about: dict[str, Any]) -> bool:
    """Whether a file that `export` wrote says this of itself; where it says nothing, it does.

    Raises:
      ImportError: safetensors is not installed.
    """
    if path.suffix != ".safetensors":
        return True
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        found = file.metadata() or {}
    return found.keys() == {"fljax"} and folder.from_json(found["fljax"]) == about


def _for_numpy(leaf: np.ndarray) -> np.ndarray:
    """bfloat16, which files of NumPy do not know, as float32."""
    return leaf if leaf.dtype.kind != "V" else leaf.astype(np.float32)


def outputs(trained: Trained, x: np.ndarray, model: str | None = None) -> np.ndarray:
    """What the model gives for each example: `[M, outputs]`.

    Args:
      trained: of a model that goes by a name.
      x: `[M, ...]`, examples like those it was trained on.
      model: as of `apply_of`.

    Raises:
      ValueError: examples of another shape or kind; or as `apply_of`.
    """
    example = trained.about["example"]
    apply = apply_of(trained, model)
    wanted = np.dtype(example["dtype"])
    if list(x.shape[1:]) != example["shape"] or x.dtype.kind != wanted.kind:
        raise ValueError(
            f"Expected examples of {wanted} {example['shape']}, as the model was trained on, got "
            f"{x.dtype} {list(x.shape[1:])}."
        )
    _validate.positive_int(num_examples=len(x))
    batch = jax.jit(jax.vmap(apply, (None, 0)))
    found: list[np.ndarray] = []
    done = 0
    for start in range(0, len(x), _AT_A_TIME):
        # The last examples are computed twice rather than compiling for another number of them.
        start = max(0, min(start, len(x) - _AT_A_TIME))
        some = np.asarray(batch(trained.params, jnp.asarray(x[start : start + _AT_A_TIME], wanted)))
        found.append(some[done - start :])
        done = start + len(some)
    return np.concatenate(found)


def export(trained: Trained, form: str, path: str | pathlib.Path) -> pathlib.Path:
    """Writes the model for other programs, and beside it what is certified of it.

    Args:
      trained: any model.
      form: "safetensors", one file (package safetensors, extra `export`); "npz", one file of NumPy;
        "orbax", a folder. Arrays go by the names of their places, joined by dots; orbax keeps the
        tree. bfloat16 becomes float32 in an npz, which has no such type.
      path: that is written; it must not be there yet.

    Returns:
      Where the claim stands: `PATH.json`, an object with "claim", "model" and "rounds".

    Raises:
      ValueError: no such form, or the path is taken. ImportError: safetensors is not installed.
      DiskFullError: no room.
    """
    _validate.one_of(FORMS, form=form)
    path = pathlib.Path(path).expanduser()
    beside = path.with_name(f"{path.name}.json")
    for taken in (path, beside):
        if taken.exists():
            raise ValueError(f"Expected {taken} not to be there yet, it is: choose another name.")
    about = {"claim": trained.claim, "model": trained.about, "rounds": trained.rounds}
    text = json.dumps(about, sort_keys=True, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder.disk_full_in_one_line(path):
        if form == "safetensors":
            import safetensors.numpy

            arrays = {
                name: np.ascontiguousarray(leaf) for name, leaf in named(trained.params).items()
            }
            safetensors.numpy.save_file(arrays, path, metadata={"fljax": json.dumps(about)})
        elif form == "npz":
            plain = {name: _for_numpy(leaf) for name, leaf in named(trained.params).items()}
            with path.open("wb") as file:  # a name without .npz stays as it is
                np.savez(file, **plain)  # type: ignore[arg-type]
        else:
            checkpoint.write_tree(path, trained.params)
    folder.write_atomically(beside, text + "\n")
    return beside
