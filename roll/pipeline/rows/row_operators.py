"""The rows of runs whose rows are there before them, as operators see them."""

from roll.pipeline.rows.row_config import RowConfig
from roll.run.operators.choice import Places


def places(config: RowConfig) -> Places:
    """How a row is read depends on the keys that name columns."""
    columns = {key: config.value(key) for key in type(config).model_fields if key.endswith("_key")}
    learner = config.learner
    return Places(config.data_args, f"{learner}.data_args", f"{learner} {columns}", config.value(learner).model_args)
