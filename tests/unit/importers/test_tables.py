"""The tables of foreign keys: what they write are keys of here, and no key stands in two rows."""

from collections import Counter

import pytest

from roll.configs.base import Settings, holds_mapping, nested_class
from roll.configs.load.known_keys import known_keys
from roll.importers.rows import Table
from roll.importers.trinity.sft import TRINITY_DPO, TRINITY_SFT
from roll.importers.trinity.tables import TRINITY_RL
from roll.importers.verl.tables import VERL_RL, VERL_SFT
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.sft.sft_config import SFTConfig

TABLES = {
    "verl": VERL_RL,
    "verl sft": VERL_SFT,
    "trinity": TRINITY_RL,
    "trinity sft": TRINITY_SFT,
    "trinity dpo": TRINITY_DPO,
}
CONFIGS: dict[str, type[Settings]] = {"rlvr": RLVRConfig, "sft": SFTConfig, "dpo": DPOConfig}


def is_known(target: str, cls: type[Settings]) -> bool:
    """True for a key of a section, and for whatever stands in a section without a class."""
    current: type[Settings] | None = cls
    parts = target.split(".")
    while parts and current is not None:
        keys, name = known_keys(current), parts.pop(0)
        if name not in keys:
            return False
        current = nested_class(keys[name])
        if parts and current is not None and holds_mapping(keys[name]):
            parts.pop(0)
    return True


@pytest.mark.parametrize("name", TABLES)
def test_every_target_is_a_key_of_here(name: str) -> None:
    table = TABLES[name]
    written = {target for row in table.rows for target in row.targets}
    assert written and {target for target in written if not is_known(target, CONFIGS[table.pipeline])} == set()


@pytest.mark.parametrize("name", TABLES)
def test_a_key_stands_in_one_row_and_has_its_sum_and_its_condition(name: str) -> None:
    table: Table = TABLES[name]
    assert [key for key, count in Counter(row.key for row in table.rows).items() if count > 1] == []
    assert {row.sum for row in table.rows if row.sum} <= table.sums.keys()
    assert {row.needs for row in table.rows if row.needs} <= table.conditions.keys()
