"""Rows that show pictures, among rows of text, and what Hugging Face's own code is given for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText
from transformers.core_model_loading import revert_weight_conversion

from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.pictures.decode import all_decoded
from roll.models.tokenizer import load_tokenizer
from roll.models.vision.files import vision_of
from roll.types.batch import MicroBatch, PairRows, Rows
from roll.types.collate import pad
from roll.types.media import Media, Picture, Shown
from tests.helpers.pictures import marks_of, size_of, type_ids
from tests.parity.megatron.models import corrections
from tests.parity.strategies import reference

if TYPE_CHECKING:
    from PIL import Image

SHAPES: dict[int, tuple[tuple[int, int], ...]] = {0: ((3, 2),), 4: ((1, 2), (2, 2)), 6: ((1, 1),)}
"""Tokens of the pictures of some rows: of two ranks, one has none; of four micro batches, one has none."""


def save_tiny(directory: Path, arch: str) -> Path:
    tokenizer = build_vision_tokenizer(arch)
    return save_vision_pretrained(directory, build_vision_model(tokenizer, arch=arch), tokenizer)


def as_stored(weights: dict[str, np.ndarray], model_dir: Path) -> dict[str, np.ndarray]:
    """Weights of a mixture in the form of published models: experts one by one, or all of a layer with rows where
    memory has columns; with what their routers add to scores. Others as they are."""
    config = AutoConfig.from_pretrained(model_dir)
    if config.model_type == "qwen3_vl_moe":
        return {name: weight.swapaxes(1, 2) if ".experts." in name else weight for name, weight in weights.items()}
    if config.model_type not in ("qwen3_5_moe", "glm4v_moe"):
        return weights
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    apart = revert_weight_conversion(model, {name: torch.from_numpy(weight) for name, weight in weights.items()})
    return {name: tensor.numpy() for name, tensor in apart.items()} | corrections(model_dir)


@cache
def vision(model_dir: Path) -> VisionModel:
    found = vision_of(ModelArgs(model_name_or_path=str(model_dir)))
    assert found is not None
    return found


def with_pictures(
    ids: list[int], shapes: tuple[tuple[int, int], ...], model: VisionModel, seed: int
) -> tuple[list[int], Media]:
    """The ids behind pictures of these shapes (in tokens, or squares), each between its marks."""
    random, before, media = np.random.default_rng(seed), [40], []
    start, end = marks_of(model)
    for rows, columns in shapes:
        height, width = size_of(model, rows, columns)
        num_tokens = model.sizes.num_tokens(height, width)
        pixels = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
        before.append(start)
        picture = Picture(f"{seed}/{len(before)}", height, width, pixels)
        media.append(Shown(picture, len(before), num_tokens))
        before += [model.image_token] * num_tokens + [end, 50]
    return [*before, *ids], tuple(media)


def rows(model_dir: Path) -> list[MicroBatch]:
    """The rows of `reference.rows`, some of them behind pictures. A row of text ends in a placeholder that was sampled:
    it is trained on, and stands for nothing."""
    model, made = vision(model_dir), []
    for at, row in enumerate(reference.rows(vocab_size=280)):
        ids, media = with_pictures(row.input_ids[0].tolist(), SHAPES.get(at, ()), model, at)
        if at == 3:
            ids[-1] = model.image_token
        extra = len(ids) - row.input_ids.shape[1]

        def longer(values: torch.Tensor | None, by: int = extra) -> Any:
            return None if values is None else torch.nn.functional.pad(values, (by, 0))

        made.append(
            replace(
                row,
                input_ids=torch.tensor([ids]),
                lengths=row.lengths + extra,
                response_mask=longer(row.response_mask),
                rollout_log_probs=longer(row.rollout_log_probs),
                advantages=longer(row.advantages),
                returns=longer(row.returns),
                media=(media,),
            )
        )
    return made


def write_conversations(folder: Path, model_dir: Path) -> Path:
    """Eight conversations, most of which show pictures from files, and two of them in several turns."""
    from PIL import Image

    factor = vision(model_dir).sizes.factor
    random, lines = np.random.default_rng(7), []
    for number, shapes in enumerate([((3, 2),), (), ((1, 2), (2, 2)), ((1, 1),), (), ((2, 3),), ((1, 2),), ()]):
        messages: list[dict[str, Any]] = []
        for place, (rows, columns) in enumerate(shapes or ((0, 0),)):
            text = {"type": "text", "text": f"{number}{place}?"}
            name = folder / f"{number}-{place}.png"
            if rows:
                pixels = random.integers(0, 256, (rows * factor + 5, columns * factor - 3, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(name)
            parts = [{"type": "image", "image": name.name}, text] if rows else [text]
            messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": f"{number + place}"}]
        lines.append(json.dumps({"messages": messages}) + "\n")
    path = folder / "rows.jsonl"
    path.write_text("".join(lines))
    return path


def conversations(model_dir: Path, path: Path) -> list[MicroBatch]:
    """Single rows as supervised fine-tuning reads them of this file: their pictures are not decoded."""
    tokenizer, columns = load_tokenizer(str(model_dir)), Columns("prompt", None, "answer", None, sees=True)
    args = DataArgs(file_name=(str(path),))
    read = load_conversations(args, "sft_train.data_args", columns, tokenizer, 500, vision=vision(model_dir))
    assert read.media is not None
    assert not any(shown.picture.is_here for media in read.media for shown in media)
    return [pad(read, np.array([row])) for row in range(len(read))]


def hf_inputs(model_dir: Path, row: MicroBatch) -> dict[str, torch.Tensor]:
    """What Hugging Face's model is given beside the ids of a row: pictures by its own processor, from which it computes
    positions itself."""
    media = row.media[0] if row.media else ()
    if not media:
        return {}
    (media,) = all_decoded([media])
    # Pictures are resized by PIL here; torchvision rounds otherwise, by a level of 255.
    processor = AutoImageProcessor.from_pretrained(model_dir, backend="pil")
    more = {"crop_to_patches": True} if vision(model_dir).model_type == "internvl" else {}  # by its whole processor
    images = [_image(shown.picture) for shown in media]
    given = processor(images=images, return_tensors="pt", **more)
    pixels = {name: tensor for name, tensor in given.items() if name not in ("num_crops", "num_patches")}
    return pixels | type_ids(vision(model_dir), row.input_ids, media)


def _image(picture: Picture) -> Image.Image:
    """The picture of the model's size, or the file, where it is cut into squares already."""
    from PIL import Image

    if picture.array.ndim == 3:
        return Image.fromarray(picture.array)
    assert picture.source is not None
    return Image.open(picture.source.place)


# Models that see and give numbers: a linear layer on the backbone of transformers' whole model.


class Numbers(torch.nn.Module):
    """Numbers of every token [1, T, labels], by transformers' backbone and its own positions. The layer is that of the
    model's files."""

    def __init__(self, model_dir: Path):
        super().__init__()
        whole = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        layer = {n: t for n, t in load_file(model_dir / "model.safetensors").items() if n.startswith("score.")}
        self.model = whole.model
        self.score = torch.nn.Linear(*layer["score.weight"].T.shape, bias="score.bias" in layer)
        self.score.load_state_dict({name.removeprefix("score."): tensor for name, tensor in layer.items()})

    def forward(self, input_ids: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        self.model.rope_deltas = None  # of another row
        return self.score(self.model(input_ids=input_ids, **given).last_hidden_state)


def with_numbers(model_dir: Path, directory: Path, num_labels: int = 1, bias: bool = False) -> Path:
    """The model with a layer of random weights that gives so many numbers, as a model of its own."""
    shutil.copytree(model_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    width = config["text_config"]["hidden_size"]
    config["id2label"] = {str(label): f"LABEL_{label}" for label in range(num_labels)}
    of = "Token" if bias else "Sequence"
    config["architectures"] = [
        name.replace("ForConditionalGeneration", f"For{of}Classification") for name in config["architectures"]
    ]
    (directory / "config.json").write_text(json.dumps(config))
    weights = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    weights["score.weight"] = 0.1 * torch.randn(num_labels, width, generator=random)
    if bias:
        weights["score.bias"] = torch.randn(num_labels, generator=random)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def pairs(model_dir: Path) -> PairRows:
    """Eight pairs of rows; of four of them the prompt shows pictures, the same to both answers."""
    model, random = vision(model_dir), np.random.default_rng(11)
    shapes: list[tuple[tuple[int, int], ...]] = [((3, 2),), (), ((1, 2), (2, 2)), (), (), ((2, 1),), (), ((1, 1),)]
    ids, masks, media = [], [], []
    for pair, of_pair in enumerate(shapes):
        prompt = random.integers(3, 280, int(random.integers(2, 5))).tolist()
        for _ in range(2):
            answer = random.integers(3, 280, int(random.integers(2, 8))).tolist()
            row, shown = with_pictures([*prompt, *answer], of_pair, model, pair)
            ids.append(row)
            masks.append([False] * (len(row) - len(answer)) + [True] * len(answer))
            media.append(shown)
    rows: dict[str, Any] = vars(Rows.of(ids, masks, media))
    return PairRows(**rows, margins=np.repeat(random.uniform(0, 1, 8), 2).astype(np.float32))
