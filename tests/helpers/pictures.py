"""Rows that show random pictures, tiny models that see them, and the truth by Hugging Face's own forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.tables.sight import VisionModel
from roll.types.media import Media, Picture, Prompt, Shown

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ONE = [(3, 2)]  # rows and columns of a picture, in tokens
TWO = [(1, 1), (2, 4)]


def make_model_dir(directory: Path, arch: str, ties: bool = False, **sizes: int) -> Path:
    from tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained

    tokenizer = build_vision_tokenizer(arch)
    model = build_vision_model(tokenizer, arch=arch, tie_word_embeddings=ties)
    return save_vision_pretrained(directory / arch, model, tokenizer, **sizes)


def size_of(vision: VisionModel, rows: int, columns: int) -> tuple[int, int]:
    """The size of a picture of so many tokens, or squares; where a picture is one square, of that."""
    height, width = rows * vision.sizes.factor, columns * vision.sizes.factor
    return (height, width) if vision.has_grid else vision.sizes.size(height, width)


def marks_of(vision: VisionModel) -> tuple[int, int]:
    """The tokens around a picture; some, where config.json does not name them."""
    return (vision.start_token, vision.end_token) if vision.start_token >= 0 else (41, 42)


def random_picture(vision: VisionModel, rows: int, columns: int, seed: int) -> Picture:
    """A picture of so many tokens, or squares."""
    height, width = size_of(vision, rows, columns)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return Picture(f"{rows}x{columns}-{seed}", height, width, pixels)


def type_ids(vision: VisionModel, ids: "torch.Tensor", media: Media) -> "dict[str, torch.Tensor]":
    """What transformers' model is told of which tokens are a picture's; [1, T], if it is told anything."""
    import torch

    if not vision.has_grid and not vision.facts.looks_both_ways:
        return {}
    is_picture = torch.zeros_like(ids)
    for shown in media:
        is_picture[0, shown.start : shown.end] = 1
    return {"mm_token_type_ids" if vision.has_grid else "token_type_ids": is_picture}


def shown_row(vision: VisionModel, pictures: Sequence[Picture], num_text: int, seed: int = 0) -> Prompt:
    """Text, pictures in their marks, text."""
    text = np.random.default_rng((seed, num_text)).integers(10, 200, num_text + len(pictures) + 2).tolist()
    ids, media = [text.pop(), text.pop()], list[Shown]()
    start, end = marks_of(vision)
    for picture in pictures:
        count = vision.sizes.num_tokens(picture.height, picture.width)
        ids.append(start)
        media.append(Shown(picture, len(ids), count))
        ids += [*[vision.image_token] * count, end, text.pop()]
    return Prompt(np.array(ids + text, np.int32), tuple(media))


def seen_log_probs(
    model: "PreTrainedModel", vision: VisionModel, ids: np.ndarray, media: Media, num_answer: int
) -> np.ndarray:
    """Log-probs of the last `num_answer` tokens of a row by the whole model of transformers, which finds positions
    itself."""
    import torch

    from roll.models.vision.inputs import tensors

    row = torch.from_numpy(ids.astype(np.int64))[None]
    shown_ids = row[:, :-1]  # the last token may be a placeholder that was sampled, and stands for no picture
    pictures: dict[str, Any] = {}
    if media:
        pictures = tensors([shown.picture for shown in media], vision, torch.device("cpu"))
        pictures |= type_ids(vision, shown_ids, media)
    with torch.no_grad():
        logits = model(input_ids=shown_ids, **pictures).logits[0]
    model.model.rope_deltas = None  # transformers would go on with those of this row
    log_probs = torch.log_softmax(logits.float(), -1).gather(-1, row[0, 1:, None])[:, 0]
    return log_probs[len(log_probs) - num_answer :].numpy()
