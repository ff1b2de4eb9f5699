"""Keys that do nothing: known, checked, and in no settings object. What is said of each kind: test_validate.py."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from roll.configs.base import Settings, nested_class
from roll.configs.load.known_keys import INERT, InertKey, inert_keys, known_keys
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import checked, problems
from tests.helpers.pages import DOCS

ENTRIES = [(section, key, inert) for section, keys in INERT.items() for key, inert in keys.items()]


def classes(settings: type[Settings], seen: set[type[Settings]]) -> set[type[Settings]]:
    """The classes of all sections below these settings, and those above each."""
    for cls in settings.__mro__:
        if issubclass(cls, Settings) and cls not in seen:
            seen.add(cls)
            for annotation in known_keys(cls).values():
                if (inner := nested_class(annotation)) is not None:
                    classes(inner, seen)
    return seen


EVERY_CLASS = classes(DistillConfig, classes(AgenticConfig, classes(RLVRConfig, set())))


def test_every_section_of_the_table_is_one_of_a_yaml_and_has_no_key_of_the_table_itself() -> None:
    assert {*INERT} <= {cls.__name__ for cls in EVERY_CLASS}
    assert [
        (cls.__name__, key) for cls in EVERY_CLASS for key in INERT.get(cls.__name__, ()) if key in cls.model_fields
    ] == []


@pytest.mark.parametrize(("section", "key", "inert"), ENTRIES, ids=lambda part: part if isinstance(part, str) else "")
def test_an_entry_says_what_it_would_be_and_why_it_is_not(section: str, key: str, inert: InertKey) -> None:
    assert inert.help.endswith(".")
    assert inert.kind == "planned" or bool(inert.reason) is (inert.kind != "section")
    if inert.kind != "section":
        TypeAdapter(inert.type).validate_python(inert.default)


def test_a_key_holds_in_the_classes_below_unless_they_have_it_themselves() -> None:
    assert {"base_dir", "l2", "val_greedy"} <= inert_keys(RLVRConfig).keys()
    assert "val_greedy" not in inert_keys(AgenticConfig)


@cases("changes, message")
def test_its_name_is_checked_like_that_of_any_key(changes: dict[str, Any], message: str) -> None:
    assert problems(changes) == [message]


def test_settings_do_not_have_it() -> None:
    given = {"use_reward_norm": False, "actor_train.model_args.num_labels": 1, "transfer_backend.backend_name": None}
    made = checked(given)
    assert made.config is not None and made.problems == ()
    dump = made.config.model_dump()
    assert not {"use_reward_norm", "transfer_backend"} & dump.keys()
    assert "num_labels" not in dump["actor_train"]["model_args"]


def test_what_is_not_implemented_stands_on_the_page_for_those_who_come_from_roll() -> None:
    page = (DOCS / "porting.md").read_text(encoding="utf-8")
    planned = [
        {"mode": "router_replay.mode", "proxy_type": "llm_proxy.proxy_type"}.get(key, key)
        for section, rows in INERT.items()
        for key, inert in rows.items()
        if inert.kind == "planned"
    ]
    assert planned and [name for name in planned if f"`{name}" not in page] == []
