"""Settings of reward-model training."""

from roll.configs.base import setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import TOKENIZER, Role
from roll.pipeline.rows.row_config import VALIDATION, PairConfig

REWARD_TRAIN = Role(
    "reward_train",
    "train",
    "reward",
    ("pretrain",),
    is_needed=True,
    also_reads=frozenset({"data_args", TOKENIZER}),
    why_not="this role learns from pairs",
    rows_together=2,
)


class RMConfig(PairConfig):
    """All keys of reward-model training."""

    role_table = {role.name: role for role in (REWARD_TRAIN, VALIDATION)}
    learner = REWARD_TRAIN.name

    reward_train: WorkerConfig = setting({}, "The reward model. A sample of its batches is a pair.")
    margin_key: str | None = setting(
        None, "Column with a number, by how much the better response's reward has to be larger. None: 0 for all."
    )

    @property
    def margin_column(self) -> str | None:
        return self.margin_key
