"""Tiny models that see, of about 400 thousand parameters, with the files of their processors."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.conversion_mapping import get_model_conversion_mapping

from roll.models import tiny
from roll.models.loading import as_published

VISION_ARCHITECTURES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe"),
    *("gemma3", "internvl"),
)
_PROCESSORS = {
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VL",
    "qwen3_5": "Qwen3VL",
    "qwen3_5_moe": "Qwen3VL",
    "glm4v": "Glm4v",
    "glm4v_moe": "Glm4v",
    "gemma3": "Gemma3",
    "internvl": "InternVL",
}
STARTS, ENDS, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
_GLM_NAMES = {STARTS: "<|begin_of_image|>", ENDS: "<|end_of_image|>", IMAGE: "<|image|>", VIDEO: "<|video|>"}
_GLM_VIDEO = ("<|begin_of_video|>", "<|end_of_video|>")
_GEMMA = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
_INTERN = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
SQUARE = 56
"""Pixels of the squares that tiny models of Gemma-3 and InternVL cut pictures into, of four tokens each."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_vision_tokenizer(arch: str = "qwen2_5_vl") -> PreTrainedTokenizerFast:
    """The tiny tokenizer with the tokens that a family has for pictures, and a template for message parts."""
    tokenizer, names = tiny.build_tokenizer(), [STARTS, ENDS, IMAGE, VIDEO]
    template = CHAT_TEMPLATE
    if arch in _OF_ONE_WORD:
        return _with_one_word(tokenizer, arch)
    if arch.startswith("glm4v"):
        for name in names:
            template = template.replace(name, _GLM_NAMES[name])
        names = [*(_GLM_NAMES[name] for name in names), *_GLM_VIDEO]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    tokenizer.chat_template = template
    return tokenizer


_OF_ONE_WORD = {"gemma3": (_GEMMA, "boi_token"), "internvl": (_INTERN, "context_image_token")}
"""Families whose templates write one word for a picture: their tokens by the names in the tokenizer's files, and the
name of that word's."""


def _with_one_word(tokenizer: PreTrainedTokenizerFast, arch: str) -> PreTrainedTokenizerFast:
    tokens, word = _OF_ONE_WORD[arch]
    template = CHAT_TEMPLATE.replace(STARTS + IMAGE + ENDS, tokens[word])
    if arch == "gemma3":  # whose vocabulary has lines in a row as one token
        lines = [AddedToken("\n" * count, normalized=False) for count in (1, 2, 3, 4)]
        tokenizer.add_tokens(lines)  # type: ignore[arg-type]
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens.values())})
    tokenizer._set_model_specific_special_tokens({**tokens})
    tokenizer.chat_template = template
    return tokenizer


def build_vision_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    arch: str = "qwen2_5_vl",
    hidden_size: int = 64,
    num_layers: int = 2,
    tower_layers: int = 2,
    tie_word_embeddings: bool = True,
    seed: int = 0,
) -> PreTrainedModel:
    """A randomly initialised model, the same for the same seed. Text heads and tower heads are 32 wide, the narrowest
    that vLLM has CPU attention for."""
    if arch not in VISION_ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}; tiny vision models exist as {' and '.join(VISION_ARCHITECTURES)}")
    text: dict[str, Any] = {
        "vocab_size": (len(tokenizer) + 7) // 8 * 8,
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // 32,
        "num_key_value_heads": max(1, hidden_size // 64),
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        "initializer_range": 0.05,
        "tie_word_embeddings": tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    tower: dict[str, Any] = {"depth": tower_layers, "num_heads": 2, "initializer_range": 0.05}
    ids: dict[str, Any] = _token_ids(tokenizer, arch) | {"tie_word_embeddings": tie_word_embeddings}
    width = {"hidden_size": 64, "intermediate_size": 128, "out_hidden_size": hidden_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if arch == "qwen2_vl":
            tower |= {"embed_dim": 64, "hidden_size": hidden_size, "mlp_ratio": 2}
            model: PreTrainedModel = Qwen2VLForConditionalGeneration(
                Qwen2VLConfig(text_config=text, vision_config=tower, **ids)
            )
        elif arch == "qwen2_5_vl":
            tower |= {**width, "window_size": 56, "fullatt_block_indexes": [tower_layers - 1]}
            model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=tower, **ids))
        elif arch.startswith("glm4v"):
            text["rope_parameters"] |= {"partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}
            text["attention_bias"] = True  # vLLM asks for it, transformers' model has biases without it
            tower |= {**width, "image_size": 112, "rms_norm_eps": 1e-5}
            if arch == "glm4v":
                model = Glm4vForConditionalGeneration(Glm4vConfig(text_config=text, vision_config=tower, **ids))
            else:
                text |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": hidden_size // 2}
                text |= {"head_dim": 32, "use_qk_norm": False}  # vLLM asks for both
                config = Glm4vMoeConfig(text_config=text, vision_config=tower, **ids)
                model = Glm4vMoeForConditionalGeneration(config)
        elif arch in _OF_ONE_WORD:
            model = _model_of_squares(arch, text, tower_layers, ids)
        elif arch.startswith("qwen3_5"):
            text |= {"head_dim": 32, "layer_types": [*["linear_attention"] * (num_layers - 1), "full_attention"]}
            text |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
            text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            text["rope_parameters"] |= {
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 3, 3],
                "mrope_interleaved": True,
            }
            tower |= {**width, "patch_size": 16, "num_position_embeddings": 64}
            if arch == "qwen3_5":
                model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=tower, **ids))
            else:
                text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": hidden_size // 2}
                text["shared_expert_intermediate_size"] = hidden_size // 2
                config = Qwen3_5MoeConfig(text_config=text, vision_config=tower, **ids)
                model = Qwen3_5MoeForConditionalGeneration(config)
        else:
            text |= {"head_dim": 32, "rope_parameters": {**text["rope_parameters"], "mrope_interleaved": True}}
            tower |= {**width, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
            if arch == "qwen3_vl":
                model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=tower, **ids))
            else:
                text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3 * hidden_size // 2}
                text["norm_topk_prob"] = True  # vLLM asks for it; transformers does so always
                moe = Qwen3VLMoeConfig(text_config=text, vision_config=tower, **ids)
                model = Qwen3VLMoeForConditionalGeneration(moe)
    return model.eval()


def _model_of_squares(arch: str, text: dict[str, Any], tower_layers: int, ids: dict[str, Any]) -> PreTrainedModel:
    tower: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": tower_layers,
        "num_attention_heads": 2,
    }
    del text["rope_parameters"]
    if arch == "internvl":
        text |= {"model_type": "qwen2", "layer_types": ["full_attention"] * text["num_hidden_layers"]}
        tower |= {"image_size": [SQUARE] * 2, "patch_size": [14] * 2, "initializer_range": 0.05}
        tower["layer_scale_init_value"] = 1.0
        config = InternVLConfig(text_config=text, vision_config=tower, image_seq_length=4, **ids)
        return InternVLForConditionalGeneration(config)
    layers = ["sliding_attention"] * (text["num_hidden_layers"] - 1)
    text |= {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64}
    text["layer_types"] = [*layers, "full_attention"]
    tower |= {"image_size": SQUARE, "patch_size": 14, "vision_use_head": False}
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=tower, mm_tokens_per_image=4, **ids)
    )
    projection = model.model.multi_modal_projector.mm_input_projection_weight
    torch.nn.init.normal_(projection, std=0.05)  # transformers begins with zeros, which see nothing
    return model


def _token_ids(tokenizer: PreTrainedTokenizerFast, arch: str) -> dict[str, int]:
    """The ids of the tokens of pictures, by the names in config.json."""
    names = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    if arch == "gemma3":
        names = {f"{name}_index": token for name, token in _GEMMA.items()}
    elif arch == "internvl":
        names = {"image_token_id": _INTERN["context_image_token"]}
    elif arch.startswith("glm4v"):
        names = {key: _GLM_NAMES[name] for key, name in names.items()}
        names |= {"image_start_token_id": _GLM_NAMES[STARTS], "image_end_token_id": _GLM_NAMES[ENDS]}
        names |= dict(zip(("video_start_token_id", "video_end_token_id"), _GLM_VIDEO, strict=True))
    else:
        names |= {"vision_start_token_id": STARTS, "vision_end_token_id": ENDS}
    return {key: int(str(tokenizer.convert_tokens_to_ids(name))) for key, name in names.items()}


def save_vision_pretrained(
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    min_pixels: int = 28 * 28,
    max_pixels: int = 112 * 112,
) -> Path:
    """Writes model, tokenizer and the processor's files as one Hugging Face directory, and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    if model.config.model_type == "qwen3_vl_moe":
        written: Any = model
        written._weight_conversions = as_published(get_model_conversion_mapping(model, add_legacy=False))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    kind = _PROCESSORS[model.config.model_type]
    if model.config.model_type in _OF_ONE_WORD:
        _save_processor_of_squares(directory, kind)
        return directory
    half, glm = kind == "Qwen3VL", kind == "Glm4v"
    if glm:  # whose files count the pixels of both frames that a picture is
        min_pixels, max_pixels = 2 * min_pixels, 2 * max_pixels
    processor = {
        "image_processor_type": "Glm4vImageProcessor" if glm else "Qwen2VLImageProcessor",
        "processor_class": f"{kind}Processor",
        "size": {"shortest_edge": min_pixels, "longest_edge": max_pixels},
        "patch_size": model.config.vision_config.patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3 if half else [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.5] * 3 if half else [0.26862954, 0.26130258, 0.27577711],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    video = f"{kind if half or glm else 'Qwen2VL'}VideoProcessor"
    (directory / "video_preprocessor_config.json").write_text(
        json.dumps({**processor, "video_processor_type": video}, indent=2) + "\n"
    )
    return directory


def _save_processor_of_squares(directory: Path, kind: str) -> None:
    is_gemma = kind == "Gemma3"
    processor = {
        "image_processor_type": "Gemma3ImageProcessor" if is_gemma else "GotOcr2ImageProcessor",
        "processor_class": f"{kind}Processor",
        "size": {"height": SQUARE, "width": SQUARE},
        "resample": 2 if is_gemma else 3,
        "image_mean": [0.5] * 3 if is_gemma else [0.485, 0.456, 0.406],
        "image_std": [0.5] * 3 if is_gemma else [0.229, 0.224, 0.225],
    }
    processor |= {"do_pan_and_scan": None} if is_gemma else {"crop_to_patches": False, "max_patches": 12}
    (directory / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    whole = {"processor_class": f"{kind}Processor", "image_seq_length": 4}
    (directory / "processor_config.json").write_text(json.dumps(whole, indent=2) + "\n")
    if not is_gemma:
        video = {**processor, "video_processor_type": "InternVLVideoProcessor"}
        (directory / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
