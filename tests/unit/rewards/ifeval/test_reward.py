"""ifeval: forms of the data, what is judged, how verdicts become a score."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.preflight import preflight as data_preflight
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.ifeval.reward import IFEval, loose_versions
from roll.rewards.worker import RewardWorker
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.helpers.rewards import preflight

IDS = ["punctuation:no_comma", "length_constraints:number_words", "detectable_format:title"]
KWARGS = [{}, {"num_words": 3, "relation": "at least"}, None]
ROW = {"instruction_id_list": IDS, "kwargs": KWARGS}


def judged(text: str, row: dict[str, Any] = ROW, **settings: Any) -> float:
    return IFEval(**settings)(RewardInput("", text, row.get("ground_truth"), payload=row)).score


@cases("text, hard, soft")
def test_hard_is_all_or_nothing_and_soft_the_share_that_is_followed(text: str, hard: float, soft: float) -> None:
    assert judged(text) == hard and judged(text, reward_type="soft") == pytest.approx(soft)


def test_verdicts_and_versions_of_a_response_are_told() -> None:
    result = IFEval("soft")(RewardInput("", "joy joy joy", payload=ROW))
    assert result.extra == {"instructions": dict(zip(IDS, [True, True, False], strict=True))}
    assert result.metrics == {"instructions_followed": pytest.approx(2 / 3), "success": 0}
    assert judged("a b", {"instruction_id_list": ["punctuation:no_comma"]}) == 1
    assert judged("a", {"instruction_id_list": "punctuation:no_comma", "kwargs": {}}) == 1
    assert loose_versions("*a*\nb\nc") == ["*a*\nb\nc", "a\nb\nc", "b\nc", "b\nc", "*a*\nb", "a\nb", "b", "b"]
    assert set(loose_versions("one line")) == {"one line", ""}
    path = "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker"
    reward = config({"rewards.own": {"worker_cls": path, "reward_type": "soft"}}).rewards["own"]
    truth = json.dumps({"func_name": "validate_no_commas"})
    (outcome,) = RewardWorker("own", reward).score([RewardInput("", "a b c a b c a b c d", truth)])
    assert outcome is not None and outcome.score == 1 - 0.5 * (1 - 4 / 8)


ALL_NULL = {"num_words": None, "relation": None, "keywords": None}


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        {"instruction_id_list": json.dumps(IDS), "kwargs": json.dumps(KWARGS)},
        {"instruction_id_list": IDS, "kwargs": [json.dumps(args or {}) for args in KWARGS]},
        {"instruction_id_list": IDS, "kwargs": [ALL_NULL, {**ALL_NULL, **KWARGS[1]}, ALL_NULL]},
        {"ground_truth": ROW},
        {"ground_truth": json.dumps(ROW)},
        {"ground_truth": json.dumps([{"instruction_id": IDS, "kwargs": KWARGS}])},
        {"ground_truth": "unused", **ROW},
        {"ground_truth": ROW, "instruction_id_list": None},
    ],
)
def test_instructions_are_read_in_the_forms_in_which_data_have_them(row: dict[str, Any]) -> None:
    assert judged("<<Joy>> of life", row) == 1 and judged("joy, of my life", row) == 0


@cases("row, message")
def test_a_row_that_holds_no_instruction_is_a_failure(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="(?s).*" + message.replace("{", "\\{").replace("(", "\\(")):
        judged("a", row)


NO_STAR = {"instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": "The end."}]}
FIRST = {"instruction_id_list": ["combination:repeat_prompt"], "kwargs": [{"prompt_to_repeat": "Say hi."}]}


@pytest.mark.parametrize(
    ("row", "text", "strict", "loose"),
    [
        (NO_STAR, "So. The end.", 1, 1),
        (NO_STAR, "So. **The end.**", 0, 1),
        (NO_STAR, "So. The end.\nHope this helps!", 0, 1),
        (NO_STAR, "So. *The end.*\nHope this helps!", 0, 1),
        (NO_STAR, "So. The end.\nHope this helps!\nBye", 0, 0),
        (FIRST, "Sure, here it is:\nSay hi. Hi!", 0, 1),
        (FIRST, "Sure, here it is:\n**Say hi.** Hi!\nDone", 0, 1),
        (FIRST, "Sure, here it is: Say hi. Hi!", 0, 0),
        (
            {
                "instruction_id_list": ["detectable_format:number_highlighted_sections"],
                "kwargs": [{"num_highlights": 1}],
            },
            "*a*",
            1,
            1,
        ),
    ],
)
def test_loose_forgives_asterisks_the_first_and_the_last_line(
    row: dict[str, Any], text: str, strict: float, loose: float
) -> None:
    assert (judged(text, row), judged(text, row, mode="loose")) == (strict, loose)


@pytest.mark.parametrize(
    ("prompt", "text", "score"),
    [
        ("", "<think>a, b</think>\n\nc", 1),
        ("", "<think>a b</think>c, d", 0),
        ("", "<think>a b", 0),
        ("<think>\n", "a b", 0),
        ("<think>\n", "a, b</think>c", 1),
    ],
)
def test_what_follows_thinking_is_judged(prompt: str, text: str, score: float) -> None:
    row = {"instruction_id_list": ["punctuation:no_comma"]}
    assert IFEval()(RewardInput(prompt, text, payload=row)).score == score


@pytest.mark.parametrize("settings", [{"reward_type": "strict"}, {"mode": "soft"}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        IFEval(**settings)


def test_a_missing_package_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.pipeline.rlvr.reward_checks.is_installed", lambda package: False)
    (problem,) = preflight(RLVRConfig.model_construct(rewards={"if": RewardConfig(reward="ifeval")}))
    assert problem == (
        "rewards.if.reward: ifeval needs the package py3langid, which is not installed. Install it: pip install "
        "py3langid."
    )


def test_rows_without_either_column_are_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    of_roll = json.dumps({"func_name": "validate_title"})
    of_paper = {"instruction_id_list": IDS, "kwargs": KWARGS}
    rows = [{"prompt": "a", "truth": of_roll}, {"prompt": "b", **of_paper}, {"prompt": "c", "extra": 1}]
    path.write_text("\n".join(map(json.dumps, rows)))
    domains = data_domains(RLVRConfig.model_construct(rewards={"if": RewardConfig(reward="ifeval")}))
    (problem,) = data_preflight(DataArgs(file_name=(str(path),), ground_truth="truth"), "data_args", domains, "plain")
    assert problem == (
        f"{path}:3: none of the columns instruction_id_list, truth has a value, and rewards.if needs one; the row has "
        "prompt, extra"
    )


def test_rows_with_instructions_that_nobody_knows_are_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"prompt": "a", "truth": json.dumps({"func_name": "validate_no_commas"})}
    wrong = {"prompt": "b", "instruction_id_list": ["keywords:existence"], "kwargs": [{"keyword": "a"}]}
    path.write_text("\n".join(map(json.dumps, [good, wrong])))
    domains = data_domains(RLVRConfig.model_construct(rewards={"if": RewardConfig(reward="ifeval")}))
    (problem,) = data_preflight(DataArgs(file_name=(str(path),), ground_truth="truth"), "data_args", domains, "plain")
    assert problem == (
        f"{path}:2: instruction keywords:existence with {{'keyword': 'a'}}: missing a required argument: 'keywords' "
        "(rewards.if)"
    )
