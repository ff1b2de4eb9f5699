"""verl's keys for reinforcement learning (`ppo_trainer`, `ppo_megatron_trainer` and what builds on them)."""

from __future__ import annotations

from roll.importers import words
from roll.importers.rows import Row, changes, lacks, needless, summed, to
from roll.importers.verl.common import ITSELF, NO_PICTURES, OWN_CODE, PROFILES, TRAIN
from roll.importers.verl.role_rows import ROLE_ROWS
from roll.importers.verl.verl_correction import CORRECTION_ROWS
from roll.importers.verl.verl_programs import PROGRAM_ROWS
from roll.importers.verl.verl_reward_rows import REWARD_ROWS

_DATA = (
    to("data.train_files", f"{TRAIN}.data_args.file_name", via=words.files),
    to("data.val_files", "validation.data_args.file_name", via=words.files),
    to("data.tokenizer", f"{TRAIN}.model_args.tokenizer_path"),
    to(
        "data.prompt_key",
        f"{TRAIN}.data_args.messages",
        default="prompt",
        note="verl's prompts are chat messages; the answer to compare with is the column reward_model.ground_truth",
    ),
    summed("data.reward_fn_key", "rewards", "data_source"),
    to("data.max_prompt_length", "prompt_length", default=512),
    to("data.max_response_length", "response_length", default=512),
    summed("data.train_batch_size", "actor batches", 1024),
    summed("data.gen_batch_size", "filter", needs="filter"),
    to("data.val_batch_size", "val_batch_size", idle=(None,)),
    to("data.shuffle", f"{TRAIN}.data_args.shuffle", default=True),
    to("data.drop_last", f"{TRAIN}.data_args.drop_last"),
    to("data.seed", "seed", idle=(None,)),
    summed("data.truncation", "rows", "error"),
    summed("data.filter_overlong_prompts", "rows", False),
    needless("data.filter_overlong_prompts_workers", "prompts are measured as they are needed"),
    needless("data.dataloader_num_workers", "prompts are read as they are needed"),
    lacks("data.validation_shuffle", "all rows are validated, in their order", False),
    changes("data.*_max_samples", "all rows are read; data_args.split takes a part of a data set of the hub", -1),
    summed("data.image_key", "pictures"),
    summed("data.video_key", "pictures"),
    summed("data.audio_key", "pictures"),
    changes("data.mm_processor_kwargs**", NO_PICTURES, {}),
    to("data.prompt_id_key", f"{TRAIN}.data_args.id", idle=(None,)),
    needless("data.max_prompt_id_length", "ids of rows are texts, of any length"),
    changes("data.need_tools_kwargs", "tools belong to agentic runs: custom_envs.<tag>.tool_wrapper", False),
    needless("data.image_patch_size", NO_PICTURES),
    *(
        needless(f"data.return_{what}", "messages, texts and tokens of a row are kept where something reads them")
        for what in ("raw_input_ids", "raw_chat", "full_prompt", "multi_modal_inputs")
    ),
    needless("data.use_shm", ITSELF),
    lacks("data.trust_remote_code", OWN_CODE, False),
    changes("data.custom_cls.*", "rows of one's own become a file of rows: docs/data.md"),
    changes("data.sampler.*", "rows come shuffled, or in their order"),
    changes("data.datagen.*", "rows are there before the run"),
    changes("data.apply_chat_template_kwargs", "data_args.template takes a Jinja file with such settings in it", {}),
    changes("data.tool_config_path", "tools belong to agentic runs: custom_envs.<tag>.tool_wrapper"),
    changes("data.apply_chat_template_kwargs.*", "data_args.template takes a Jinja file with such settings in it"),
)

_ALGORITHM = (
    to("algorithm.adv_estimator", "adv_estimator", via=words.estimator, default="gae"),
    to("algorithm.gamma", "gamma", via=words.number, default=1.0),
    to("algorithm.lam", "lambd", via=words.number, default=1.0, needs="critic"),
    summed("algorithm.norm_adv_by_std_in_grpo", "norms", True),
    to("algorithm.use_kl_in_reward", "add_token_level_kl", default=False),
    to("algorithm.kl_penalty", "kl_penalty", via=words.kl, default="kl", needs="kl reward"),
    to("algorithm.kl_ctrl.kl_coef", "init_kl_coef", via=words.number, default=0.001, needs="kl reward"),
    Row("algorithm.kl_ctrl.type", default="fixed", idle=("fixed",), note="target_kl adapts it", needs="kl reward"),
    to("algorithm.kl_ctrl.target_kl", "target_kl", via=words.number, default=0.1, needs="adaptive kl"),
    to("algorithm.kl_ctrl.horizon", "kl_horizon", default=10000, needs="adaptive kl"),
    summed("algorithm.filter_groups.enable", "filter", False, needs="filter"),
    summed("algorithm.filter_groups.max_num_gen_batches", "filter", needs="filter"),
    summed("algorithm.filter_groups.metric", "filter", needs="filter"),
    changes("algorithm.use_pf_ppo", "rows are not drawn again by weight; difficulty_loss_weight weighs them", False),
    *(needless(f"algorithm.pf_ppo.{name}", "use_pf_ppo says whether") for name in ("reweight_method", "weight_pow")),
    *CORRECTION_ROWS,
    needless("algorithm._target_", "classes of verl's"),
    needless("algorithm.kl_ctrl._target_", "classes of verl's"),
)

_TRAINER = (
    summed("trainer.nnodes", "placement", 1),
    summed("trainer.n_gpus_per_node", "placement", 8),
    to(
        "trainer.total_epochs",
        "num_train_epochs",
        default=30,
        needs="epochs",
        note="the run counts its steps when it knows its rows: epochs x whole batches of them",
    ),
    to("trainer.total_training_steps", "max_steps", idle=(None,), note="it wins over epochs, there as here"),
    summed("trainer.project_name", "trackers", "verl_examples"),
    to("trainer.experiment_name", "exp_name", default="gsm8k"),
    summed("trainer.logger", "trackers", ["console", "wandb"]),
    needless("trainer.log_val_generations", "rollout_dump_dir has answers of training and validation"),
    to("trainer.rollout_data_dir", "rollout_dump_dir", idle=(None,)),
    lacks("trainer.validation_data_dir", "rollout_dump_dir has answers of training and validation"),
    to("trainer.save_freq", "save_steps", via=words.positive, default=-1),
    to("trainer.test_freq", "eval_steps", via=words.positive, default=-1),
    to("trainer.val_before_train", "val_before_train", needs="validation"),
    changes("trainer.val_only", "there is no run of a validation alone", False),
    to("trainer.critic_warmup", "critic_warmup", default=0, needs="critic"),
    to("trainer.default_local_dir", "checkpoint_config.output_dir"),
    lacks("trainer.default_hdfs_dir", "checkpoints go into a directory; copy it from there"),
    summed("trainer.resume_mode", "resume", "auto"),
    summed("trainer.resume_from_path", "resume"),
    to("trainer.max_actor_ckpt_to_keep", "max_ckpt_to_keep", idle=(None,)),
    needless("trainer.max_critic_ckpt_to_keep", "a checkpoint holds all roles"),
    lacks("trainer.remove_previous_ckpt_in_save", "max_ckpt_to_keep: 1", False),
    lacks("trainer.del_local_ckpt_after_load", "max_ckpt_to_keep says how many stay", False),
    needless("trainer.balance_batch", "rows are divided over ranks by work"),
    changes("trainer.device", "platforms are CUDA and CPU", "cuda", "cpu"),
    needless("trainer.esi_redundant_time", "interrupt_timeout is the time after SIGTERM"),
    needless("trainer.ray_wait_register_center_timeout", "rpc_timeout is the limit of a call"),
    needless("trainer.use_legacy_worker_impl", "classes of verl's"),
    needless("trainer.use_v1", "classes of verl's"),
    lacks("trainer.profile_**", PROFILES),
    needless("trainer.npu_profile.**", PROFILES),
    needless("trainer.*_nsight_options.**", PROFILES),
    needless("trainer.val_generations_to_log_to_wandb", "rollout_dump_dir has answers of training and validation"),
)

_OTHERS = (
    needless("**._target_", "classes of verl's"),
    needless("**.profiler.**", PROFILES),
    needless("global_profiler.**", PROFILES),
    lacks("transfer_queue.**", "rows travel through Ray's object store", False),
    changes(
        "distillation.**",
        "a teacher is a section here: teacher and use_opd for on-policy distillation (docs/distillation.md)",
        False,
    ),
    changes("reward.**", "how rewards are computed is the domain's: rewards.<domain> (docs/rewards.md)", None, {}, 0),
    needless("ray_kwargs.**", "a Ray cluster is joined at RAY_ADDRESS, or started"),
    needless("ray_init.**", "a Ray cluster is joined at RAY_ADDRESS, or started"),
    needless("defaults", "verl's defaults are known to the importer; files of one's own beside it are read"),
    needless("defaults.**", "verl's defaults are known to the importer; files of one's own beside it are read"),
    to(
        "af_output_dir", "output_dir", note="checkpoint_config.output_dir wins where trainer.default_local_dir is given"
    ),
    needless("hydra.**", "of Hydra's own"),
)

ROWS: tuple[Row, ...] = (*_DATA, *_ALGORITHM, *ROLE_ROWS, *REWARD_ROWS, *_TRAINER, *PROGRAM_ROWS, *_OTHERS)
"""A key stands in one row; of two that fit, the first."""
