"""The tables of estimators and policy losses are complete: a new row without its keys, its loop in float64 or its line
in docs/algorithms.md fails here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from roll.algorithms.objectives import Objective
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.estimators import ESTIMATORS, Estimator, estimator_of
from roll.configs.tables.policy_losses import POLICY_FORMS, PolicyForm, last_name, policy_form_of
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.utils.imports import resolve
from tests.helpers.configs import config, problems
from tests.layout.source import REPOSITORY
from tests.parity.algorithms.test_baselines_against_loops import NAMED
from tests.parity.algorithms.test_chosen_tokens_against_loops import OBJECTIVES as CHOOSE_TOKENS
from tests.parity.algorithms.test_credit_against_loops import CREDIT, NORMS, WHITENED
from tests.parity.algorithms.test_episodes_against_loops import PER_TURN
from tests.parity.algorithms.test_losses_against_loops import CASES
from tests.parity.algorithms.test_token_baselines_against_loops import ESTIMATORS as TOKENS

PAGE = (REPOSITORY / "docs" / "algorithms.md").read_text(encoding="utf-8")
ROWS = tuple(ESTIMATORS.values())
FORMS = tuple(POLICY_FORMS.values())


def lines_about(name: str) -> str:
    """The rows of the page's tables that begin with this name, and the rows below them that carry on."""
    found = re.findall(rf"^\| `{name}`.*\n(?:\| \|.*\n)*", PAGE, re.MULTILINE)
    return "".join(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_estimator_has_its_keys_its_function_and_its_line(row: Estimator) -> None:
    assert {*row.keys} <= AgenticConfig.model_fields.keys() | RLVRConfig.model_fields.keys()
    assert not row.per_turn or row.function is not None
    assert row.function is None or callable(resolve(row.function))
    assert lines_about(row.name), f"docs/algorithms.md has no line on {row.name}"
    for key in row.weights:
        assert f"`{key}`" in lines_about(row.name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_estimator_has_its_loop_in_float64(row: Estimator) -> None:
    if row.function is not None:
        known = {*PER_TURN, *NAMED}
        assert row.name in known, "add its loop to tests/parity/algorithms"
    elif row.weighs_tokens:
        assert row.name in TOKENS
    else:
        assert (row.name, "default", "default", row.mean, row.std) in NORMS
    if row.needs_critic:
        assert row.name in {settings.estimator for settings in CREDIT.values()}
    if row.whitens:
        assert row.name in {settings.estimator for settings in WHITENED}


def objective_of(form: PolicyForm) -> Objective:
    build = cast(Callable[..., Objective], resolve(form.objective))
    return build(*config().policy_keys(form).values())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_policy_loss_has_its_keys_and_its_lines(form: PolicyForm) -> None:
    names = [last_name(key) for key in form.keys]
    sections: Mapping[str, type] = {"actor_train": WorkerConfig, "": RLVRConfig}
    for key in form.keys:
        assert last_name(key) in sections[key.rpartition(".")[0]].model_fields, key
        assert last_name(key) in lines_about(form.name), f"docs/algorithms.md does not say what {key} does"
    fields = {**WorkerConfig.model_fields, **RLVRConfig.model_fields}
    told = {key for key, info in fields.items() if f"with pg_variant {form.name}:" in (info.description or "").lower()}
    assert told <= {*names}, "keys that the table does not know: nothing reads them"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_policy_loss_has_its_loop_in_float64(form: PolicyForm) -> None:
    looped = [*(loss.objective for loss in CASES.values()), *CHOOSE_TOKENS.values()]
    kinds = {type(objective).__name__ for objective in looped}
    assert type(objective_of(form)).__name__ in kinds, "add it to OBJECTIVES of test_losses_against_loops.py"


def test_names_are_those_of_the_rows_and_others_are_refused_with_the_nearest() -> None:
    assert [estimator_of(name).name for name in ESTIMATORS] == [row.name for row in ROWS]
    assert [policy_form_of(name).name for name in POLICY_FORMS] == [form.name for form in FORMS]
    (text,) = problems({"adv_estimator": "grop"})
    assert text.startswith("adv_estimator: 'grop' is not one of gae, reinforce,") and text.endswith("mean grpo?")
    (text,) = problems({"actor_train.pg_variant": "cispoo"})
    assert text.startswith("actor_train.pg_variant: 'cispoo' is not one of ppo,") and text.endswith("mean cispo?")
