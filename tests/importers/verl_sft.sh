gpus=$1
save=$2
torchrun --standalone --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=data/train.parquet \
    data.val_files=data/test.parquet \
    data.prompt_key=question \
    data.response_key=answer \
    data.micro_batch_size_per_gpu=4 \
    data.train_batch_size=64 \
    data.max_length=512 \
    optim.lr=1e-4 \
    model.partial_pretrain=org/model \
    model.lora_rank=32 \
    model.lora_alpha=16 \
    model.target_modules=all-linear \
    trainer.default_local_dir=$save \
    trainer.logger=console \
    trainer.total_epochs=1
