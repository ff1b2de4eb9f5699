"""How large the pictures of rows are for a model, from their headers alone."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from roll.configs.tables.sight import PictureSizes
from roll.datasets.loader import Row
from roll.datasets.remote import protocol_of
from roll.errors import ConfigError, PictureError
from roll.types.media import Picture, PictureSource

NUM_THREADS = 8
MOST_BROKEN = 5  # pictures that one message names
_ROWS_AT_ONCE = 256


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
        from roll.datasets.pictures.decode import header_size  # only where a row shows some

        if is_elsewhere(source):
            return 1
        try:
            return self._sizes.num_tokens(*self._sizes.size(*header_size(source)))
        except PictureError:
            return 1


class ShowsPictures(Protocol):
    """Row whose messages may show pictures. `pictures`: in the order of their parts in the messages."""

    @property
    def pictures(self) -> Sequence[PictureSource]: ...


T = TypeVar("T", bound=ShowsPictures)


def measured(read: Iterable[tuple[Row, T]], sizes: PictureSizes | None) -> Iterator[tuple[Row, T, list[Picture]]]:
    """Rows with their pictures, which have sizes and no pixels; the headers of many rows are read at once. `sizes`:
    None for a model that does not see, whose rows show none. ConfigError for pictures that cannot be shown."""
    waiting = iter(read)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        while batch := list(islice(waiting, _ROWS_AT_ONCE)):
            sources = [source for _, one in batch for source in one.pictures]
            found = [] if sizes is None else _all_measured(sources, sizes, threads)
            broken = [each for each in found if isinstance(each, str)]
            if broken:
                raise ConfigError(*broken[:MOST_BROKEN])
            pictures = iter(each for each in found if isinstance(each, Picture))
            for row, one in batch:
                yield row, one, [next(pictures) for _ in one.pictures]


def _all_measured(
    sources: Sequence[PictureSource], sizes: PictureSizes, threads: ThreadPoolExecutor
) -> list[Picture | str]:
    """Parquet files are read in their order: threads would read them again and again."""
    in_order = {place: _measured(sizes, source) for place, source in enumerate(sources) if source.form == "parquet"}
    others = iter(list(threads.map(partial(_measured, sizes), [s for s in sources if s.form != "parquet"])))
    return [in_order[place] if place in in_order else next(others) for place in range(len(sources))]


def _measured(sizes: PictureSizes, source: PictureSource) -> Picture | str:
    """The picture, or why there is none."""
    from roll.datasets.pictures.decode import measure

    try:
        return measure(source, sizes)
    except PictureError as error:
        return str(error)


def is_elsewhere(source: PictureSource) -> bool:
    """True of a picture that is read over a network."""
    return source.form == "address" or (source.form == "parquet" and protocol_of(source.place) is not None)
