import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from fljax import models
from fljax.models import decoder, weights
from tests.models._decoder64 import logits64

SIZES = {
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}
CONFIGS = {
    "gemma3_text": {
        "head_dim": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 4,
        "rope_local_base_freq": 100,
        "rope_scaling": None,
        "sliding_window": 2,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": None,
    },
    "llama": {
        "head_dim": 2,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen3": {"head_dim": 4, "hidden_act": "silu", "tie_word_embeddings": True},
}
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)


def published(kind):
    """Names and shapes as these models are published, written down here once more."""
    config = SIZES | CONFIGS[kind]
    width, hidden, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = 4 * head, 2 * head
    layer = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (hidden, width),
        "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    if kind != "llama":
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    if kind == "gemma3_text":
        layer |= {"pre_feedforward_layernorm": (width,), "post_feedforward_layernorm": (width,)}
    shapes = {"model.embed_tokens.weight": (13, width), "model.norm.weight": (width,)}
    for number in range(3):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def written(folder, kind, arrays, files=1, **changes):
    config = SIZES | CONFIGS[kind] | {"model_type": kind} | changes
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        safetensors.numpy.save_file(arrays, folder / "model.safetensors", {"format": "pt"})
        return folder
    of = {name: f"model-{k % files}.safetensors" for k, name in enumerate(sorted(arrays))}
    for file in set(of.values()):
        part = {name: arrays[name] for name in arrays if of[name] == file}
        safetensors.numpy.save_file(part, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def as_params(arrays, kind):
    """The published arrays at the places of a decoder's, by hand."""

    def stack(name, turned=True):
        found = [arrays[f"model.layers.{number}.{name}.weight"] for number in range(3)]
        return np.stack([z.T if turned and z.ndim == 2 else z for z in found])

    attention = {n: {"kernel": stack(f"self_attn.{n}_proj")} for n in "qkvo"}
    if kind != "llama":
        attention |= {f"{n}_norm": {"scale": stack(f"self_attn.{n}_norm")} for n in "qk"}
    layers = {
        "attention": attention,
        "mlp": {n: {"kernel": stack(f"mlp.{n}_proj")} for n in ("gate", "up", "down")},
        "before_attention": {"scale": stack("input_layernorm")},
    }
    if kind == "gemma3_text":
        layers |= {
            "after_attention": {"scale": stack("post_attention_layernorm")},
            "before_mlp": {"scale": stack("pre_feedforward_layernorm")},
            "after_mlp": {"scale": stack("post_feedforward_layernorm")},
        }
    else:
        layers["before_mlp"] = {"scale": stack("post_attention_layernorm")}
    table, norm = arrays["model.embed_tokens.weight"], arrays["model.norm.weight"]
    return {"embedding": table, "layers": layers, "norm": {"scale": norm}}


@pytest.mark.parametrize(("kind", "files"), [("gemma3_text", 3), ("llama", 1), ("qwen3", 2)])
def test_weights_by_their_usual_names_give_the_logits_of_the_reference(kind, files, tmp_path):
    arrays = published(kind)
    folder = written(tmp_path, kind, arrays, files)
    with jax.enable_x64(True):
        module = weights.load(folder, dtype=jnp.float64, param_dtype=jnp.float64, remat=False)
        params, apply = models.functional(module, batched=False)
        expected = logits64(as_params(arrays, kind), TOKENS, weights.shape_of(folder))
        np.testing.assert_allclose(jax.jit(apply)(params, TOKENS), expected, atol=1e-12)


def test_bfloat16_weights_are_held_in_float32_unchanged(tmp_path):
    arrays = {name: z.astype(jnp.bfloat16) for name, z in published("qwen3").items()}
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    params = models.functional(weights.load(written(tmp_path, "qwen3", arrays))).params
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    wide = {name: z.astype(np.float32) for name, z in arrays.items()}
    jax.tree.map(np.testing.assert_array_equal, params, as_params(wide, "qwen3"))


PUBLISHED = {
    "gemma3_1b": {
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "llama3.2_1b": {
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "qwen3_0.6b": {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_are_those_of_the_published_configurations(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    assert weights.shape_of(tmp_path) == decoder.SHAPES[name]


def test_types_of_layers_say_the_same_as_their_pattern(tmp_path):
    kinds = [
        "full_attention" if number % 6 == 0 else "sliding_attention" for number in range(1, 27)
    ]
    config = PUBLISHED["gemma3_1b"] | {"layer_types": kinds}
    del config["sliding_window_pattern"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert weights.shape_of(tmp_path) == decoder.SHAPES["gemma3_1b"]
    config["layer_types"] = kinds[1:] + kinds[:1]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="layer_types to repeat"):
        weights.shape_of(tmp_path)


NEWER = {
    "gemma3_1b": {
        "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "llama3.2_1b": {"rope_theta": 5e5, **PUBLISHED["llama3.2_1b"]["rope_scaling"]},
    "qwen3_0.6b": {"rope_theta": 1e6, "rope_type": "default"},
}
OLDER = ("rope_theta", "rope_scaling", "rope_local_base_freq")


@pytest.mark.parametrize("name", PUBLISHED)
def test_positions_of_newer_files_are_those_of_older_ones(name, tmp_path):
    plain = {key: value for key, value in PUBLISHED[name].items() if key not in OLDER}
    (tmp_path / "config.json").write_text(json.dumps(plain | {"rope_parameters": NEWER[name]}))
    assert weights.shape_of(tmp_path) == decoder.SHAPES[name]


def test_stretched_windows_are_refused(tmp_path):
    near = {"sliding_attention": {"rope_theta": 1e4, **NEWER["llama3.2_1b"]}}
    config = PUBLISHED["gemma3_1b"] | {"rope_parameters": NEWER["gemma3_1b"] | near}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="plain positions of sliding_attention"):
        weights.shape_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type to be among"),
        ({"attention_bias": True}, "attention_bias"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"query_pre_attn_scalar": 16}, "query_pre_attn_scalar=4"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_theta to be what rope_parameters say"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'llama3', or none"),
        ({"rope_scaling": "llama3"}, "config.json"),
        ({"head_dim": None, "num_attention_heads": 0}, "config.json"),
        ({"num_key_value_heads": 3}, "multiple of kv_heads"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_a_decoder_does_not_do_is_refused_by_its_key(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        weights.shape_of(written(tmp_path, "qwen3", {}, **changes))


def less(name):
    return lambda arrays: arrays.pop(name)


def other(name, shape):
    return lambda arrays: arrays.update({name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (less("model.layers.1.mlp.up_proj.weight"), r"weight 'model.layers.1.mlp.up_proj.weight'"),
        (other("model.norm.weight", 9), r"'model.norm.weight' .* to be \[8\], got \[9\]"),
        (other("model.layers.0.self_attn.q_proj.bias", 16), "no weight 'model.layers.0.self_attn"),
        (other("lm_head.weight", (13, 8)), "lm_head.weight"),
    ],
    ids=["missing", "shape", "more", "head"],
)
def test_weights_that_do_not_fit_are_refused_by_name(change, message, tmp_path):
    arrays = published("qwen3")
    change(arrays)
    with pytest.raises(ValueError, match=message):
        weights.load(written(tmp_path, "qwen3", arrays))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad, tmp_path):
    arrays, name = published("llama"), "model.layers.1.mlp.up_proj.weight"
    arrays[name][0, 0] = bad
    with pytest.raises(ValueError, match=f"Expected '{name}' of .* to be finite in float32"):
        weights.load(written(tmp_path, "llama", arrays))


def test_files_that_are_damaged_or_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json to be there"):
        weights.load(tmp_path)
    folder = written(tmp_path, "qwen3", published("qwen3"))
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    up = "model.layers.{}.mlp.up_proj.weight"
    header[up.format(1)] = header[up.format(0)]
    twice = json.dumps(header).encode()
    twice = len(twice).to_bytes(8, "little") + twice + whole[8 + length :]
    for damaged in (b"", whole[:6], b"\xff" * 64, whole[:-1], whole[:40], whole + b"0", twice):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="safetensors file"):
            weights.load(folder)
    path.unlink()
    with pytest.raises(ValueError, match="there is none"):
        weights.load(folder)
    index = folder / "model.safetensors.index.json"
    for text, message in (
        ('{"weight_map": {"a": "../a"}}', "files beside"),
        ('{"weight_map": ["a"]}', "JSON with a weight_map"),
        ('{"weight_map": {"a": 5}}', "there is none"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=message):
            weights.load(folder)


def test_a_file_with_a_weight_more_than_the_index_says_is_refused(tmp_path):
    folder = written(tmp_path, "qwen3", published("qwen3"), files=2)
    path, bias = folder / "model-0.safetensors", "model.layers.0.self_attn.q_proj.bias"
    arrays = safetensors.numpy.load_file(path) | {bias: np.zeros(16, np.float32)}
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(ValueError, match=bias):
        weights.load(folder)


def test_a_decoder_that_was_loaded_is_adapted_as_any(tmp_path):
    module = weights.load(written(tmp_path, "llama", published("llama")))
    models.lora.add(module, 2, rngs=nnx.Rngs(0), where="*.q")
    params, apply = models.functional(module, batched=False)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3 * 2 * (8 + 8)
    assert apply(params, TOKENS).dtype == jnp.float32


def test_a_config_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json to be a JSON object, got list"):
        weights.shape_of(tmp_path)
