"""The rows of an RLVR run: their domains, and how operators see them."""

from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.chosen_rows import Places, ReadTexts, Texts
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from roll.pipeline.rlvr.rlvr_config import LEARNT, RLVRConfig
from roll.rewards.table import reads_ground_truth, required_columns, row_checks


def data_domains(config: RLVRConfig) -> list[Domain]:
    """The domains as the data sees them: each domain's own name, its tags, and the columns that its reward needs.
    Imports the rewards."""
    domains = []
    for name, reward in config.rewards.items():
        tags = tuple(dict.fromkeys((name, *reward.tag_included)))
        required, some = required_columns(reward), reads_ground_truth(reward)
        domains.append(Domain(name, tags, required, some, row_checks(reward)))
    return domains


def places(config: RLVRConfig) -> Places:
    return Places(config.data_args, LEARNT, has_responses=False)


def read_texts(config: RLVRConfig, vision: VisionModel | None = None) -> ReadTexts:
    """Rows have prompts alone. What their rewards need is checked when they become tasks. `vision`: the model, if it
    sees pictures."""
    readers: dict[str, RowReader] = {}
    tags = {name: tuple(dict.fromkeys((name, *reward.tag_included))) for name, reward in config.rewards.items()}
    domains = [Domain(name, names, required=()) for name, names in tags.items()]

    def read(row: Row, args: DataArgs, key: str) -> Texts:
        if key not in readers:
            readers[key] = RowReader(args, key, domains, vision)
        example = readers[key].read(row)
        return Texts(example.question, pictures=tuple(source.place for source in example.pictures))

    return read
