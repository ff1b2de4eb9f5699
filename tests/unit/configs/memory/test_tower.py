"""The weights of models that see, counted from config.json alone, against the models that transformers builds."""

from __future__ import annotations

import pytest

from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.trained import is_frozen
from roll.models.tiny_vision import VISION_ARCHITECTURES, build_vision_model, build_vision_tokenizer


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("arch", VISION_ARCHITECTURES)
def test_every_weight_has_its_name_and_shape(arch: str, ties: bool) -> None:
    model = build_vision_model(build_vision_tokenizer(arch), arch=arch, tie_word_embeddings=ties)
    shape, why_not = model_shape(model.config.to_dict())
    assert shape is not None, why_not
    parameters = dict(model.named_parameters())
    found = {weight.name: weight.shape for weight in shape.weights if ".experts." not in weight.name}
    assert found == {name: tuple(p.shape) for name, p in parameters.items() if ".experts." not in name}
    experts = sum(weight.num_elements for weight in shape.weights if ".experts." in weight.name)  # transformers has
    assert experts == sum(p.numel() for name, p in parameters.items() if ".experts." in name)  # those of a layer in one


def test_words_of_recipes_name_parts_of_the_model() -> None:
    model = build_vision_model(build_vision_tokenizer(), arch="qwen3_vl")
    shape, _ = model_shape(model.config.to_dict())
    assert shape is not None
    names = {word: {w.name for w in shape.weights if is_frozen(w, (word,))} for word in ("vision_model", "projector")}
    assert all(name.startswith("model.visual.") and "merger" not in name for name in names["vision_model"])
    assert all("merger" in name for name in names["projector"])
    tower = {w.name for w in shape.weights if w.name.startswith("model.visual.")}
    assert names["vision_model"] | names["projector"] == tower
    blocks = {w.name for w in shape.weights if is_frozen(w, ("vision_model.blocks", "vision_model.patch_embed"))}
    assert blocks == names["vision_model"] - {"model.visual.pos_embed.weight"}


def test_a_tower_without_sizes_is_told() -> None:
    model = build_vision_model(build_vision_tokenizer()).config.to_dict() | {"vision_config": {"depth": 2}}
    assert model_shape(model) == (None, "config.json: vision_config lacks a size ('hidden_size')")


def test_what_files_of_gemma_leave_out_is_known() -> None:
    """As the published files are written, which say less than transformers does."""
    text = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "image_size": 56, "patch_size": 14}
    shape, why_not = model_shape({"model_type": "gemma3", "text_config": text, "vision_config": tower})
    assert shape is not None, why_not
    assert (shape.vocab_size, shape.ties_head, next(shape.attentions).cached) == (262_208, True, 2 * 4 * 256)


def test_words_of_recipes_name_a_projector_beside_the_tower() -> None:
    model = build_vision_model(build_vision_tokenizer("internvl"), arch="internvl")
    shape, _ = model_shape(model.config.to_dict())
    assert shape is not None
    names = {word: {w.name for w in shape.weights if is_frozen(w, (word,))} for word in ("visual", "merger")}
    assert all(name.startswith("model.vision_tower.") for name in names["visual"])
    assert all(name.startswith("model.multi_modal_projector.") for name in names["merger"])
    assert len(names["visual"] | names["merger"]) == sum(w.block == "tower" for w in shape.weights)
