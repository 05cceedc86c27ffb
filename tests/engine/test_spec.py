"""A config.json becomes a ModelSpec, or is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from engine.errors import UnsupportedModelError
from engine.models.loader import locate
from engine.models.spec import SUPPORTED, expected_tensors, spec_from_config


def config(**values: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "eos_token_id": 2,
    }
    return base | values


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}


def test_an_old_config_without_rope_settings_gets_the_defaults() -> None:
    spec = spec_from_config(config())
    assert (spec.rope_theta, spec.rope_scaling, spec.head_dim) == (10000.0, None, 16)
    assert not (spec.qkv_bias or spec.o_bias or spec.mlp_bias or spec.qk_norm or spec.tie_word_embeddings)


@pytest.mark.parametrize(
    "layout",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
)
def test_all_three_layouts_of_the_rope_settings_say_the_same(layout: dict[str, Any]) -> None:
    spec = spec_from_config(config(**layout))
    assert (spec.rope_theta, spec.rope_scaling) == (5e5, {"rope_type": "llama3", **LLAMA3})


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {}])
def test_default_scaling_is_no_scaling(scaling: dict[str, Any] | None) -> None:
    assert spec_from_config(config(rope_scaling=scaling)).rope_scaling is None


def test_linear_scaling_keeps_its_factor() -> None:
    assert spec_from_config(config(rope_scaling={"type": "linear", "factor": 4})).rope_scaling == {
        "rope_type": "linear",
        "factor": 4.0,
    }


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'; supported: default, linear, llama3"):
        spec_from_config(config(rope_parameters={"rope_theta": 1e4, "rope_type": kind, "factor": 2.0}))


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], [], None])
def test_other_architectures_are_refused_with_the_supported_ones(names: list[str] | None) -> None:
    with pytest.raises(UnsupportedModelError, match=", ".join(SUPPORTED)):
        spec_from_config(config(architectures=names))


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("MistralForCausalLM", {"sliding_window": 1024}),
        ("MistralForCausalLM", {"max_position_embeddings": 8192}),  # the class's own window is 4096 where the file is silent
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_a_sliding_window_in_use_is_refused(architecture: str, values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding-window attention"):
        spec_from_config(config(architectures=[architecture], **values))


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("MistralForCausalLM", {"sliding_window": None}),
        ("MistralForCausalLM", {"sliding_window": 2048}),  # as long as the context
        ("Qwen2ForCausalLM", {"use_sliding_window": False, "sliding_window": 1024, "max_window_layers": 0}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 2}),  # no layer is left
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "full_attention"]}),
    ],
)
def test_a_sliding_window_that_is_not_in_use_is_no_hindrance(architecture: str, values: dict[str, Any]) -> None:
    assert spec_from_config(config(architectures=[architecture], **values)).architecture == architecture


@pytest.mark.parametrize(
    ("architecture", "qkv", "o", "mlp", "norm"),
    [
        ("LlamaForCausalLM", True, True, True, False),
        ("MistralForCausalLM", False, False, False, False),
        ("Qwen2ForCausalLM", True, False, False, False),
        ("Qwen3ForCausalLM", True, True, False, True),
    ],
)
def test_each_family_has_its_own_biases_and_norms(architecture: str, qkv: bool, o: bool, mlp: bool, norm: bool) -> None:
    spec = spec_from_config(config(architectures=[architecture], attention_bias=True, mlp_bias=True, sliding_window=None))
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (qkv, o, mlp, norm)


def test_qwen2_has_biases_even_where_its_config_is_silent() -> None:
    assert spec_from_config(config(architectures=["Qwen2ForCausalLM"])).qkv_bias


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "must divide"),
        ({"head_dim": 15}, "must be even"),
        ({"hidden_size": None}, "hidden_size in config.json is None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers in config.json is 'two'"),
        ({"vocab_size": -1}, "vocab_size in config.json is -1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps in config.json is nan"),
        ({"rope_scaling": {"type": "linear"}}, "factor in config.json is None"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_in_one_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        spec_from_config(config(**values))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_end_of_sequence_ids_of_both_files_are_joined() -> None:
    assert spec_from_config(config(eos_token_id=5), {"eos_token_id": [7, 5]}).eos_token_ids == (5, 7)
    assert spec_from_config(config(eos_token_id=None), {"eos_token_id": 7}).eos_token_ids == (7,)
    assert spec_from_config(config(eos_token_id=None), None).eos_token_ids == ()


def test_the_bytes_of_a_token_count_keys_and_values_of_all_layers() -> None:
    assert spec_from_config(config()).kv_bytes_per_token(2) == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"tied": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_the_expected_tensors_are_those_that_transformers_saves(
    tiny_folder: Callable[..., Path], family: str, options: dict[str, Any]
) -> None:
    folder = tiny_folder(family, **options)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert expected_tensors(locate(str(folder), lambda message, fraction: None).spec) == saved
