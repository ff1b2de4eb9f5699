"""Settings of supervised fine-tuning."""

from typing import Literal

from roll.configs.base import setting
from roll.configs.cluster import WorkerConfig
from roll.configs.limits import LARGEST
from roll.configs.plan.run_plan import RunPlan, build_run_plan
from roll.configs.roles import TOKENIZER, Role
from roll.configs.run import RunConfig

SFT_TRAIN = Role(
    "sft_train", "train", "lm", ("pretrain",), is_needed=True, also_reads=frozenset({"data_args", TOKENIZER})
)
VALIDATION = Role(
    "validation",
    "none",
    also_reads=frozenset({"data_args"}),
    why_not="validation has no workers of its own: sft_train computes its loss",
)


class SFTConfig(RunConfig):
    """All keys of supervised fine-tuning."""

    role_table = {role.name: role for role in (SFT_TRAIN, VALIDATION)}

    sft_train: WorkerConfig = setting({}, "The model that learns.")
    validation: WorkerConfig | None = setting(None, "Rows (data_args) of the validation. None: no validation.")
    sequence_length: int = setting(
        1024,
        "Longest row in tokens; see data_args.truncation, whose `left` and `right` cut the row.",
        ge=2,
        le=LARGEST,
    )
    global_template: str | None = setting(None, "Chat template of all rows; wins over data_args.template.")

    # columns
    prompt_key: str = setting("instruction", "Column with the prompt, of rows that hold no messages.")
    query_key: str | None = setting(None, "Column with more of the prompt, which follows it on a line of its own.")
    response_key: str = setting("output", "Column with the response.")
    system_key: str | None = setting(None, "Column with the system prompt. None: none but the template's own.")
    tools_key: str | None = setting(
        "tools",
        "Column with the tools that a row offers, if it has any: a list of JSON schemas, or its text. null: none.",
    )
    train_on: Literal["all", "last"] = setting(
        "all", "Of rows with messages: learn every turn of the assistant, or the last one alone."
    )

    @property
    def trained_length(self) -> int:
        return self.sequence_length

    @property
    def missing_validation(self) -> str:
        return "validation" if self.validation is None else ""


def sft_plan(config: SFTConfig) -> RunPlan:
    """An update per step; with a validation, the model scores as well."""
    return build_run_plan(config, frozenset() if config.validation is None else frozenset({SFT_TRAIN.name}))
