"""Pictures as a Hugging Face backbone takes them: patches, grids and positions of the rows that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from roll.configs.tables.sight import VisionModel
from roll.types.media import Media, Picture, Shown, pictures_of


def patches(picture: Picture, model: VisionModel) -> torch.Tensor:
    """The patches of a picture, float32 [patches, 3 x frames x side x side], in the order in which the tower merges
    them: what the processor of Qwen2-VL (arXiv 2409.12191) makes of a picture that it need not resize."""
    side, merge, frames = model.patch_size, model.merge_size, model.temporal_patch_size
    mean, std = (255 * torch.tensor(values, dtype=torch.float32) for values in (model.mean, model.std))
    pixels = (torch.from_numpy(np.array(picture.array, np.float32)) - mean) / std
    _, rows, columns = model.grid(picture.height, picture.width)
    cut = pixels.view(rows // merge, merge, side, columns // merge, merge, side, 3)
    cut = cut.permute(0, 3, 1, 4, 6, 2, 5)  # by what is merged, then [3, side, side] of each patch
    return cut[..., :, None, :, :].expand(*cut.shape[:5], frames, side, side).reshape(rows * columns, -1)


def squares(picture: Picture, model: VisionModel) -> torch.Tensor:
    """The squares of a picture, float32 [squares, 3, side, side], as the processors of Gemma-3 and InternVL make
    them."""
    mean, std = (255 * torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (model.mean, model.std))
    return (cut(picture, model.sizes.factor).float() - mean) / std


def cut(picture: Picture, side: int) -> torch.Tensor:
    """The squares of a picture, uint8 [squares, 3, side, side]: row after row, and behind several of them the whole
    picture in the size of one, which is made of the file's pixels."""
    if picture.array.ndim == 4:  # cut where it was decoded
        return torch.from_numpy(np.array(picture.array)).permute(0, 3, 1, 2)
    pixels = torch.from_numpy(np.array(picture.array)).permute(2, 0, 1)
    rows, columns = picture.height // side, picture.width // side
    tiles = pixels.view(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    if len(tiles) == 1:
        return tiles
    from PIL import Image

    small = Image.fromarray(picture.array).resize((side, side), Image.Resampling(picture.resample))
    return torch.cat([tiles, torch.from_numpy(np.array(small)).permute(2, 0, 1)[None]])


def positions(length: int, media: Media, model: VisionModel) -> np.ndarray:
    """Positions of a row's tokens, int64 [3, length]: in time, vertically, horizontally (M-RoPE, arXiv 2409.12191).
    Tokens of a picture stand on its grid; behind it the row goes on at its longer side.

    Example: two tokens of text, a picture of 1 x 2 tokens, one of text are at 0 1 | 2 2 | 4, 0 1 | 2 2 | 4 and
    0 1 | 2 3 | 4.
    """
    out = np.empty((3, length), np.int64)
    at = following = 0
    for shown in media:
        out[:, at : shown.start] = following + np.arange(shown.start - at)
        following += shown.start - at
        rows, columns = _token_grid(shown, model)
        out[0, shown.start : shown.end] = following
        out[1, shown.start : shown.end] = following + np.repeat(np.arange(rows), columns)
        out[2, shown.start : shown.end] = following + np.tile(np.arange(columns), rows)
        following += max(rows, columns)
        at = shown.end
    out[:, at:] = following + np.arange(length - at)
    return out


def position_shift(media: Media, model: VisionModel) -> int:
    """How far the position of a token behind these pictures is from its place in the row, a number below 0."""
    return 0 if not model.has_grid else sum(max(_token_grid(shown, model)) - shown.length for shown in media)


def _token_grid(shown: Shown, model: VisionModel) -> tuple[int, int]:
    """Tokens of a picture, vertically and horizontally. ValueError where its span has another number."""
    factor = model.sizes.factor
    rows, columns = shown.picture.height // factor, shown.picture.width // factor
    if rows * columns != shown.length:
        raise ValueError(
            f"a picture of {shown.picture.width} x {shown.picture.height} pixels has {rows * columns} tokens, not "
            f"{shown.length}"
        )
    return rows, columns


def tensors(pictures: Sequence[Picture], model: VisionModel, device: torch.device) -> dict[str, torch.Tensor]:
    """The pictures of some rows, in the order of their rows, by the names of the backbone's arguments."""
    if not model.has_grid:
        return {"pixel_values": torch.cat([squares(picture, model) for picture in pictures]).to(device)}
    grids = [model.grid(picture.height, picture.width) for picture in pictures]
    return {
        "pixel_values": torch.cat([patches(picture, model) for picture in pictures]).to(device),
        "image_grid_thw": torch.tensor(grids, dtype=torch.int64, device=device),
    }


def blank_picture(model: VisionModel) -> Picture:
    """The smallest grey picture."""
    side = model.sizes.factor
    return Picture("", side, side, np.full((side, side, 3), 128, np.uint8))


@dataclass(frozen=True)
class PictureInputs:
    """Pixel inputs for a batch of rows [B, T].

    Where no row shows any, `tensors` are of a blank picture, which is computed and counts nothing: all ranks of a
    sharded tower make the same calls, and its weights get gradients of 0, not none, whatever rows a rank has.
    """

    tensors: dict[str, torch.Tensor]
    is_blank: bool
    positions: torch.Tensor | None  # int64 [3, B, T]; None: those of text
    is_text: torch.Tensor  # bool [B, T]: no token of a picture
    looks_both_ways: bool = False  # tokens of a picture attend to later ones of it

    @classmethod
    def of(cls, media: Sequence[Media], width: int, model: VisionModel, device: torch.device) -> PictureInputs:
        """Rows of `width` tokens that show `media`."""
        shown = list(pictures_of(media))
        is_text = np.ones((len(media), width), bool)
        for row, of_row in enumerate(media):
            for each in of_row:
                is_text[row, each.start : each.end] = False
        places = None
        if model.has_grid:
            stacked = np.stack([positions(width, of_row, model) for of_row in media], axis=1)
            places = torch.from_numpy(stacked).to(device)
        return cls(
            tensors(shown or [blank_picture(model)], model, device),
            not shown,
            places,
            torch.from_numpy(is_text).to(device),
            model.facts.looks_both_ways,
        )

    def arguments(self, width: int) -> dict[str, torch.Tensor]:
        """Arguments of the backbone for the first `width` tokens of padded rows, but for the pictures themselves."""
        if self.positions is not None:
            return {"position_ids": self.positions[..., :width]}
        if self.looks_both_ways and not self.is_blank:
            return {"token_type_ids": (~self.is_text[:, :width]).long()}
        return {}

    def cleaned(self, input_ids: torch.Tensor, model: VisionModel) -> torch.Tensor:
        """The ids [B, T] without placeholders that a model has sampled: nothing is to be put in their places. What
        follows them is not trained on, as they end an answer."""
        stray = self.is_text & torch.isin(input_ids, input_ids.new_tensor(model.placeholders))
        return input_ids.masked_fill(stray, 0)

    def encode(self, backbone: Any, arguments: dict[str, Any]) -> Any:
        """Return the backbone's output for these arguments and the pictures.

        A blank picture is computed where a real one is, behind the embeddings and before the language layers: ranks
        gather and reduce weights in the order in which modules are called, and each waits for the others.
        """
        if not self.is_blank:
            return backbone(**arguments, **self.tensors)

        def add_nothing(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            embedded = kwargs["inputs_embeds"]
            return args, kwargs | {"inputs_embeds": embedded + _nothing_of(backbone, self.tensors).to(embedded.dtype)}

        hook = backbone.language_model.register_forward_pre_hook(add_nothing, with_kwargs=True, prepend=True)
        try:
            return backbone(**arguments)
        finally:
            hook.remove()


def _nothing_of(backbone: Any, of: dict[str, torch.Tensor]) -> torch.Tensor:
    """0, computed with every weight of the tower."""
    found = backbone.get_image_features(**of, return_dict=True)
    features = [*found.pooler_output]
    for of_layer in getattr(found, "deepstack_features", None) or ():
        features += of_layer
    return 0.0 * torch.stack([feature.float().sum() for feature in features]).sum()
