"""Hugging Face directories to Megatron checkpoints and back.

    roll convert to_hf --checkpoint <trainer's checkpoint> --model <its HF model> --out <directory>
    roll convert to_megatron --model <HF model> --out <directory>

`--model` gives the architecture, and with to_megatron the weights; `--head value` is for a critic, `--head reward` for
a reward model. The checkpoint may come from any parallel layout. One process, on the CPU; it needs memory for the model
once.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from roll.configs.sections.model import ModelArgs
from roll.errors import RollError

logger = logging.getLogger("roll.commands.convert")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    from roll.models.megatron.hf_files import CHECKPOINT_FOLDER

    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # Megatron's, about packages that it does without
    if options.direction == "to_hf" and not (options.checkpoint / CHECKPOINT_FOLDER).is_dir():
        logger.error("%s holds no checkpoint of megatron_train: %s/ is missing", options.checkpoint, CHECKPOINT_FOLDER)
        return 1
    try:
        _convert(options)
    except RollError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:  # transformers: no such model; or files that cannot be read or written
        logger.error("--model %s, --out %s: %s", options.model, options.out, error)
        return 1
    logger.info("written to %s", options.out)
    return 0


def _convert(options: argparse.Namespace) -> None:
    import torch

    from roll.models.loading import model_config
    from roll.platforms.cpu_stand_ins import megatron as megatron_cpu

    args = ModelArgs(model_name_or_path=options.model)
    hf = model_config(args, num_labels=1) if options.head != "lm" else model_config(args)
    megatron_cpu.install()
    from roll.models.megatron.converter import Converter, one_rank

    with one_rank():
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
        checkpoint = options.checkpoint if options.direction == "to_hf" else None
        converter = Converter(options.model, hf, options.head, dtype, checkpoint)
        if options.direction == "to_hf":
            converter.to_hf(options.checkpoint, options.out)
        else:
            converter.to_megatron(options.out)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="roll convert", description=(__doc__ or "").partition("\n")[0])
    directions = parser.add_subparsers(dest="direction", required=True)
    for name, help in (("to_hf", "a trainer's checkpoint to a directory that from_pretrained loads"),
                       ("to_megatron", "a Hugging Face model to a checkpoint's weights")):  # fmt: skip
        direction = directions.add_parser(name, help=help)
        if name == "to_hf":
            direction.add_argument("--checkpoint", type=Path, required=True, help="what save_checkpoint wrote")
        direction.add_argument("--model", required=True, help="directory or hub id of the Hugging Face model")
        direction.add_argument("--out", type=Path, required=True, help="folder to fill")
        direction.add_argument("--head", choices=("lm", "value", "reward"), default="lm", help="lm; value: a critic")
        direction.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="number format of the weights")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
