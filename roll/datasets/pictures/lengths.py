"""How many tokens the pictures of rows take, from their headers alone, and which of their files are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from roll.configs.tables.vision import PictureSizes
from roll.datasets.pictures.decode import header_size
from roll.datasets.remote import protocol_of
from roll.errors import PictureError
from roll.types.media import PictureSource

NUM_THREADS = 8


class PictureLengths:
    """Counts tokens of pictures for one model's sizes."""

    def __init__(self, sizes: PictureSizes):
        self._sizes = sizes

    def num_tokens(self, rows: Sequence[Sequence[PictureSource]]) -> list[int]:
        """The tokens that the pictures of each row have together.

        A picture that is elsewhere, or whose header cannot be read, counts as one token: what is wrong, or too long,
        shows when its task begins.
        """
        pictures = [picture for row in rows for picture in row]
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            counts = iter(list(threads.map(self._count, pictures)))
        return [sum(next(counts) for _ in row) for row in rows]

    def _count(self, source: PictureSource) -> int:
        if is_elsewhere(source):
            return 1
        try:
            return self._sizes.num_tokens(*self._sizes.size(*header_size(source)))
        except PictureError:
            return 1


def is_elsewhere(source: PictureSource) -> bool:
    """True of a picture that is read over a network."""
    return source.form == "address" or (source.form == "parquet" and protocol_of(source.place) is not None)


def missing_files(sources: Sequence[PictureSource]) -> Iterator[str]:
    """A message for each picture whose file is not on this machine."""
    for source in sources:
        if source.form == "file" and not os.path.isfile(source.place):
            yield f"{source.where}: there is no file {source.place}"
