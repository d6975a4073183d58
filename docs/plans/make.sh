#!/bin/sh
# Makes every plan of this folder that is not there, one after another, and draws them. Run from the repository's root, with
# the extras [tpu] and [cuda-compiler] installed: sh docs/plans/make.sh
plan() {
  name=$1
  shift
  [ -e "docs/plans/$name/plan.json" ] || tfm plan --to="docs/plans/$name" "$@"
}

# Rows of 8,192 tokens, 16.8 M tokens a step; fsdp at most as many ways as leave 128 of the width to each.
LARGE=--config=configs/llama.py:3-70b
plan llama-3-70b-v5p-64 $LARGE --topology=v5p:4x4x4 --config.mesh.data=1 --config.mesh.fsdp=64 \
  --config.training.gradient_accumulation=8 --config.training.loss_chunk=524288 --rows=0
plan llama-3-70b-v5p-128 $LARGE --topology=v5p:4x4x8 --config.mesh.data=2 --config.mesh.fsdp=64 \
  --config.training.gradient_accumulation=4 --config.training.loss_chunk=1048576 --rows=0
plan llama-3-70b-v5p-512 $LARGE --topology=v5p:8x8x8 --config.mesh.data=8 --config.mesh.fsdp=64 \
  --config.training.loss_chunk=1048576 --rows=0
plan llama-3-70b-v5p-1024 $LARGE --topology=v5p:8x8x16 --config.mesh.data=16 --config.mesh.fsdp=64 \
  --config.training.loss_chunk=2097152 --rows=0
plan llama-3-70b-v5p-4096 $LARGE --topology=v5p:16x16x16 --config.mesh.data=32 --config.mesh.fsdp=64 --config.mesh.tensor=2 \
  --config.training.loss_chunk=4194304 --rows=0
plan llama-2-70b-v5p-512 --config=configs/llama.py:2-70b --topology=v5p:8x8x8 --config.mesh.data=8 --config.mesh.fsdp=64 \
  --config.training.batch_size=2048 --config.training.loss_chunk=1048576 --rows=0

# On small chips the state has to be cut 256 ways.
for chip in v5e v6e; do
  plan llama-3-70b-$chip-256 $LARGE --topology=$chip:16x16 --config.mesh.data=1 --config.mesh.fsdp=64 --config.mesh.tensor=4 \
    --config.training.gradient_accumulation=32 --config.training.loss_chunk=131072 --rows=0
done
# The same, with each row cut as well, and over the devices that share it the parameters.
plan llama-3-70b-v5e-256-sequence $LARGE --topology=v5e:16x16 --config.mesh.data=1 --config.mesh.fsdp=64 --config.mesh.sequence=4 \
  --config.rules.vocab='tensor sequence' --config.rules.heads='tensor sequence' --config.rules.kv_heads='tensor sequence' \
  --config.rules.mlp='tensor sequence' --config.training.gradient_accumulation=32 --config.training.loss_chunk=131072 --rows=0

SMALL=--config=configs/llama.py:3-8b
plan llama-3-8b-v6e-256 $SMALL --topology=v6e:16x16 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.loss_chunk=1048576 --rows=0
plan llama-3-8b-v6e-256-in-2 $SMALL --topology=v6e:16x16 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.gradient_accumulation=2 --config.training.loss_chunk=1048576 --rows=0
plan llama-3-8b-v5e-256-in-4 $SMALL --topology=v5e:16x16 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.gradient_accumulation=4 --config.training.loss_chunk=524288 --rows=0
# Eight rows a chip, one at a time.
plan llama-3-8b-v5e-16 $SMALL --topology=v5e:4x4 --config.mesh.data=1 --config.mesh.fsdp=16 \
  --config.training.batch_size=128 --config.training.gradient_accumulation=8 --config.training.loss_chunk=32768 --rows=0
for data in 1:4x8 2:8x8 4:8x16 8:16x16; do
  n=${data%:*}
  plan llama-3-8b-v5e-$((32 * n)) $SMALL --topology=v5e:${data#*:} --config.mesh.data=$n --config.mesh.fsdp=32 \
    --config.training.batch_size=$((256 * n)) --config.training.gradient_accumulation=8 --config.training.loss_chunk=$((65536 * n)) --rows=0
done
# One row a chip and step.
for data in 4:4x4x8 16:8x8x8 128:16x16x16; do
  n=${data%:*}
  plan llama-3-8b-v5p-$((32 * n)) $SMALL --topology=v5p:${data#*:} --config.mesh.data=$n --config.mesh.fsdp=32 \
    --config.training.batch_size=$((32 * n)) --config.training.loss_chunk=$((65536 * n)) --rows=0
done

# Decoding, too: 64 rows with a cache of 8,192 tokens each.
plan llama-3-8b-v5p-8 $SMALL --topology=v5p:2x2x2 --config.mesh.data=1 --config.mesh.tensor=8 \
  --config.training.batch_size=64 --config.training.gradient_accumulation=8 --config.training.loss_chunk=16384 --rows=64
# Two slices, with the slow network between.
plan llama-3-8b-v5e-2x256 $SMALL --topology=v5e:16x16 --slices=2 --config.mesh.data=16 --config.mesh.fsdp=32 \
  --config.training.batch_size=4096 --config.training.gradient_accumulation=8 --config.training.loss_chunk=1048576 --rows=0

# One box of GPUs, and four with the slow network between.
plan llama-3-8b-h100-8 $SMALL --topology=h100:8 --config.mesh.data=1 --config.mesh.fsdp=8 \
  --config.training.batch_size=64 --config.training.gradient_accumulation=8 --config.training.loss_chunk=16384 --rows=8
plan llama-3-8b-h100-4x8 $SMALL --topology=h100:8 --slices=4 --config.mesh.data=4 --config.mesh.fsdp=8 \
  --config.training.batch_size=256 --config.training.gradient_accumulation=8 --config.training.loss_chunk=65536 --rows=0

plan gpt2-xl-v5e-256 --config=configs/gpt2.py:xl --topology=v5e:16x16 --config.mesh.data=32 --config.mesh.fsdp=8 \
  --config.training.loss_chunk=0 --rows=0
plan gpt2-xl-v5p-128 --config=configs/gpt2.py:xl --topology=v5p:4x4x8 --config.mesh.data=16 --config.mesh.fsdp=8 \
  --config.training.loss_chunk=0 --rows=0
for pod in v5e-256:16x16 v5p-128:4x4x8 v6e-256:16x16; do
  plan vaswani2017-big-${pod%:*} --config=configs/vaswani2017.py:big --topology=${pod%-*}:${pod#*:} --config.training.batch_size=256
done
plan gpt2-large-h100-8-searched --config=configs/gpt2.py:large --topology=h100:8 --search --limit=12

python docs/plans/draw.py
