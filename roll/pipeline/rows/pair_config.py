"""Settings of runs that learn from pairs of answers, whatever they make of them."""

from roll.configs.base import setting
from roll.pipeline.rows.row_config import RowConfig


class PairConfig(RowConfig):
    """The columns of a pair."""

    columns = "roll.pipeline.rows.row_sources:columns"
    texts = "roll.pipeline.rows.row_sources:read_texts"

    prompt_key: str = setting(
        "prompt", "Column with the prompt, a text or messages; not read where the answers are whole conversations."
    )
    chosen_key: str = setting("chosen", "Column with the better answer, a text or messages.")
    rejected_key: str = setting("rejected", "Column with the worse answer, a text or messages.")

    tools_key: str | None = setting(
        "tools",
        "Column with the tools that a row offers, if it has any: a list of JSON schemas, or its text. null: none.",
    )

    @property
    def margin_column(self) -> str | None:
        """Column that says by how much the better response is better; None if none is read."""
        return None
