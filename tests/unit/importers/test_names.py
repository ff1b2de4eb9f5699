"""Names of other systems, in the words of here."""

from roll.configs.base import nested_class
from roll.configs.load.known_keys import known_keys
from roll.importers.names import NAMES
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.sft.sft_config import SFTConfig


def test_every_name_stands_for_keys_that_there_are() -> None:
    def has(cls: object, key: str) -> bool:
        for part in key.split("."):
            if "strategy_config" in part or "<" in part:
                return True
            if cls is None or part not in (keys := known_keys(cls)):  # type: ignore[arg-type]
                return False
            cls = nested_class(keys[part])
        return True

    kinds = (RLVRConfig, AgenticConfig, SFTConfig)
    assert [key for keys in NAMES.values() for key in keys if not any(has(kind, key) for kind in kinds)] == []
