"""Every file of a slot can be tried, and what cannot be combined is refused, not ignored."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tfm import spec
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import LENGTH, VOCAB, Tiny, boxed, config, decoder
from tfm.masks.protocol import Mask, is_causal
from tfm.mixers.protocol import Context, Mixer


FILES = [(slot, name) for slot in collect.SLOTS for name in collect.variants(slot)]


@pytest.mark.parametrize('slot, name', FILES)
def test_every_variant_has_an_example_of_itself(slot, name):
  package, base = collect.ALL_SLOTS[slot]
  needs = collect.required(spec.find_variant(name, package, base), base)
  texts = collect.examples(slot, name)
  assert texts, (
    f'{package.__name__}.{name} requires the arguments {needs} and says no examples: give its class '
    f"examples = ('{name}(…)',), the specs that the conformance suite is to try"
  )
  assert all(spec.parse(text).name == name for text in texts), f'examples of {name!r} must name it: {texts}'


@pytest.mark.parametrize(
  'slot, text', [(slot, text) for slot in collect.SLOTS for text in collect.specs(slot)]
)
def test_every_example_makes_a_model(slot, text):
  # A variant may refuse the default surroundings, but then some mixer must take it in its own.
  mixers = [text] if slot == 'mixer' else collect.specs('mixer')
  refusals = []
  for mixer in mixers:
    try:
      decoder(causal=False, **collect.surroundings(mixer) | {slot: text})
      return
    except ValueError as refusal:
      refusals.append(str(refusal))
  pytest.fail(f'nothing accepts {slot}={text!r}: {refusals}')


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
  'slot, text', [(slot, text) for slot in collect.SLOTS for text in collect.first(slot) if slot != 'kernel']
)
def test_the_model_of_an_example_gives_logits(slot, text):
  fields = collect.surroundings(text) if slot == 'mixer' else {slot: text}
  model, tokens = decoder(causal=False, **fields), jax.ShapeDtypeStruct((2, LENGTH), jnp.int32)

  def run(params, tokens):
    return model.apply({'params': params}, tokens, Context.contiguous(tokens))[0]

  logits = jax.eval_shape(run, boxed(model), tokens)
  assert logits.shape[:2] == (2, LENGTH), f'{text}: logits of {tokens.shape} tokens have shape {logits.shape}'


@pytest.mark.sampled(67)
@pytest.mark.parametrize('position', collect.specs('position'))
@pytest.mark.parametrize('text', collect.masks(collect.specs('mask'), LENGTH))
def test_softmax_over_the_dense_kernel_takes_everything(position, text):
  decoder(mixer='softmax', position=position, mask=text, kernel='dense')


@pytest.mark.parametrize(
  'text', [text for text in collect.specs('mask') if not is_causal(collect.mask(text), LENGTH)]
)
def test_a_decoder_refuses_a_mask_that_looks_ahead(text):
  with pytest.raises(
    ValueError, match=r'config\.model\.mask=.* lets a token attend to later ones.*causal & '
  ):
    decoder(mask=text)


@pytest.mark.parametrize('position', collect.specs('position'))
def test_a_position_reaches_as_far_as_it_is_trained(position):
  result = assemble.build_position(
    Experiment(config(position=position)), 'model', config(position=position).model
  )()
  assert result.max_positions is None or result.max_positions >= LENGTH


@pytest.mark.parametrize('mixer, position, mask', collect.refusals(LENGTH))
def test_what_does_not_go_together_is_refused(mixer, position, mask):
  with pytest.raises(ValueError, match=r'config\.model\.mixer=.*does not support .*; use '):
    decoder(mixer=mixer, position=position, mask=mask, causal=False)


@pytest.mark.parametrize(
  'mixer', [text for text in collect.specs('mixer') if not collect.variant('mixer', text).supports_packing]
)
def test_packed_rows_are_refused_by_a_mixer_that_cannot_tell_documents_apart(mixer):
  packed = config(**collect.surroundings(mixer))
  packed.data.packing = 'first_fit'
  with pytest.raises(
    ValueError, match=r"config\.data\.packing='first_fit' puts several into a row; use 'concat'"
  ):
    Experiment(packed).build_model(vocab=VOCAB, causal=False)


@pytest.mark.parametrize('slot, text', [('score', 'cosine'), ('kernel', 'chunked')])
def test_a_slot_that_a_mixer_has_not_is_not_to_be_filled(slot, text):
  with pytest.raises(
    ValueError, match=f"mixer='recurrent' has no {slot}, so {slot}='{text}' would be ignored"
  ):
    decoder(mixer='recurrent', position='none', **{slot: text})


def test_required_arguments_want_examples():
  @dataclasses.dataclass(frozen=True)
  class Needy(Mask):
    blocks: int
    size: int = 2
    __call__ = None

  class Telling(Needy):
    examples = ('telling(3)',)

  class NeedyMixer(Mixer):
    features: int
    position: object

  assert collect.required(Needy, Mask) == ['blocks'] and collect.tried(Needy, Mask, 'needy') == ()
  assert collect.tried(Telling, Mask, 'telling') == ('telling(3)',)
  # What the model hands to every mixer is no argument of its spec.
  assert collect.required(NeedyMixer, Mixer) == ['features']
  # Linen must not take the examples for a field.
  assert 'examples' not in {f.name for f in dataclasses.fields(NeedyMixer)}


def test_a_refused_combination_is_no_model():
  with pytest.raises(ValueError, match='config.model.mixer'):
    Tiny(mixer='sofmax')
