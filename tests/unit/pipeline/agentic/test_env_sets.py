"""`eval_sets` of agentic runs: what is played, how, and what is refused."""

from __future__ import annotations

from roll.pipeline.agentic.agentic_checks import agentic_warnings
from roll.pipeline.agentic.agentic_config import VAL_SEEDS
from roll.pipeline.agentic.settings import episode_rules, job_limit_s
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.test_config import config, problems

SETS = {
    "greedy": {"tags": ["Lake"], "num_episodes": 4},
    "hot": {
        "tags": ["Guess", "Lake"],
        "num_episodes": 24,
        "group_size": 4,
        "generating_args": {"temperature": 0.7, "max_new_tokens": 9},
        "env_seeds": [1 << 30, (1 << 30) + 5],
        "pass_at": [1, 4],
    },
}


def test_each_set_has_its_own_environments_and_sampling_and_the_rest_of_the_validation() -> None:
    made = config(eval_sets=SETS, val_env_manager__step_timeout_s=7.0, val_env_manager__group_size_redundancy=2)
    main, greedy, hot = made.validated
    assert [(one.name, one.at, one.purpose, one.num_episodes) for one in made.validated] == [
        ("", "val_env_manager", "validation", 16),
        ("greedy", "eval_sets.greedy", "validation/greedy", 4),
        ("hot", "eval_sets.hot", "validation/hot", 24),
    ]
    assert hot.manager.slots == ("Guess", "Lake") and hot.manager.group_size == 4 and hot.pass_at == (1, 4)
    assert main.seeds == greedy.seeds == VAL_SEEDS and hot.seeds == (1 << 30, (1 << 30) + 5)
    assert main.manager.num_envs == 8 * 3 and hot.manager.num_envs == 8 * 4, "a set counts every episode"
    rules = {one.name: episode_rules(made, "Lake", one.purpose) for one in made.validated}
    assert [rules[name].sampling.temperature for name in ("", "greedy", "hot")] == [0.0, 0.0, 0.7]
    assert rules["hot"].max_answer_tokens == 9 and {one.step_timeout_s for one in rules.values()} == {7.0}
    assert len({job_limit_s(made, one.purpose) for one in made.validated}) == 1
    assert made.jobs_per_worker == 32, "as many as training, or as the largest set, plays at once"


def test_sets_may_stand_in_the_place_of_the_validation() -> None:
    made = config(eval_sets=SETS, val_env_manager=None, train_env_manager__env_seeds=[0, 100])
    assert [one.name for one in made.validated] == ["greedy", "hot"] and made.missing_validation == ""
    assert made.validated[0].seeds == VAL_SEEDS and made.validated[0].manager.num_env_groups == 4
    assert made.missing_validation == "" and config(val_env_manager=None).missing_validation == "val_env_manager"


@cases("keys, message")
def test_sets_that_cannot_be_are_refused(keys: dict[str, object], message: str) -> None:
    nested: dict[str, dict[str, object]] = {}
    for key, value in keys.items():
        name, _, rest = key.rpartition(".")
        nested.setdefault(name, {})[rest] = value
    assert [text for text in problems({"eval_sets": nested}) if text.startswith(message)], message


def test_a_number_of_answers_in_the_sampling_is_said_to_do_nothing() -> None:
    sampling = {"generating_args": {"num_return_sequences": 4}}

    said = agentic_warnings(
        config(
            actor_infer__generating_args={"num_return_sequences": 4}, eval_sets={"x": {"tags": ["Lake"], **sampling}}
        )
    )
    key = "generating_args.num_return_sequences does nothing: see"
    assert said == [f"actor_infer.{key} train_env_manager.group_size.", f"eval_sets.x.{key} eval_sets.x.group_size."]
