"""Keys that sources ask their mappings for."""

from tests.helpers.unimported.looked_up import looked_up
from tests.helpers.unimported.sources import Sources

TEXT = """
from names import CLIP
def read(settings, other, key="by default"):
    settings["a"], settings.get("b", 1), "c" in settings, other["d"]
    scalar(settings, CLIP, 0.0)
    scalar(settings, key)
    {name: self.settings.get(name) for name in ("e", "f")}
    for unknown in refused:
        unknown in settings.keys()
"""


def test_keys_are_those_that_a_mapping_of_the_name_is_asked_for() -> None:
    sources = Sources({"a.py": TEXT, "names.py": 'CLIP = "clip"'})
    assert looked_up(sources, ["a"], ("settings",)) == {"a", "b", "c", "e", "f", "clip", "by default"}
    assert looked_up(sources, ["a"], ("other",)) == {"d"}
