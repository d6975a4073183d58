"""How to cut a run over devices: presets to be laid over any config, alone or several at once.

Question:  which devices hold and compute what?
Source:    Rajbhandari et al. 2020, ZeRO; Shoeybi et al. 2019, Megatron-LM; Zhao et al. 2023, FSDP; Lepikhin et al. 2020,
           GShard; Huang et al. 2019, GPipe. Each is the mesh axis of its name, with the schema's rules.
Command:   tfm train --config=configs/gpt2.py+configs/meshes.py --workdir=runs/gpt2    (fsdp)
           tfm train --config=configs/gpt2.py+configs/meshes.py:fsdp,tensor=4 --workdir=runs/gpt2
           tfm inspect --config=configs/llama.py:3.1-405b+configs/meshes.py:fsdp,tensor=8 --devices=2048
Expected:  the losses of one device, whatever the mesh.

A preset is a name, or a name with a size; the one without a size takes the devices that are left, and if all have one
`data` does. For most models on a slice, `fsdp`; where its gathers take longer than the layers, `fsdp,tensor=4`; where a
batch has fewer rows than there are devices, `tensor`, `sequence` or `stage` too; on several slices, `fsdp,data=SLICES`.
"""

# What is cut, and what devices tell each other for it.
PRESETS = {
  'data': 'rows; every device has the whole model. The gradients are added up once a step.',
  'fsdp': 'rows, and along the width parameters, gradients and optimizer state (ZeRO-3). Each layer is gathered where it is '
  'needed, forward and backward, and its gradient is added up and scattered.',
  'tensor': 'heads, feed-forward and vocabulary (Megatron). Activations are added up twice in each layer, forward and '
  'backward; so to be kept within a host.',
  'sequence': 'tokens of each row (context), for rows that one device cannot hold.',
  'expert': 'rows, and the experts of mixtures. Tokens travel to their experts and back, twice in each layer.',
  'stage': 'layers (pipeline). Activations go from one to the next, of one part of the batch while the next part is computed; more and '
  'smaller parts (config.pipeline) leave stages idle for less of the time.',
}

# Changes of the rules, by names that take no size.
RULES = {
  # Multi-query attention, or fewer key heads than `tensor`: each device has them all.
  'whole_kv': dict(kv_heads=''),
  # The embedding and the output are of no stage, and every one has them whole; so each has a part of the vocabulary.
  'vocab_over_stages': dict(vocab='tensor stage'),
  # Experts over the devices of `tensor`, each whole, instead of a part of every expert.
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
        f'--config=configs/meshes.py:{arg} has {word!r}; known, each once and with =SIZE or without: {", ".join(PRESETS)}; '
        f'without: {", ".join(RULES)}'
      )
  if -1 not in mesh.values():
    mesh.setdefault('data', -1)
  return dict(mesh=dict(data=1) | mesh, rules=rules)
