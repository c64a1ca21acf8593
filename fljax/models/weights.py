"""Decoders as they are published: a folder with `config.json`, and weights by their usual names in
safetensors files.

Nothing is downloaded, and no code of such a folder is run. The file format is read here, without
another package: eight bytes that say how long the header is, a header in JSON, and the numbers.
"""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from fljax.models.decoder import Decoder, Shape, Stretch

CONFIG, ONE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_MOST_HEADER = 100_000_000  # bytes; as the format's own library has it
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# What a family's shape has beside the numbers of its file.
_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "norm_of_queries": True,
        "norm_after": True,
        "scale_from_one": True,
        "scaled_embedding": True,
    },
    "llama": {},
    "qwen3": {"norm_of_queries": True},
}
# Keys whose other values ask for what a `Decoder` does not do; None: left out.
_PLAIN = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "use_sliding_window": (None, False),
    "use_bidirectional_attention": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "quantization_config": (None,),
}


def shape_of(folder: str | pathlib.Path) -> Shape:
    """The shape that a folder's `config.json` asks for.

    Args:
      folder: of a model of the type "gemma3_text", "llama" or "qwen3", whose table is tied.

    Raises:
      ValueError: no such file, another type, or what a `Decoder` does not do; names the key.
    """
    path = pathlib.Path(folder).expanduser() / CONFIG
    if not path.is_file():
        raise ValueError(f"Expected {path} to be there, with the shape of a model.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as reason:
        raise ValueError(f"Expected {path} to be JSON: {reason}.") from reason
    if not isinstance(config, dict):
        raise ValueError(f"Expected {path} to be a JSON object, got {type(config).__name__}.")
    try:
        return _shape(config)
    except KeyError as reason:
        raise ValueError(f"Expected {path} to have the key {reason}.") from reason
    except (TypeError, ValueError, AttributeError, ArithmeticError) as reason:
        raise ValueError(f"{path}: {reason}") from reason


def _shape(config: Mapping[str, Any]) -> Shape:
    kind = config["model_type"]
    if kind not in _FAMILIES:
        raise ValueError(f"Expected model_type to be among {list(_FAMILIES)}, got {kind!r}.")
    for key, plain in _PLAIN.items():
        if config.get(key) not in plain:
            raise ValueError(f"Expected {key} to be among {list(plain)}, got {config[key]!r}.")
    if not config.get("tie_word_embeddings", kind == "gemma3_text"):
        raise ValueError("Expected tie_word_embeddings=true, got false: one table is read twice.")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_width = config.get("head_dim") or width // heads
    scale = config.get("query_pre_attn_scalar", head_width)
    if scale != head_width:
        raise ValueError(f"Expected query_pre_attn_scalar={head_width}, as head_dim, got {scale}.")
    gate = config.get("hidden_activation") or config["hidden_act"]
    if gate not in _ACTIVATIONS:
        raise ValueError(f"Expected hidden_act to be among {list(_ACTIVATIONS)}, got {gate!r}.")
    layers = config["num_hidden_layers"]
    base, stretch, local_base = _rope(config, kind == "gemma3_text")
    local: dict[str, Any] = {}
    if kind == "gemma3_text":
        local = {
            "window": config["sliding_window"],
            "global_every": _global_every(config, layers),
            "local_rope_base": local_base,
        }
    return Shape(
        vocabulary=config["vocab_size"],
        width=width,
        hidden=config["intermediate_size"],
        layers=layers,
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_width=head_width,
        rope_base=base,
        rope_stretch=stretch,
        activation=_ACTIVATIONS[gate],  # type: ignore[arg-type]
        norm_epsilon=config["rms_norm_eps"],
        **local,
        **_FAMILIES[kind],
    )


def _global_every(config: Mapping[str, Any], layers: int) -> int:
    if config.get("layer_types") is None:
        return int(config["sliding_window_pattern"])
    sees_all = [kind == "full_attention" for kind in config["layer_types"]]
    every = sees_all.index(True) + 1 if True in sees_all else layers + 1
    if sees_all != [number % every == 0 for number in range(1, layers + 1)]:
        raise ValueError("Expected layer_types to repeat, the last of each group full_attention.")
    return every


def _rope(config: Mapping[str, Any], windows: bool) -> tuple[float, Stretch | None, float | None]:
    """(base, stretch, base of layers with a window where there are any) of rotary positions.

    Newer files have all of it in `rope_parameters`, where there are windows by the kinds of layers.
    """
    newer, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if newer is None:
        local = config["rope_local_base_freq"] if windows else None
        return config["rope_theta"], _stretch(scaling), local
    whole = newer["full_attention"] if windows else newer
    near = newer["sliding_attention"] if windows else {}
    if _newer_stretch(near) is not None:
        raise ValueError("Expected plain positions of sliding_attention, got stretched ones.")
    base, local = whole["rope_theta"], near.get("rope_theta")
    told = {"rope_theta": base, "rope_local_base_freq": local, "rope_scaling": whole}
    for key, value in told.items():
        if config.get(key) not in (None, value):
            raise ValueError(
                f"Expected {key} to be what rope_parameters say, {value!r}, got {config[key]!r}."
            )
    return base, _newer_stretch(whole), local


def _newer_stretch(part: Mapping[str, Any]) -> Stretch | None:
    return _stretch(part) if set(part) - {"rope_theta"} else None


def _stretch(scaling: Mapping[str, Any] | None) -> Stretch | None:
    kind = None if scaling is None else scaling.get("rope_type", scaling.get("type"))
    if scaling is None or kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"Expected rope_scaling of type 'llama3', or none, got {kind!r}.")
    return Stretch(
        scaling["factor"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
        scaling["original_max_position_embeddings"],
    )


def load(
    folder: str | pathlib.Path,
    *,
    dtype: Any = jnp.bfloat16,
    param_dtype: Any = jnp.float32,
    remat: bool = True,
) -> Decoder:
    """The decoder of a folder, with its weights.

    Args:
      folder: with `config.json` and either `model.safetensors` or the files that
        `model.safetensors.index.json` lists.
      dtype, param_dtype, remat: as of `Decoder`.

    Raises:
      ValueError: as `shape_of`; a file is missing or damaged; a weight is missing, has another
        shape, is not finite, or is none that the decoder has.
    """
    where = pathlib.Path(folder).expanduser()
    shape = shape_of(where)
    found = dict(_arrays_of(where))

    def take(name: str, *axes: int) -> np.ndarray:
        if name not in found:
            raise ValueError(f"Expected {where} to have the weight {name!r}, it has not.")
        array = found.pop(name)
        if array.shape != axes:
            raise ValueError(
                f"Expected {name!r} of {where} to be {list(axes)}, got {list(array.shape)}."
            )
        held = array.astype(param_dtype)
        if not np.isfinite(held).all():
            raise ValueError(
                f"Expected {name!r} of {where} to be finite in {held.dtype}, it is not."
            )
        return held

    abstract = nnx.eval_shape(
        lambda: Decoder(shape, rngs=nnx.Rngs(0), dtype=dtype, param_dtype=param_dtype, remat=remat)
    )
    graph, state = nnx.split(abstract)
    for path, variable in nnx.to_flat_state(state):
        name = _name(path, shape)
        # Published matrices are [out, in].
        axes = variable.shape[1:] if path[0] == "layers" else variable.shape
        turned = path[-1] == "kernel"
        axes = axes[::-1] if turned else axes
        names = [name.format(layer) for layer in range(shape.layers)] if "{" in name else [name]
        arrays = [take(each, *axes) for each in names]
        arrays = [array.T for array in arrays] if turned else arrays
        variable.set_value(jnp.asarray(np.stack(arrays) if "{" in name else arrays[0]))
    head = found.pop("lm_head.weight", None)
    table = state["embedding"][...]
    if head is not None and not np.array_equal(head.astype(param_dtype), np.asarray(table)):
        raise ValueError(f"Expected lm_head.weight of {where} to be the table of embeddings.")
    if found:
        raise ValueError(
            f"Expected {where} to have no weight {min(found)!r}, which a decoder of its shape has "
            "no place for."
        )
    return nnx.merge(graph, state)


def _name(path: tuple[Any, ...], shape: Shape) -> str:
    """What a variable of a `Decoder` is published as; `{}` stands for a layer's number."""
    if path == ("embedding",):
        return "model.embed_tokens.weight"
    if path == ("norm", "scale"):
        return "model.norm.weight"
    part, name = path[1], path[2]
    if part == "mlp":
        return f"model.layers.{{}}.mlp.{name}_proj.weight"
    if part == "attention":
        usual = name if name.endswith("_norm") else f"{name}_proj"
        return f"model.layers.{{}}.self_attn.{usual}.weight"
    # What stands after attention in Gemma stands before the MLP in the others, by one name.
    usual = {
        "before_attention": "input",
        "after_attention": "post_attention",
        "before_mlp": "pre_feedforward" if shape.norm_after else "post_attention",
        "after_mlp": "post_feedforward",
    }[part]
    return f"model.layers.{{}}.{usual}_layernorm.weight"


def _arrays_of(where: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of a folder's files, which stay on disk until they are read."""
    index = where / INDEX
    if not index.is_file():
        yield from arrays(where / ONE).items()
        return
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in listed.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"Expected {index} to be JSON with a weight_map.") from reason
    for file in files:
        if pathlib.Path(file).name != file:
            raise ValueError(f"Expected files beside {index}, got {file!r}.")
        held = arrays(where / file)
        differ = held.keys() ^ {name for name, of in listed.items() if str(of) == file}
        if differ:
            raise ValueError(
                f"Expected {where / file} to have what {index} says, and no more: {min(differ)!r}."
            )
        yield from held.items()


def arrays(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, read from disk as they are used.

    Raises:
      ValueError: no such file, or it is damaged, or holds other numbers than floats.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"Expected {path} to be a file of weights, there is none.")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise ValueError(f"Expected {path} to be a safetensors file, it has no header.")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            _check_spans([about["data_offsets"] for about in header.values()], size - 8 - length)
            return {name: _array(path, 8 + length, about) for name, about in header.items()}
        except (KeyError, TypeError, AttributeError, ValueError) as reason:
            raise ValueError(f"Expected {path} to be a safetensors file: {reason}.") from reason


def to_bytes(found: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file with these arrays of floats, by name, which `arrays` reads back."""
    codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
    header, parts, end = {}, [], 0
    for name, array in sorted(found.items()):
        parts.append(np.ascontiguousarray(array).tobytes())
        span = [end, end + len(parts[-1])]
        kind = {"dtype": codes[array.dtype], "shape": list(array.shape), "data_offsets": span}
        header[name], end = kind, span[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _check_spans(spans: list[tuple[int, int]], size: int) -> None:
    """As the format wants it: one after the other, from the header to the end of the file."""
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise ValueError(f"no array starts at byte {end}")
        end = last
    if end != size:
        raise ValueError(f"arrays of {end} bytes in {size}")


def _array(path: pathlib.Path, start: int, about: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(_DTYPES[about["dtype"]])
    shape, (first, last) = tuple(about["shape"]), about["data_offsets"]
    if math.prod(shape) * dtype.itemsize != last - first or first < 0:
        raise ValueError(f"{last - first} bytes for {about['dtype']}{list(shape)}")
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    held = np.memmap(path, np.uint8, "r", start + first, (last - first,))
    return held.view(dtype).reshape(shape)
