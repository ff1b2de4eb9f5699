"""Functions of verl's form score as they do there."""

from pathlib import Path

import pytest

from roll.rewards.base import RewardInput, RewardResult
from roll.rewards.verl_function import VerlFunction

WHOLE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, scale=1):
    right = float(solution_str == ground_truth)
    return {"score": scale * right, "acc": right, "source": data_source, "index": extra_info["index"]}
"""
FEW = "def score(solution_str, ground_truth): return solution_str == ground_truth\n"
SAMPLE = RewardInput("2+2=", "4", "4", domain="verl", payload={"data_source": "sums", "extra_info": {"index": 3}})


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return str(path)


def test_a_function_is_given_what_verl_gives_it(tmp_path: Path) -> None:
    found = VerlFunction(file(tmp_path, WHOLE), kwargs={"scale": 2})(SAMPLE)
    assert found == RewardResult(2.0, {"acc": 1.0, "index": 3.0}, {"source": "sums"})


def test_a_function_is_given_no_more_than_it_takes(tmp_path: Path) -> None:
    assert VerlFunction(file(tmp_path, FEW), "score")(SAMPLE).score == 1.0


def test_a_module_is_named_as_one() -> None:
    assert VerlFunction("math", "fsum", {"seq": [1.0]})._takes == {"seq"}


@pytest.mark.parametrize("text", ["def compute_score(**k): return 'x'", "def compute_score(**k): return {'acc': 1}"])
def test_what_is_no_score_is_a_failure(text: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the function gave a"):
        VerlFunction(file(tmp_path, text))(SAMPLE)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        VerlFunction(str(tmp_path / "none.py"))
    with pytest.raises(ImportError, match="has no function other"):
        VerlFunction(file(tmp_path, FEW), "other")


def test_a_function_for_a_batch_gets_lists_of_one_answer(tmp_path: Path) -> None:
    """A file of a package finds the modules beside it."""
    (tmp_path / "parts.py").write_text("def half(texts): return [len(text) / 2 for text in texts]\n")
    text = "def score(solution_strs, ground_truths):\n    from .parts import half\n    return half(solution_strs)\n"
    (tmp_path / "__init__.py").write_text(text)
    assert VerlFunction(str(tmp_path / "__init__.py"), "score")(RewardInput("", "abcd", "x")).score == 2.0
