"""Turns one placeholder per picture into one id per picture token, and back; and cuts rows between pictures."""

from collections.abc import Sequence

import numpy as np

from roll.configs.tables.sight import VisionModel
from roll.errors import PictureError
from roll.types.media import Media, Picture, Prompt, Shown, check_spans


def expand(short_ids: np.ndarray, pictures: Sequence[Picture], model: VisionModel) -> Prompt:
    """The prompt as the model sees it: each placeholder becomes as many as its picture has tokens.

    Raises PictureError where there are more or fewer placeholders than pictures, or a placeholder of videos.

    Example, with placeholder 9 and a picture of 3 tokens: 4 9 5 -> 4 9 9 9 5, shown at tokens 1 to 4.
    """
    ids = np.asarray(short_ids, np.int32)
    if (ids == model.video_token).any():
        raise PictureError("the prompt holds a placeholder of videos, which are not read")
    places = np.flatnonzero(ids == model.image_token)
    if len(places) != len(pictures):
        raise PictureError(f"the prompt has {len(places)} placeholders for {len(pictures)} pictures")
    lengths = np.ones(len(ids), np.int64)
    lengths[places] = [model.sizes.num_tokens(picture.height, picture.width) for picture in pictures]
    starts = np.cumsum(lengths) - lengths
    media = tuple(
        Shown(picture, int(starts[place]), int(lengths[place])) for picture, place in zip(pictures, places, strict=True)
    )
    return Prompt(np.repeat(ids, lengths), media)


def shorten(ids: np.ndarray, media: Media) -> np.ndarray:
    """The same row with one placeholder for each picture, by their spans alone. ValueError for spans that are not of
    this row."""
    check_spans(media, len(ids), "a row to shorten")
    return np.asarray(ids)[_stays(media, len(ids))]


def expand_mask(short: Sequence[bool], media: Media, num_tokens: int) -> list[bool]:
    """The mask of a row with one placeholder for each picture, for the row with these spans: False where a picture is.

    Example: False False True, with a picture of 3 tokens at 1 -> False, three times False, True.
    """
    mask = np.zeros(num_tokens, bool)
    mask[_stays(media, num_tokens)] = short
    for shown in media:
        mask[shown.start : shown.end] = False
    return mask.tolist()


def cut_media(media: Media, begin: int, end: int, num_tokens: int) -> Media | None:
    """The pictures of a row without its tokens `begin` to `end`. None where the cut takes a picture, or a part of one,
    that what is left follows. What is cut from the end may take its pictures along."""
    left: list[Shown] = []
    for shown in media:
        if shown.end <= begin:
            left.append(shown)
        elif shown.start >= end:
            left.append(shown.moved(begin - end))
        elif end < num_tokens or shown.start < begin:
            return None
    return tuple(left)


def _stays(media: Media, num_tokens: int) -> np.ndarray:
    """Mark the tokens that remain when each picture has one placeholder, bool."""
    stays = np.ones(num_tokens, bool)
    for shown in media:
        stays[shown.start + 1 : shown.end] = False
    return stays
