import numpy as np
import pytest

from roll.datasets.mixing import RowSource
from roll.errors import ConfigError
from roll.types.batch import Rows


def source(count: int = 5, shuffle: bool = True, seed: int = 1) -> RowSource:
    """Rows [0 10], [1 11], ... of which the second token is learnt."""
    ids = [[row, 10 + row] for row in range(count)]
    return RowSource(Rows.of(ids, [[False, True]] * count), seed, shuffle, "x.data_args")


def firsts(rows: Rows) -> list[int]:
    return rows.input_ids[np.cumsum(rows.lengths) - rows.lengths].tolist()


def test_every_row_comes_once_in_each_epoch_in_a_new_order() -> None:
    rows = source()
    first, second = firsts(rows.next_rows(5)), firsts(rows.next_rows(5))
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert first != second
    assert firsts(source(shuffle=False).next_rows(7)) == [0, 1, 2, 3, 4, 0, 1]


def test_a_source_goes_on_where_its_state_was_taken() -> None:
    rows, again = source(), source()
    rows.next_rows(3)
    again.load_state_dict(rows.state_dict())
    assert again.epochs == 0.6
    assert np.array_equal(rows.next_rows(6).input_ids, again.next_rows(6).input_ids)


def test_other_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="x.data_args: the rows are not those of the checkpoint"):
        source(6).load_state_dict(source(5).state_dict())
