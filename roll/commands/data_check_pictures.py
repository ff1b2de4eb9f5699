"""The pictures of rows, all of them decoded: which are broken, and how many tokens they have."""

import base64
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from roll.configs.tables.sight import PictureSizes
from roll.datasets.pictures.decode import MOST_PIXELS, decode, read_bytes
from roll.errors import PictureError
from roll.types.media import PictureSource
from roll.utils.text import counted

MOST_NAMED = 8
_AT_ONCE = 64  # whose files are in memory
_AS_THEY_ARE = PictureSizes(1, 1, MOST_PIXELS)


@dataclass(frozen=True)
class CheckedPictures:
    """The pictures of rows. `tokens`: of each that can be shown; `broken`: by the number of its row, why it cannot."""

    num_pictures: int
    num_showing: int  # rows that show some
    tokens: tuple[int, ...]
    broken: tuple[tuple[int, str], ...]

    @property
    def problems(self) -> list[str]:
        """Why pictures cannot be shown, each with its file and line; of many the first."""
        named = [why for _, why in self.broken[:MOST_NAMED]]
        rest = len(self.broken) - len(named)
        return [*named, *([f"and {counted(rest, 'more broken picture')}"] if rest else [])]

    def lines(self, num_rows: int, model: str | None) -> Iterator[str]:
        """Describe the pictures. `model`: the model whose tokens were counted; None: no tokens were counted."""
        if not self.num_pictures:
            return
        yield "Pictures"
        state = f"{len(self.broken)} broken" if self.broken else "all can be decoded"
        yield f"  {self.num_pictures} in {self.num_showing} of {num_rows} rows: {state}"
        if model is not None and self.tokens:
            least, median, most = (int(cut) for cut in np.percentile(self.tokens, (0, 50, 100), method="higher"))
            yield f"  tokens of a picture of {model}: least {least}, median {median}, most {most}"


def check_pictures(rows: Sequence[Sequence[PictureSource]], sizes: PictureSizes | None) -> CheckedPictures:
    """Decodes every picture of these rows, on all cores. `sizes`: of the model, if one is named."""
    tokens: list[int] = []
    broken: list[tuple[int, str]] = []
    waiting = ((number, source) for number, row in enumerate(rows) for source in row)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        while batch := list(islice(waiting, _AT_ONCE)):
            sources = [_here(source) for _, source in batch]
            found = threads.map(lambda source: _num_tokens(source, sizes or _AS_THEY_ARE), sources)
            for (number, _), result in zip(batch, found, strict=True):
                if isinstance(result, str):
                    broken.append((number, result))
                else:
                    tokens.append(result)
    return CheckedPictures(sum(map(len, rows)), sum(map(bool, rows)), tuple(tokens), tuple(broken))


def _here(source: PictureSource) -> PictureSource | str:
    """Pictures of a parquet file with their bytes, as that is read in its order; or why they are not there."""
    if source.form != "parquet":
        return source
    try:
        return replace(source, form="inline", place=base64.b64encode(read_bytes(source)).decode("ascii"))
    except PictureError as error:
        return str(error)


def _num_tokens(source: PictureSource | str, sizes: PictureSizes) -> int | str:
    """The tokens of a picture, or why it cannot be shown."""
    if isinstance(source, str):
        return source
    try:
        picture = decode(source, sizes)
    except PictureError as error:
        return str(error)
    return sizes.num_tokens(picture.height, picture.width)
