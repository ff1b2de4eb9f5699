"""`mix` before anything starts: its weight in each step, its rows in each update, what the plan says of it, and what is
wrong with it."""

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows
from roll.configs.sections.teachers import MixConfig
from roll.configs.tables.features import active
from roll.features.expert_rows.checks import missing_mix_files, mix_warnings
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

ROWS: dict[str, Any] = {"share": 0.2, "data_args": {"file_name": "expert.jsonl"}}


def mix(**keys: Any) -> dict[str, Any]:
    return {"mix": {"rows": {"proofs": ROWS}, **keys}}


def texts(changes: dict[str, Any]) -> list[str]:
    made = config(changes)
    return [problem.text for room in active(made) for problem in room.problems(made)]


def told(changes: dict[str, Any]) -> list[str]:
    given = config(changes)
    rows = list(batch_rows(given, build_plan(given)))
    first = next((place for place, row in enumerate(rows) if row[0] == "mix"), len(rows))
    return [row[1] for row in rows[first : first + 1 + len(given.mix.drawn)]]


@cases("keys, weights")
def test_the_weight_rises_in_a_line_and_falls_along_half_a_cosine(keys: dict[str, Any], weights: list[float]) -> None:
    given = MixConfig.model_validate(keys)
    found = [given.weight_at(step) for step in range(1, len(weights) + 1)]
    assert found == pytest.approx(weights, abs=1e-12)


def test_rows_of_a_source_are_shared_out_checked_and_filled_in() -> None:
    rows = {name: {**ROWS, "share": share} for name, share in (("a", 0.2), ("b", 0.1), ("c", 0.0))}
    given = MixConfig.model_validate({"rows": rows})
    assert given.rows_per_update(70) == {"a": 20, "b": 10}
    assert MixConfig.model_validate({"rows": {"a": {**ROWS, "share": 0.01}}}).rows_per_update(8) == {"a": 1}
    assert MixConfig.model_validate({"rows": {"a": ROWS}, "weight": 0}).rows_per_update(8) == {}
    assert "mix.rows.a b" in problems({"mix": {"rows": {"a b": ROWS}}})[0] or "'a b' must be a name" in problems({
        "mix": {"rows": {"a b": ROWS}}
    })[0]  # fmt: skip
    assert "without a digit in front" in problems({"mix": {"rows": {"2024_proofs": ROWS}}})[0]
    assert problems({"mix": {"rows": {"a": {**ROWS, "shares": 1}}}})[0].startswith("mix.rows.a.shares: unknown key")
    assert texts(mix()) == [] and problems(mix()) == []
    (problem,) = missing_mix_files(config(mix()))
    assert problem.keys == ("mix.rows.proofs.data_args.file_name",) and "expert.jsonl" in problem.text
    from tests.unit.configs.test_presets import config as filled

    found = filled({"algorithm": "mix_chord", "mix": {"rows": {"proofs": ROWS}, "weight": 0.4}})
    assert (found.mix.weight, found.mix.token_weights) == (0.4, "uncertain")


def test_the_plan_says_how_many_rows_a_share_makes_and_what_they_weigh() -> None:
    assert told({}) == []
    assert told(mix()) == [
        "16 of proofs beside 64 samples of an update: 0.200 of its rows (share 0.2)",
        "loss = (1 - w) x the policy's + w x the expert's; w is 0.1",
    ]
    more = {"warmup_steps": 1, "decay_steps": 20, "final_weight": 0.02, "token_weights": "uncertain"}
    assert told(mix(**more))[-1] == (
        "loss = (1 - w) x the policy's + w x the expert's x p (1 - p) of each token; w is 0.1 after a rise of 1 step, "
        "falls to 0.02 in 20 steps"
    )
    assert told(mix(weight=0, decay_steps=20, final_weight=0.5))[-1].endswith("; w is 0, rises to 0.5 in 20 steps")
    assert told(mix(decay_steps=20, final_weight=0.1))[-1].endswith("; w is 0.1")


@cases("changes, wrong")
def test_what_cannot_work_is_said_with_its_key(changes: dict[str, Any], wrong: str) -> None:
    assert [text for text in texts(changes) if wrong in text], texts(changes)
    assert texts({**changes, "mode": "explore"}) == []  # which learns nothing


@cases("changes, said")
def test_keys_without_effect_are_said(changes: dict[str, Any], said: list[str]) -> None:
    assert list(mix_warnings(config(changes))) == said
