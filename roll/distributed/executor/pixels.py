"""Pixels of pictures out of the object store, where rows are computed or continued."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from roll.types.media import Media, Picture, pictures_of


def with_pixels(rows: Sequence[Media] | None) -> tuple[Media, ...]:
    """The same pictures with their pixels here. Each is fetched once, without a copy. Those that nobody has decoded yet
    stay so: who computes with a row reads its pictures."""
    elsewhere = _elsewhere(rows)
    handles: list[Any] = [picture.pixels for picture in elsewhere]
    return _filled(rows, elsewhere, ray.get(handles) if handles else [])


async def awaited_pixels(media: Media) -> Media:
    """Fetch the pixels of one row's pictures, on an event loop that goes on meanwhile."""
    elsewhere = _elsewhere([media])
    (filled,) = _filled([media], elsewhere, await asyncio.gather(*(_awaited(each.pixels) for each in elsewhere)))
    return filled


def _elsewhere(rows: Sequence[Media] | None) -> list[Picture]:
    by_digest = {picture.digest: picture for picture in pictures_of(rows)}
    return [picture for picture in by_digest.values() if picture.pixels is not None and not picture.is_here]


def _filled(rows: Sequence[Media] | None, elsewhere: Sequence[Picture], arrays: Sequence[Any]) -> tuple[Media, ...]:
    by_digest = {p.digest: replace(p, pixels=pixels) for p, pixels in zip(elsewhere, arrays, strict=True)}
    return tuple(
        tuple(replace(shown, picture=by_digest.get(shown.picture.digest, shown.picture)) for shown in media)
        for media in rows or ()
    )


async def _awaited(handle: Any) -> Any:
    return await handle
