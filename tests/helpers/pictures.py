"""Rows that show random pictures, tiny models that see them, and the truth by Hugging Face's own forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.tables.vision import VisionModel
from roll.types.media import Media, Picture, Prompt, Shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ONE = [(3, 2)]  # rows and columns of a picture, in tokens
TWO = [(1, 1), (2, 4)]


def make_model_dir(directory: Path, arch: str, ties: bool = False, **sizes: int) -> Path:
    from roll.models.tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained

    tokenizer = build_vision_tokenizer(arch)
    model = build_vision_model(tokenizer, arch=arch, tie_word_embeddings=ties)
    return save_vision_pretrained(directory / arch, model, tokenizer, **sizes)


def random_picture(vision: VisionModel, rows: int, columns: int, seed: int) -> Picture:
    """A picture of so many tokens."""
    factor = vision.sizes.factor
    pixels = np.random.default_rng(seed).integers(0, 256, (rows * factor, columns * factor, 3)).astype(np.uint8)
    height, width, _ = pixels.shape
    return Picture(f"{rows}x{columns}-{seed}", height, width, pixels)


def shown_row(vision: VisionModel, pictures: Sequence[Picture], num_text: int, seed: int = 0) -> Prompt:
    """Text, pictures in their marks, text."""
    text = np.random.default_rng((seed, num_text)).integers(10, 200, num_text + len(pictures) + 2).tolist()
    ids, media = [text.pop(), text.pop()], list[Shown]()
    for picture in pictures:
        count = vision.sizes.num_tokens(picture.height, picture.width)
        ids.append(vision.start_token)
        media.append(Shown(picture, len(ids), count))
        ids += [*[vision.image_token] * count, vision.end_token, text.pop()]
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
        is_picture = torch.zeros_like(shown_ids)
        for shown in media:
            is_picture[0, shown.start : shown.end] = 1
        pictures = tensors([shown.picture for shown in media], vision, torch.device("cpu"))
        pictures["mm_token_type_ids"] = is_picture
    with torch.no_grad():
        logits = model(input_ids=shown_ids, **pictures).logits[0]
    model.model.rope_deltas = None  # transformers would go on with those of this row
    log_probs = torch.log_softmax(logits.float(), -1).gather(-1, row[0, 1:, None])[:, 0]
    return log_probs[len(log_probs) - num_answer :].numpy()
