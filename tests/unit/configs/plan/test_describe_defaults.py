"""What `roll plan --defaults` lists."""

from roll.configs.load.chosen_values import Chosen, keys_in_yaml
from roll.configs.plan.describe_defaults import default_lines
from tests.helpers.configs import config, tree


def listed(changes: dict[str, object] | None = None, chosen: tuple[Chosen, ...] = ()) -> dict[str, str]:
    lines = default_lines(config(changes), keys_in_yaml(tree(changes)), chosen)[1:]
    return {words[0]: " ".join(words[1:]) for words in map(str.split, lines)}


def test_what_the_yaml_leaves_out_is_listed_with_its_value() -> None:
    found = listed()
    assert found["pg_clip"] == "0.2"
    assert found["actor_train.training_args.learning_rate"] == "5e-5"
    assert found["actor_infer.generating_args.temperature"] == "1"
    assert found["track_with"] == "tensorboard, jsonl"


def test_what_the_yaml_says_or_was_chosen_is_not() -> None:
    found = listed({"pg_clip": 0.2}, (Chosen("seed", 7, "drawn"),))
    assert not {"pg_clip", "seed", "response_length", "actor_train.strategy_args.strategy_name"} & found.keys()


def test_keys_that_this_run_does_not_read_are_left_out() -> None:
    found = listed()
    unread = {"cispo_epsilon_low", "lambd", "asymre_baseline_shift", "actor_infer.training_args.learning_rate"}
    assert not unread & found.keys()
    assert "lambd" in listed({"adv_estimator": "gae", "critic": {}})
    assert not [key for key in found if key.startswith(("critic.", "reference."))]
