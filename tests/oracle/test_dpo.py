"""Direct preference optimization: loss and gradient are those of `trl`, on the same weights and batch."""

import jax
import numpy as np
import pytest

import tfm
from tests.oracle import published
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.packing.preferences import preference_row
from tfm.objectives.protocol import Reference


pytestmark = pytest.mark.oracle
EOS, LENGTH = 60, 16
EXAMPLES = [([5, 7], [3, 9, 2], [4]), ([8], [1], [2, 6, 6, 9, 1]), ([3, 3, 3, 1], [7, 7], [9, 9])]


def make_batch():
  """The examples as rows of `preferences`."""
  rows = []
  for prompt, *continuations in EXAMPLES:
    row = preference_row(LENGTH)
    for prefix, continuation in zip(('', 'rejected_'), continuations):
      targets = [*prompt, *continuation, EOS]
      span = slice(len(targets))
      row[f'{prefix}targets'][span], row[f'{prefix}inputs'][span] = targets, [EOS, *targets[:-1]]
      row[f'{prefix}positions'][span], row[f'{prefix}segments'][span] = np.arange(len(targets)), 1
      row[f'{prefix}answers'][len(prompt) : len(targets)] = 1
    rows.append(row)
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize('beta', [0.1, 0.7])
def test_the_loss_and_its_gradient_are_those_of_trl(beta, tmp_path):
  torch, transformers, trl = map(pytest.importorskip, ('torch', 'transformers', 'trl'))
  datasets, tokenizers = pytest.importorskip('datasets'), pytest.importorskip('tokenizers')
  config = transformers.GPT2Config(
    vocab_size=61, n_positions=48, n_embd=32, n_layer=2, n_head=4, bos_token_id=EOS, eos_token_id=EOS
  )
  policy, reference = (
    published.build_hf_model(transformers.GPT2LMHeadModel, config, seed=seed) for seed in (0, 1)
  )
  for name, model in (('policy', policy), ('reference', reference)):
    model.save_pretrained(tmp_path / name)
  words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f'w{i}': i for i in range(61)}, unk_token='w0'))
  words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  trainer = trl.DPOTrainer(
    policy,
    reference,
    args=trl.DPOConfig(
      str(tmp_path / 'trl'), beta=beta, report_to='none', use_cpu=True, bf16=False, disable_dropout=True
    ),
    train_dataset=datasets.Dataset.from_list([dict(prompt='w1', chosen=' w2', rejected=' w3')]),
    processing_class=transformers.PreTrainedTokenizerFast(
      tokenizer_object=words, eos_token=f'w{EOS}', pad_token='w0'
    ),
  )
  collate = trl.trainer.dpo_trainer.DataCollatorForPreference(pad_token_id=0)
  inputs = collate(
    [
      dict(prompt_ids=[EOS, *prompt], chosen_ids=[*chosen, EOS], rejected_ids=[*rejected, EOS])
      for prompt, chosen, rejected in EXAMPLES
    ]
  )
  loss = trainer.compute_loss(policy, inputs)
  loss.backward()

  ours, theirs = (tfm.from_pretrained(str(tmp_path / name)) for name in ('policy', 'reference'))
  objective = Experiment(
    resolve_config(
      complete(
        dict(
          objective=f'dpo("reference", beta={beta})',
          data=dict(source='preferences("x.jsonl")', packing='preferences', length=LENGTH),
        )
      )
    )
  ).objective
  batch, frozen = make_batch(), Reference(theirs.model, theirs.params)

  def mean(params):
    total, sums = objective(ours.model, params, batch, None, reference=frozen)
    return total / sums['tokens']

  value, gradient = jax.jit(jax.value_and_grad(mean))(ours.params)
  np.testing.assert_allclose(value, loss.item(), rtol=1e-4)
  expected = policy.transformer.wte.weight.grad.numpy()
  actual = np.asarray(gradient['embedding']['table'])[: len(expected)]
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
