#!/usr/bin/env bash
set -x
export CUDA_DEVICE_MAX_CONNECTIONS=1  # a word for Megatron

answers=4
data=$HOME/data/sums
train_files="['$data/train.parquet', '$data/more.parquet']"
prompt_length=$((256 * 2))
MODEL=${MODEL:-"org/model"}
if [ "$answers" = "8" ]; then
    export SLOW=1
fi

python3 -m verl.trainer.main_ppo --config-path=config \
    --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files="$train_files" \
    data.val_files=${data}/test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=${prompt_length} \
    data.max_response_length=${LIMIT:-1024} \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    data.return_raw_chat=$never_set \
    actor_rollout_ref.model.path="${MODEL}" \
    +actor_rollout_ref.model.override_config.attention_dropout=0. \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.clip_ratio_c=3.0 \
    actor_rollout_ref.actor.optim.lr_decay_style=constant \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.n=$answers \
    trainer.critic_warmup=0 \
    trainer.logger=['console','tensorboard'] \
    trainer.project_name='sums' \
    trainer.experiment_name='sums_megatron' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=3 $@ 2>&1 | tee run.log
