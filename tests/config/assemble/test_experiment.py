"""Building an experiment: every combination that is not supported is rejected before compiling."""

import pytest

from tests.config.configs import assert_rejected, complete, resolved
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config
from tfm.config.validate import validate_run
from tfm.conformance.tiny import boxed, decoder
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


SHARED = dict(pattern=('a', 'b'), blocks=dict(a={}, b=dict(own_keys=False)))


class TestValidation:
  """Error messages name field, value and remedy; nothing is compiled."""

  @pytest.mark.parametrize(
    'model, parts',
    [
      (
        dict(width=48, heads=5),
        ['config.model.heads=5', 'config.model.width=48', 'use a divisor, or set config.model.head_width'],
      ),
      (dict(heads=0), ['config.model.heads=0 must be at least 1']),
      (dict(blocks=dict(a=dict(heads=5)), pattern=('a',)), ['config.model.blocks.a.heads=5', 'head_width']),
      (dict(heads=6, kv_heads=4), ['config.model.kv_heads=4 must divide config.model.heads=6']),
      (dict(heads=6, kv_heads=0), ['config.model.kv_heads=0']),
      (dict(heads=2, kv_heads=4), ['config.model.kv_heads=4 must divide config.model.heads=2']),
      (
        dict(blocks=dict(a=dict(heads=6, kv_heads=4)), pattern=('a',)),
        ['config.model.blocks.a.kv_heads=4 must divide'],
      ),
      (dict(head_width=0), ['config.model.head_width=0 must be at least 1']),
      (dict(feed_forward_width=-1), ['config.model.feed_forward_width=-1 must be at least 0']),
      (dict(width=6, heads=2), ["config.model.position='rope'", 'head width is 3', 'choose an even one']),
      (
        dict(position='learned(rows=100)'),
        ["config.model.position='learned(rows=100)'", 'data.length=256', 'at least 256 rows'],
      ),
      (
        dict(mask='window(2)'),
        ["config.model.mask='window(2)' lets a token attend to later ones", "use 'causal & (window(2))'"],
      ),
      (dict(mask='~causal'), ["config.model.mask='~causal'"]),
      (dict(mask='causal | ~window(200)'), ['lets a token attend to later ones']),
      (
        dict(blocks=dict(a=dict(mask='window(2)')), pattern=('a',)),
        ["config.model.blocks.a.mask='window(2)'"],
      ),
      (dict(mixer='sofmax'), ["config.model.mixer='sofmax'", "did you mean 'softmax'?"]),
      (
        dict(mixer='softmax(query_init_scale=0.0)'),
        ["config.model.mixer='softmax", 'query_init_scale=0.0 must be above 0'],
      ),
      (
        dict(mixer='softmax(biases="qx")'),
        ["config.model.mixer='softmax", "biases='qx' must be letters of 'qkvo'"],
      ),
      (dict(mixer='softmax(biases="qq")'), ["biases='qq' must be letters of 'qkvo', each at most once"]),
      (dict(position='rop'), ["config.model.position='rop'", "did you mean 'rope'?"]),
      (dict(mask='causl'), ["config.model.mask='causl'", "did you mean 'causal'?"]),
      (dict(score='dott'), ["config.model.score='dott'", "did you mean 'dot'?"]),
      (dict(kernel='dens'), ["config.model.kernel='dens'", "did you mean 'dense'?"]),
      (dict(norm='layernrom'), ["config.model.norm='layernrom'", "did you mean 'layernorm'?"]),
      (
        dict(norm='rmsnorm(bias=True)'),
        ["config.model.norm='rmsnorm(bias=True)' passes 'bias'; rmsnorm takes (epsilon=1e-06 [≥ 0, ≤ 1])"],
      ),
      (
        dict(norm='layernorm(axis="kv")'),
        ["passes 'axis'; layernorm takes (epsilon=1e-05 [≥ 0, ≤ 1], bias=True, scale=True)"],
      ),
      (dict(norm='layernorm(bias=1)'), ['bias=1 must be of type bool']),
      (dict(feed_forward='swigelu'), ["config.model.feed_forward='swigelu'", "did you mean 'swiglu'?"]),
      (
        dict(feed_forward='none', feed_forward_width=64),
        ["config.model.feed_forward_width=64 has no effect with feed_forward='none'"],
      ),
      (
        dict(feed_forward='gelu', feed_forward_width=0),
        ['config.model.feed_forward_width=0 must be at least 1'],
      ),
      (
        dict(feed_forward='none', residual='parallel'),
        [
          "config.model.residual='parallel' adds a mixer and a feed-forward layer at once",
          "use 'sequential'",
        ],
      ),
      (
        dict(feed_forward='none', residual='parallel_one_norm'),
        ["config.model.residual='parallel_one_norm' adds"],
      ),
      (
        dict(norm_placement='prenorm'),
        ["config.model.norm_placement='prenorm'", 'known: pre, post, sandwich'],
      ),
      (dict(residual='paralel'), ["config.model.residual='paralel'", "did you mean 'parallel'?"]),
      (
        dict(residual='parallel', norm_placement='post'),
        ["config.model.residual='parallel'", "norm_placement='pre'"],
      ),
      (
        dict(residual='parallel_one_norm', norm_placement='sandwich'),
        ["config.model.residual='parallel_one_norm' is defined for norm_placement='pre', not 'sandwich'"],
      ),
      (dict(canon='AE'), ["config.model.canon='AE' must be letters of 'ABCD'"]),
      (dict(canon='AA'), ["config.model.canon='AA' must be letters of 'ABCD', each at most once"]),
      (
        dict(canon='AB', mixer='mamba', position='none'),
        ["config.model.canon='AB' has no place 'B' in a block of mixer='mamba'"],
      ),
      (
        dict(value_residual='gated', mixer='mamba', position='none'),
        ["config.model.value_residual='gated' mixes values, which config.model.mixer='mamba' does not have"],
      ),
      (dict(value_residual='gatd'), ["config.model.value_residual='gatd'", "did you mean 'gated'?"]),
      (
        dict(value_residual='gated', pattern=('a', 'b'), blocks=dict(a={}, b=dict(kv_heads=1))),
        ['config.model.blocks.b.mixer has (1, 64) heads and channels of values'],
      ),
      (dict(own_keys=False), ['config.model.own_keys=False needs an earlier block with keys']),
      (
        dict(SHARED, mixer='forgetting', position='none'),
        ["config.model.blocks.a.mixer='forgetting' cannot share keys and values with other blocks"],
      ),
      (
        dict(SHARED, blocks=dict(a={}, b=dict(own_keys=False, position='none'))),
        ['config.model.blocks.b.position has none as position, and config.model.blocks.a.position has rope'],
      ),
      (
        dict(SHARED, blocks=dict(a={}, b=dict(own_keys=False, kv_heads=1))),
        ['config.model.blocks.b.mixer has', 'as heads, channels and type of keys and values'],
      ),
      (dict(canon='C', feed_forward='none'), ["config.model.canon='C' has no place 'C'"]),
      (dict(initializer='norml'), ["config.model.initializer='norml'", "did you mean 'normal'?"]),
      (dict(embedding_initializer='norml'), ["config.model.embedding_initializer='norml'"]),
      (dict(dtype='bf16'), ["config.model.dtype='bf16'", 'known: float32, bfloat16, float16']),
      (dict(remat='some'), ["config.model.remat='some'", 'known: none, everything, full']),
      (dict(blocks=dict(a=dict(position='rop')), pattern=('a',)), ["config.model.blocks.a.position='rop'"]),
      (
        dict(pattern=('lcoal',), blocks=dict(local={})),
        ["config.model.pattern names 'lcoal'", "did you mean 'local'?"],
      ),
      (
        dict(pattern=('local',), blocks=dict(local={}, far={})),
        ['config.model.blocks.far', "config.model.pattern=('local',)", 'delete it'],
      ),
      (dict(blocks=dict(far={})), ['config.model.blocks.far is not in config.model.pattern=()']),
      (
        dict(layers=1, pattern=('a', 'b'), blocks=dict(a={}, b={})),
        ['config.model.pattern has 2 blocks', 'config.model.layers=1'],
      ),
      (dict(layers=0), ['config.model.layers=0 must be at least 1']),
      (dict(width=0), ['config.model.width=0']),
      (dict(vocab_multiple=0), ['config.model.vocab_multiple=0']),
      (dict(embedding_width=0), ['config.model.embedding_width=0 must be at least 1']),
      (dict(output_soft_cap=-1.0), ['config.model.output_soft_cap=-1.0 must be at least 0']),
      (dict(dropout=dict(attention=1.0)), ['config.model.dropout.attention=1.0 must be at least 0 and']),
      (dict(dropout=dict(embedding=-0.1)), ['config.model.dropout.embedding=-0.1']),
    ],
  )
  def test_invalid_models_are_rejected(self, model, parts):
    assert_rejected(lambda: Experiment(resolved(**model)).build_model(100), *parts)

  def test_a_mask_with_far_future_tokens_is_rejected(self):
    config = complete(data=dict(length=2048), model=dict(mask='causal | ~window(1000)'))
    assert_rejected(
      lambda: Experiment(resolve_config(config)).build_model(100), 'lets a token attend to later ones'
    )

  @pytest.mark.parametrize(
    'sections, parts',
    [
      (
        dict(training=dict(batch_size=12)),
        ['config.training.batch_size=12', '8 devices', 'use a multiple of 8'],
      ),
      (
        dict(training=dict(batch_size=16, gradient_accumulation=4)),
        ['config.training.batch_size=16 in 4 microbatches', 'use a multiple of 32'],
      ),
      (
        dict(training=dict(batch_size=32, gradient_accumulation=3)),
        ['config.training.gradient_accumulation=3', 'config.training.batch_size=32'],
      ),
      (
        dict(mesh=dict(data=3)),
        ['config.mesh: data=3 needs 3 devices', 'there are 8', 'set config.mesh.data=-1'],
      ),
      (dict(mesh=dict(tensor=3)), ['needs a multiple of 3 devices', 'there are 8']),
      (dict(mesh=dict(data=2, fsdp=2, tensor=4)), ['needs 16 devices']),
      (dict(mesh=dict(data=-1, fsdp=-1)), ['config.mesh.data and config.mesh.fsdp are both -1']),
      (dict(mesh=dict(data=0)), ['config.mesh.data=0 must be at least 1']),
      (dict(rules=dict(embed='fdsp')), ["config.rules.embed='fdsp'", "did you mean 'fsdp'?"]),
      (dict(training=dict(steps=0)), ['config.training.steps=0 must be at least 1']),
      (dict(optimizer=dict(no_decay='(')), ["config.optimizer.no_decay='('", 'regular expression']),
      (dict(data=dict(length=0)), ['config.data.length=0']),
    ],
  )
  def test_invalid_runs_are_rejected(self, sections, parts):
    assert_rejected(lambda: validate_run(Experiment(resolve_config(complete(**sections))), 8), *parts)

  def test_a_divisible_batch_is_accepted(self):
    for mesh in (dict(), dict(fsdp=4), dict(tensor=8), dict(data=2, fsdp=2, tensor=2)):
      validate_run(
        Experiment(
          resolve_config(complete(training=dict(batch_size=32, gradient_accumulation=4), mesh=mesh))
        ),
        8,
      )
    # Four of eight devices divide the batch; the other mesh axis is `tensor`.
    validate_run(Experiment(resolve_config(complete(training=dict(batch_size=4), mesh=dict(tensor=2)))), 8)

  def test_a_mesh_that_does_not_divide_the_model_is_rejected(self):
    def check(**model):
      mesh = meshes.make(dict(tensor=4, data=-1))
      sharding.validate_divisibility(
        boxed(decoder(bias=False, **model)), mesh, sharding.parse_rules(default_config().rules)
      )

    check(kv_heads=4)
    assert_rejected(
      lambda: check(kv_heads=2),
      "'kv_heads' of the parameter stack/layers/block_0/mixer/k/kernel into 4 shards",
      'do not divide its size 2',
      'rules.kv_heads',
    )


@pytest.mark.parametrize(
  'mixer', ['reformer(buckets=2, chunk=4)', 'softmax', 'latent(rank=8, rope_width=4)', 'mamba']
)
def test_a_decoder_is_built_with_every_causal_mixer(mixer):
  """The check for future tokens accepts these mixers."""
  position = 'none' if mixer.startswith(('mamba', 'reformer')) else 'rope'
  assert Experiment(resolved(mixer=mixer, position=position)).build_model(100).vocab == 100
