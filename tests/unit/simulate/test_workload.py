"""Lengths by group: drawn, and taken from the files of another run."""

import json
from pathlib import Path

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.simulate.from_options import read_recorded
from roll.simulate.workload import Delays, LogNormal


def test_lengths_have_their_description_and_repeat() -> None:
    groups = [LogNormal(seed=1).group(number, 16).lengths for number in range(3000)]
    lengths = np.concatenate(groups)
    assert np.median(lengths) == pytest.approx(2200, rel=0.05) and lengths.mean() == pytest.approx(3280, rel=0.03)
    assert np.mean([group.max() for group in groups]) == pytest.approx(7350, rel=0.04) and lengths.max() == 16_384
    work = LogNormal(delays=Delays(2.0, 0.5), turns=3)
    one, two, other = work.group(5, 4), work.group(5, 4), work.group(6, 4)
    assert (one.lengths == two.lengths).all() and (one.delays_s == two.delays_s).all()
    assert one.lengths.shape == (4, 3) and (one.lengths != other.lengths).any()


def test_sample_rollouts_give_whole_answers_and_validation_is_left_out(tmp_path: Path) -> None:
    lines = [
        {"group_id": 7, "reward": reward, "prompt_tokens": 5, "response_tokens": tokens}
        for tokens, reward in ((4, 1.0), (9, None))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "step_000001.jsonl").write_text(text)
    (tmp_path / "step_000001.val.jsonl").write_text("{}")
    (found,) = read_recorded(tmp_path).groups
    assert found.lengths.tolist() == [[4], [9]] and found.prompt == 5 and np.isnan(found.rewards[1])
    drawn = read_recorded(tmp_path, seed=2).group(0, 5)
    assert drawn.lengths.shape == (5, 1) and set(drawn.lengths[:, 0].tolist()) <= {4, 9}


@pytest.mark.parametrize("text", ["{}", "not json", '{"group_id": 1, "reward": 0}'])
def test_files_that_tell_no_lengths_are_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no group of rollouts is there"):
        read_recorded(tmp_path)
    (tmp_path / "step_000001.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"--lengths: .*step_000001\.jsonl cannot be read"):
        read_recorded(tmp_path)
