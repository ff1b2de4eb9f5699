from typing import Any

from roll.run.saving.resume import RULES, differences
from roll.utils.secrets import redact
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.layout.source import REPOSITORY


def changed(key: str, then: Any, now: Any, **both: Any) -> list[tuple[str, str]]:
    """Effect and text of what differs between a run saved with `then` under the key and one with `now`."""
    old, new = (config({**both, key: value}) for value in (then, now))
    return [(found.rule.effect, str(found)) for found in differences(old.model_dump(mode="json"), new)]


@cases("key, then, now, effect")
def test_each_setting_has_its_effect(key: str, then: Any, now: Any, effect: str) -> None:
    found = changed(key, then, now)
    whole = {"file_name": "['a.jsonl'] -> ['b.jsonl']", "shuffle": "true -> false"}
    shown = whole.get(key.rsplit(".", 1)[-1], f"{then} -> {now}")
    assert (effect, f"{key}: {shown}") in found
    assert {told for told, text in found if not text.startswith(key)} <= {"free"}


def test_a_saved_key_that_does_nothing_now_does_not_differ() -> None:
    now = config()
    assert differences(now.model_dump(mode="json") | {"l2": 0.5}, now) == []


def test_secrets_are_not_compared_because_they_are_not_saved() -> None:
    old, new = (config({"tracker_kwargs.api_key": secret}) for secret in ("secret-1234567", "secret-7654321"))
    assert differences(redact(old.model_dump(mode="json")), new) == []


def test_settings_that_come_and_go_with_a_name_or_a_section_differ_as_a_whole() -> None:
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}}
    assert ("applied", "critic: none -> given") in changed("critic", None, critic)
    code = {"reward": "math_rule"}
    old, new = config({}), config({"rewards.code": code})
    assert [str(d) for d in differences(old.model_dump(mode="json"), new)] == ["rewards.code: none -> given"]


def test_an_argument_that_comes_or_goes_differs_by_itself() -> None:
    """A mapping of the user's own has no keys that a version does not know."""
    assert changed("adv_args", {"a": 1}, {"a": 1, "tau": 2}) == [("applied", "adv_args.tau: none -> 2")]
    assert changed("adv_args", {"a": 1, "tau": 2}, {"a": 1}) == [("applied", "adv_args.tau: 2 -> none")]


def test_why_a_setting_is_applied_can_be_read_without_the_page() -> None:
    assert [rule.why for rule in RULES if "below" in rule.why or rule.why == "the same"] == []


def test_the_page_has_every_rule() -> None:
    page = (REPOSITORY / "reports" / "checks.md").read_text()
    missing = [rule.pattern for rule in RULES if f"`{rule.pattern}`" not in page]
    assert missing == []
    for why in {rule.why for rule in RULES if rule.effect == "refused"}:
        assert why in page
