"""The functions of RLVR-IFeval's data (ROLL's `ifeval` rows), through the reward."""

import json
from typing import Any

from roll.rewards.base import RewardInput
from roll.rewards.ifeval.reward import IFEval
from tests.helpers.cases import cases


@cases("name, args, follow, fail")
def test_a_response_follows_a_function_or_not(
    name: str, args: dict[str, Any], follow: list[str], fail: list[str]
) -> None:
    nulls = dict.fromkeys(("N", "quantifier", "keyword_list", "options", "language"))
    truth = {"func_name": name, **nulls, **args}
    for text in follow + fail:
        assert IFEval()(RewardInput("", text, truth)).score == (text in follow), text
        assert IFEval("soft")(RewardInput("", text, json.dumps(truth))).score == (text in follow), text
