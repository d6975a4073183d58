#!/bin/sh
# Makes every plan of this folder that is not there, one after another, and draws them (`make plans` deletes them first).
# Run from the repository's root, with the extras [tpu] and [cuda-compiler] installed: sh docs/plans/make.sh
#
# Compiled one at a time with `nice` on two cores shared with other work, on 25 November 2026, a plan took 12 to 20 seconds if it
# does not fit, 24 to 68 for a GPU host, and for TPUs: mixtral 416 and 558 (dropping), llama-3-70b-v5p-128 287, -256 173, -1024 219,
# -2048 133, -8192 133, llama-3-8b-v5p-256 138, -8192 151, gpt2-xl-v5p-256 156, llama-3-70b-v5e-256-sequence
# 142 and 185, published 2-70b 270, 3.1-70b 464, 3.1-8b 336; the search of gpt2-large, 319.
# With the machine to itself: vaswani2017-big 26 to 78, llama-3-8b-v5p-1024 28, -v5e-32 95, -v5e-256 44,
# -v5e-256-in-4 37. The other seven were made beside other programs, in 3 to 10 minutes each.
#
# The folders have Google's names of slices: v5p-128 counts 128 cores, which are 64 chips; v5e-256 and v6e-256 count chips.
plan() {
  name=$1
  shift
  [ -e "docs/plans/$name/plan.json" ] || tfm plan --to="docs/plans/$name" "$@"
}

# Rows of 8,192 tokens, 16.8 M tokens a step; fsdp at most as many ways as leave 128 of the width to each.
LARGE=--config=configs/llama.py:3-70b
plan llama-3-70b-v5p-128 $LARGE --topology=v5p-128 --config.mesh.data=1 --config.mesh.fsdp=64 \
  --config.training.gradient_accumulation=8 --config.training.loss_chunk=524288 --rows=0
plan llama-3-70b-v5p-256 $LARGE --topology=v5p-256 --config.mesh.data=2 --config.mesh.fsdp=64 \
  --config.training.gradient_accumulation=4 --config.training.loss_chunk=1048576 --rows=0
plan llama-3-70b-v5p-1024 $LARGE --topology=v5p-1024 --config.mesh.data=8 --config.mesh.fsdp=64 \
  --config.training.loss_chunk=1048576 --rows=0
plan llama-3-70b-v5p-2048 $LARGE --topology=v5p-2048 --config.mesh.data=16 --config.mesh.fsdp=64 \
  --config.training.loss_chunk=2097152 --rows=0
plan llama-3-70b-v5p-8192 $LARGE --topology=v5p-8192 --config.mesh.data=32 --config.mesh.fsdp=64 --config.mesh.tensor=2 \
  --config.training.loss_chunk=4194304 --rows=0

# On small chips the state has to be cut 256 ways.
for chip in v5e v6e; do
  plan llama-3-70b-$chip-256 $LARGE --topology=$chip-256 --config.mesh.data=1 --config.mesh.fsdp=64 --config.mesh.tensor=4 \
    --config.training.gradient_accumulation=32 --config.training.loss_chunk=131072 --rows=0
done
# The same, with each row cut as well, and over the devices that share it the parameters; and with gradients added up in bfloat16.
sequence() {
  plan "$@" $LARGE --topology=v5e-256 --config.mesh.data=1 --config.mesh.fsdp=64 --config.mesh.sequence=4 \
    --config.rules.vocab='tensor sequence' --config.rules.heads='tensor sequence' --config.rules.kv_heads='tensor sequence' \
    --config.rules.mlp='tensor sequence' --config.training.gradient_accumulation=32 --config.training.loss_chunk=131072 --rows=0
}
sequence llama-3-70b-v5e-256-sequence
sequence llama-3-70b-v5e-256-sequence-bfloat16 --config.training.gradient_reduction=bfloat16

SMALL=--config=configs/llama.py:3-8b
plan llama-3-8b-v6e-256 $SMALL --topology=v6e-256 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.loss_chunk=1048576 --rows=0
plan llama-3-8b-v6e-256-in-2 $SMALL --topology=v6e-256 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.gradient_accumulation=2 --config.training.loss_chunk=1048576 --rows=0
plan llama-3-8b-v5e-256-in-4 $SMALL --topology=v5e-256 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.training.gradient_accumulation=4 --config.training.loss_chunk=524288 --rows=0
# Eight rows a chip, one at a time.
plan llama-3-8b-v5e-16 $SMALL --topology=v5e-16 --config.mesh.data=1 --config.mesh.fsdp=16 \
  --config.training.batch_size=128 --config.training.gradient_accumulation=8 --config.training.loss_chunk=32768 --rows=0
for n in 1 2 4 8; do
  plan llama-3-8b-v5e-$((32 * n)) $SMALL --topology=v5e-$((32 * n)) --config.mesh.data=$n --config.mesh.fsdp=32 \
    --config.training.batch_size=$((256 * n)) --config.training.gradient_accumulation=8 --config.training.loss_chunk=$((65536 * n)) --rows=0
done
# One row a chip and step, on 128, 512 and 4,096 chips.
for n in 4 16 128; do
  plan llama-3-8b-v5p-$((64 * n)) $SMALL --topology=v5p-$((64 * n)) --config.mesh.data=$n --config.mesh.fsdp=32 \
    --config.training.batch_size=$((32 * n)) --config.training.loss_chunk=$((65536 * n)) --rows=0
done

# Decoding, too: 64 rows with a cache of 8,192 tokens each, on 8 chips.
plan llama-3-8b-v5p-16 $SMALL --topology=v5p-16 --config.mesh.data=1 --config.mesh.tensor=8 \
  --config.training.batch_size=64 --config.training.gradient_accumulation=8 --config.training.loss_chunk=16384 --rows=64
# Two slices, with the slow network between.
plan llama-3-8b-v5e-2x256 $SMALL --topology=v5e-256 --slices=2 --config.mesh.data=16 --config.mesh.fsdp=32 \
  --config.training.batch_size=4096 --config.training.gradient_accumulation=8 --config.training.loss_chunk=1048576 --rows=0

# One box of GPUs, and four with the slow network between.
plan llama-3-8b-h100-8 $SMALL --topology=h100:8 --config.mesh.data=1 --config.mesh.fsdp=8 \
  --config.training.batch_size=64 --config.training.gradient_accumulation=8 --config.training.loss_chunk=16384 --rows=8
plan llama-3-8b-h100-4x8 $SMALL --topology=h100:8 --slices=4 --config.mesh.data=4 --config.mesh.fsdp=8 \
  --config.training.batch_size=256 --config.training.gradient_accumulation=8 --config.training.loss_chunk=65536 --rows=0

# Mixtral 8x7B (Jiang et al. 2024, Table 1), with the experts over 8 of 128 chips, without a capacity and with one.
mixtral() {
  plan "$1" $SMALL --topology=v5p-256 --config.data.length=4096 --config.data.tokenizer='sentencepiece(32000)' \
    --config.model.position='rope(1000000.0)' --config.model.feed_forward="mixture_of_experts(experts=8, top_k=2$2)" \
    --config.mesh.data=1 --config.mesh.fsdp=16 --config.mesh.expert=8 --config.training.batch_size=4608 \
    --config.training.gradient_accumulation=9 --config.training.loss_chunk=1048576 --rows=0
}
mixtral mixtral-8x7b-v5p-256
mixtral mixtral-8x7b-v5p-256-dropping ', capacity=1.25'

plan gpt2-xl-v5e-256 --config=configs/gpt2.py:xl --topology=v5e-256 --config.mesh.data=32 --config.mesh.fsdp=8 \
  --config.training.loss_chunk=0 --rows=0
plan gpt2-xl-v5p-256 --config=configs/gpt2.py:xl --topology=v5p-256 --config.mesh.data=16 --config.mesh.fsdp=8 \
  --config.training.loss_chunk=0 --rows=0
for pod in v5e-256 v5p-256 v6e-256; do
  plan vaswani2017-big-$pod --config=configs/vaswani2017.py:big --topology=$pod --config.training.batch_size=256
done
plan gpt2-large-h100-8-searched --config=configs/gpt2.py:large --topology=h100:8 --search --limit=12

# The published runs of published.json: their rows, lengths, types and optimizer, and what they store for the backward pass.
# Those of 70B do not fit unless each parameter is over all chips, as in the run: `fsdp` over its width, `data` over the other.
over_all() {
  name=$1
  shift
  plan "$name" "$@" --config.rules.vocab='tensor data' --config.rules.heads='tensor data' --config.rules.kv_heads='tensor data' \
    --config.rules.mlp='tensor data' --config.training.gradient_reduction=bfloat16 --config.training.loss_chunk=1048576 --rows=0
}
over_all published-llama-2-70b-v5p-1024 --config=configs/llama.py:2-70b --topology=v5p-1024 --config.mesh.data=8 --config.mesh.fsdp=64 \
  --config.model.remat="save('mixer/q mixer/k mixer/v mixer feed_forward')" --config.training.batch_size=2048
over_all published-llama-3.1-70b-v6e-256 --config=configs/llama.py:3.1-70b --topology=v6e-256 --config.mesh.data=4 --config.mesh.fsdp=64 \
  --config.model.remat="offload('block_input mixer/q mixer/k mixer/v')" --config.training.batch_size=1280
plan published-llama-3.1-8b-v6e-256 --config=configs/llama.py:3.1-8b --topology=v6e-256 --config.mesh.data=8 --config.mesh.fsdp=32 \
  --config.model.remat="offload('block_input mixer/q mixer/k mixer/v mixer')" --config.training.gradient_reduction=bfloat16 \
  --config.training.batch_size=1024 --config.training.loss_chunk=1048576 --rows=0
plan published-llama-3.1-8b-h100-8 --config=configs/llama.py:3.1-8b --topology=h100:8 --config.mesh.data=1 --config.mesh.fsdp=8 \
  --config.model.remat="save('mixer/q mixer/v attention feed_forward/gate feed_forward')" \
  --config.training.batch_size=16 --config.training.loss_chunk=65536 --rows=0

python docs/plans/draw.py
