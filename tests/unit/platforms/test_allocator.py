"""The flag that keeps memory of a GPU from other processes."""

import pytest

from roll.platforms.allocator import clear_expandable, expandable
from tests.helpers.cases import cases


@pytest.mark.parametrize(
    "name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]
)
@cases("value, rest")
def test_the_flag_goes_and_other_settings_stay(name: str, value: str, rest: str | None) -> None:
    variables = {name: value, "OTHER": "expandable_segments:True"}
    assert expandable(variables) == [name]
    assert clear_expandable(variables) == [name]
    assert variables == {"OTHER": "expandable_segments:True"} | ({} if rest is None else {name: rest})


@pytest.mark.parametrize(
    "value", ["expandable_segments:False", "max_split_size_mb:512", "", "no_expandable_segments:True"]
)
def test_what_does_not_ask_for_it_is_left_alone(value: str) -> None:
    variables = {"PYTORCH_CUDA_ALLOC_CONF": value}
    assert clear_expandable(variables) == []
    assert variables == {"PYTORCH_CUDA_ALLOC_CONF": value}
