"""Mesh presets: overlays that shard any config over devices, one preset or several at once.

Question:  what does each device store and compute?
Source:    Rajbhandari et al. 2020, ZeRO; Shoeybi et al. 2019, Megatron-LM; Zhao et al. 2023, FSDP; Lepikhin
           et al. 2020, GShard; Huang et al. 2019, GPipe. Each preset is the mesh axis of its name, with the
           sharding rules of tfm/config/schema.py.
Command:   tfm train --config=configs/gpt2.py+configs/meshes.py --workdir=runs/gpt2               (fsdp)
           tfm train --config=configs/gpt2.py+configs/meshes.py:fsdp,tensor=4 --workdir=runs/gpt2
           tfm inspect --config=configs/llama.py:3.1-405b+configs/meshes.py:fsdp,tensor=8 --devices=2048
Cost:      not measured; `tfm plan` estimates it for a config and a topology.
Expected:  the same losses as on one device, whatever the mesh.

The argument is a comma-separated list of presets, each a name or NAME=SIZE. A preset without a size takes the
remaining devices; if every preset has a size, `data` takes them. Use `fsdp` for most models on one slice;
`fsdp,tensor=4` where its all-gathers take longer than the layers' computation; `tensor`, `sequence` or
`stage` in addition where a batch has fewer rows than there are devices; `fsdp,data=SLICES` on several slices.
"""

# Per axis: what is sharded, and which communication that requires.
PRESETS = {
  'data': 'rows; every device has the whole model. One all-reduce of the gradients per step.',
  'fsdp': 'rows, and parameters, gradients and optimizer state along the width (ZeRO-3). Per layer, an '
  'all-gather of the parameters, forward and backward, and a reduce-scatter of the gradients.',
  'tensor': 'heads, feed-forward and vocabulary (Megatron). Two all-reduces of activations per layer, '
  'forward and backward; keep it within a host.',
  'sequence': 'tokens of each row (context parallelism), for rows that do not fit on one device.',
  'ulysses': 'tokens of each row, and heads instead during attention (DeepSpeed-Ulysses), for kernels that '
  'need whole rows. Eight all-to-alls per layer, forward and backward together.',
  'expert': 'rows, and the experts of mixtures. All-to-all of tokens to experts and back, twice per layer.',
  'stage': 'layers (pipeline). Each stage sends the activations of one microbatch to the next stage while it '
  'computes the next microbatch; more and smaller microbatches (config.pipeline) shorten the idle time.',
}

# Changes of the sharding rules; these names take no size.
RULES = {
  # Multi-query attention, or fewer key heads than `tensor`: every device has all key heads.
  'whole_kv': dict(kv_heads=''),
  # The embedding and the output belong to no stage and would be replicated; shard their vocabulary instead.
  'vocab_over_stages': dict(vocab='tensor stage'),
  # Whole experts over the devices of `tensor`, instead of a part of every expert on each.
  'experts_over_tensor': dict(expert='tensor', mlp=''),
}


def get_config(arg: str = ''):
  mesh, rules = {}, {}
  for word in (arg or 'fsdp').split(','):
    name, equals, size = word.partition('=')
    if name in RULES and not equals:
      rules |= RULES[name]
    elif name in PRESETS and name not in mesh and (not equals or size.isdecimal()):
      mesh[name] = int(size) if equals else -1
    else:
      raise ValueError(
        f'it has no {word!r}; known, each at most once, with or without =SIZE: {", ".join(PRESETS)}; '
        f'without =SIZE: {", ".join(RULES)}'
      )
  if -1 not in mesh.values():
    mesh.setdefault('data', -1)
  return dict(mesh=dict(data=1) | mesh, rules=rules)
