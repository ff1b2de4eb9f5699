"""What follows from the keys: references, passes, parallel sizes and places."""

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.derive import (
    compares_vocabulary,
    compares_within_groups,
    needs_ref_log_probs,
    old_log_probs,
    weighs_importance,
)
from roll.configs.problems import ids_text
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron import parallel_problems
from roll.configs.tables.estimators import ESTIMATORS
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems


@cases("changes, needed")
def test_a_reference_is_needed_exactly_when_a_term_uses_it(changes: dict[str, Any], needed: bool) -> None:
    assert config(changes).needs_reference is needed


@cases("changes, updates, source")
def test_old_log_probs_come_from_where_the_rules_say(changes: dict[str, Any], updates: int, source: str) -> None:
    assert old_log_probs(config(changes), updates).source == source


@cases("changes, weighs")
def test_where_rollouts_run_ahead_the_loss_is_weighted_unless_something_else_corrects(
    changes: dict[str, Any], weighs: bool
) -> None:
    assert weighs_importance(config(changes)) is weighs


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_estimator_takes_a_second_pass(estimator: str) -> None:
    halves = old_log_probs(config({"adv_estimator": estimator}), 1).halves
    assert halves == (estimator == "optimal_token_baseline")
    assert not old_log_probs(config({"adv_estimator": estimator, "is_pure_opd": True}), 1).halves


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_which_estimators_compare_within_groups_is_what_their_norms_say(estimator: str) -> None:
    means_are_groups = ESTIMATORS[estimator].mean in ("group", "leave_one_out")
    assert compares_within_groups(config({"adv_estimator": estimator})) is means_are_groups
    if estimator not in ("step_reinforce", "agentic_reinforce"):
        assert compares_within_groups(config({"adv_estimator": estimator, "norm_mean_type": "group"}))
    assert not compares_within_groups(config({"adv_estimator": estimator, "norm_mean_type": "batch"}))


def test_whole_distributions_are_compared_by_the_loss_alone() -> None:
    """A KL in the reward asks the reference for log-probs, whatever `kl_loss_type` says of a loss that is off."""
    full = {"kl_loss_type": "full"}
    in_loss = config({**full, "use_kl_loss": True, "kl_loss_coef": 0.1})
    in_reward = config({**full, "add_token_level_kl": True, "init_kl_coef": 0.1})
    assert (compares_vocabulary(in_loss), needs_ref_log_probs(in_loss)) == (True, False)
    assert (compares_vocabulary(in_reward), needs_ref_log_probs(in_reward)) == (False, True)


AT = "reference.strategy_args.strategy_config.expert_model_parallel_size"


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (2.5, "2.5"), ("two", "'two'"), ("y" * 500, "'" + "y" * 76 + "...")]
)
def test_a_size_that_is_no_whole_number_is_shown_short(value: object, shown: str) -> None:
    strategy = {"strategy_name": "megatron_infer", "strategy_config": {"expert_model_parallel_size": value}}
    worker = WorkerConfig.model_validate({"strategy_args": strategy, "device_mapping": "[0]"})
    (problem,) = parallel_problems("reference", worker)
    assert problem.text == f"{AT}: {shown} must be a whole number from 1 on."


def test_ids_say_which_roles_share_devices_and_nodes() -> None:
    made = config({"num_nodes": 2, "actor_infer.device_mapping": [7, 8, 15]})
    places = build_plan(made).layout["actor_infer"].workers
    assert [(place.node, place.local_ids) for place in places] == [(0, (7,)), (1, (0,)), (1, (7,))]
    layout = build_plan(config({"actor_infer.device_mapping": [0, 1, 2, 3]})).layout
    assert layout.shared() == (("actor_train", "actor_infer", (0, 1)),)
    assert build_plan(config()).layout.shared() == ()
    layout = build_plan(config({"actor_infer.device_mapping": [0, 1, 2, 3]})).layout
    assert layout.shares_devices("actor_train") and layout.shares_devices("actor_infer")
    assert not layout.shares_devices("rewards.math")
    assert not build_plan(config()).layout.shares_devices("actor_infer")
    places = build_plan(config({"rewards.math.world_size": 3, "num_nodes": 2})).layout["rewards.math"].workers
    assert [(place.rank, place.node, place.local_rank, place.devices) for place in places] == [
        (0, 0, 0, ()),
        (1, 0, 1, ()),
        (2, 1, 0, ()),
    ]


def test_workers_of_several_devices_are_counted_on_their_node() -> None:
    changes = {"num_nodes": 2, "actor_infer.device_mapping": [4, 5, 6, 7, 8, 9], "actor_infer.num_gpus_per_worker": 2}
    places = build_plan(config(changes)).layout["actor_infer"].workers
    assert [(place.node, place.local_rank, place.devices, place.local_ids) for place in places] == [
        (0, 0, (4, 5), (4, 5)),
        (0, 1, (6, 7), (6, 7)),
        (1, 0, (8, 9), (0, 1)),
    ]


@cases("changes, nodes")
def test_the_number_of_nodes_follows_from_the_largest_id_unless_it_is_given(
    changes: dict[str, Any], nodes: int
) -> None:
    assert problems(changes) == []
    assert config(changes).num_nodes == nodes


@cases("changes, message")
def test_a_placement_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    found = problems(changes)
    assert len(found) == 1 and found[0].startswith(message)


@cases("ids, text")
def test_ids_are_written_in_runs(ids: list[int], text: str) -> None:
    assert ids_text(ids) == text
