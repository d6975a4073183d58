"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts."""

from tfm.hf.families import _rope_fields, llama
from tfm.hf.families._config_fields import ConfigConstant, IgnoredFields, MappedField, SpecArgument
from tfm.hf.families._field_converters import GATED_ACTIVATIONS
from tfm.hf.families._layer_patterns import WINDOW
from tfm.hf.families.protocol import Family, Weight, block_paths, norm
from tfm.spec import parse


def fields(output):
  yield from llama.shared('hidden_act', num_key_value_heads=8, rms_norm_eps=1e-5)
  yield _rope_fields.position_field(default_theta=1e6)
  yield MappedField('sliding_window', 'model.mask', WINDOW, default=None)
  yield ConfigConstant('model.mixer', 'softmax')
  yield ConfigConstant('model.bias', False)
  yield from experts('num_local_experts', default_count=8, default_top_k=2)
  yield SpecArgument(
    'router_aux_loss_coef', 'model.feed_forward', 'balance', default=0.001, spec_default=0.01
  )
  yield IgnoredFields('output_router_logits', 'router_jitter_noise')  # training only


def experts(name, default_count, default_top_k):
  """A mixture of gated layers; the field `name` is the number of experts."""
  yield ConfigConstant('model.feed_forward', 'mixture_of_experts')
  yield SpecArgument(name, 'model.feed_forward', 'experts', default=default_count, spec_default=8)
  yield SpecArgument(
    'num_experts_per_tok', 'model.feed_forward', 'top_k', default=default_top_k, spec_default=2
  )
  yield SpecArgument(
    'hidden_act', 'model.feed_forward', 'activation', GATED_ACTIVATIONS, default='silu', spec_default='swiglu'
  )


def weights(config):
  m = config.model
  yield from llama.ends(config)
  for i, block in enumerate(block_paths(config)):
    name = f'model.layers.{i}'
    yield from llama.attention(f'{name}.self_attn', f'{block}/mixer', m)
    yield from norm(f'{name}.input_layernorm', f'{block}/mixer_norm', bias=False)
    yield from norm(f'{name}.post_attention_layernorm', f'{block}/feed_forward_norm', bias=False)
    yield from mixture(
      f'{name}.block_sparse_moe', f'{block}/feed_forward', m.feed_forward, w1='up', w3='gate', w2='down'
    )


def mixture(name, path, spec, **projections):
  """The router and the stacked projections of the experts; `projections` maps published names to ours."""
  yield Weight(f'{name}.gate.weight', f'{path}/router/kernel', 'e d -> d e')
  count = parse(spec).kwargs.get('experts', 8)
  for hf_name, tfm_name in projections.items():
    tensors = tuple(f'{name}.experts.{i}.{hf_name}.weight' for i in range(count))
    yield Weight(tensors, f'{path}/{tfm_name}/kernel', 'e o i -> e i o')


FAMILIES = (
  Family(
    model_type='mixtral',
    architectures={'MixtralForCausalLM': 'vocabulary', 'MixtralModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
