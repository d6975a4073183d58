"""Recurrent, convolutional or attention: the comparison table of every textbook, measured.

Question:  Which of transformer, LSTM with attention, gated convolution, mamba and linear attention has the
           lower loss at equal parameters, and which recalls what it read?
Source:    Vaswani et al. 2017, §4 and table 1; Bahdanau et al. 2015 (recurrent with attention); Dauphin et
           al. 2017 and van den Oord et al. 2016 (gated, dilated convolutions); Gu & Dao 2023 (mamba);
           Katharopoulos et al. 2020 (linear attention); Arora et al. 2023 (recall).
Command:   tfm ablate experiments/architecture.py --workdir=runs/architecture   (equal parameters)
           tfm ablate experiments/architecture.py:recall --workdir=runs/architecture-recall    (recall)
Cost:      1:09 h on 2 CPU cores (x86_64) with --jobs=2, beside other work; of recall, six of its eight arms
           took 2:20 h, and the two of the gated delta rule ran between other work.
Expected:  mamba, convolution and LSTM with attention are better than the transformer in loss by 0.079, 0.031
           and 0.029 nats, linear attention is worse by 0.462 (docs/results/studies/architecture.md). In
           recall all but two arms have 0.99 right in five of five seeds: the transformer after 480 steps,
           linear attention after 660, attention above an LSTM, the gated delta rule or a convolution after
           870, 960 and 1,380, the gated delta rule after 1,290; mamba 0.9 in three in 3,000; the convolution
           0.11.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


RATES = 4e-3, 8e-3, 16e-3
RECALL_RATES = 5e-4, 1.25e-3, 3e-3, 8e-3
ARMS = {
  'transformer': {},
  # The recurrent layer below provides the order.
  'lstm + attention': {'model.blocks.lower.mixer': 'recurrent', 'model.position': 'none'},
  'convolution': {
    'model.blocks.lower.mixer': 'convolution(taps=2, dilations=(1, 2))',
    'model.blocks.upper.mixer': 'convolution(taps=2, dilations=(4, 8))',
    'model.position': 'none',
  },
  'mamba': {'model.mixer': 'mamba', 'model.position': 'none'},
  'linear attention': {'model.mixer': 'linear'},
}
RECALL_ARMS = ARMS | {
  'convolution + attention': {
    'model.blocks.lower.mixer': ARMS['convolution']['model.blocks.lower.mixer'],
    'model.position': 'none',
  },
  'gated delta rule + attention': {'model.blocks.lower.mixer': 'gated_delta', 'model.position': 'none'},
  'gated delta rule': {'model.mixer': 'gated_delta', 'model.position': 'none'},
}


def get_study(arg: str = '') -> Study:
  require_argument(arg, ['recall'])
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(
    layers=2,
    width=64,
    heads=4,
    position='rope',
    initializer='lecun_normal',
    # Embeddings of about unit size: with smaller ones the tokens begin alike, those of attention most.
    scale_embeddings=True,
    embedding_initializer='normal(0.1)',
    pattern=('lower', 'upper'),
    blocks=dict(lower=dict(), upper=dict()),
  )
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=100)
  config.training = dict(steps=2000, batch_size=8, evaluate_every=250, evaluation_batches=48)
  if arg == 'recall':
    config.objective = 'answers'
    config.data = dict(
      source='mqar(length=48, pairs=16, vocabulary=34, joined=True)',
      tokenizer='words',
      length=50,
      packing='answered',
    )
    config.optimizer.warmup = 50
    config.training = dict(
      steps=3000, batch_size=32, evaluate_every=150, stop_when='at_least("accuracy", 0.99)'
    )
  question = (
    'Which architecture recalls what it read, and does one layer of attention suffice?'
    if arg == 'recall'
    else 'Transformer, LSTM with attention, gated convolution, mamba or linear attention: which has the '
    'lower loss, and what does each cost as texts grow?'
  )
  return Study(
    question=question,
    literature=(
      'Vaswani et al. 2017, table 1: a layer costs n² d of attention, n d² of recurrence, k n d² of '
      'convolution. Arora et al. 2023: convolutions and recurrences of a fixed state lag behind attention'
      ' in recall, and a hybrid with attention closes the gap; Yang et al. 2024: the gated delta rule, which '
      'overwrites what a key held, recalls more than linear attention; Gu & Dao 2023: mamba equals '
      'Transformers in perplexity.'
    ),
    config=config,
    base='transformer',
    arms=RECALL_ARMS if arg == 'recall' else ARMS,
    match='parameters',
    metric='accuracy' if arg == 'recall' else 'loss',
    higher_is_better=arg == 'recall',
    seeds=5,
    learning_rates=RECALL_RATES if arg == 'recall' else RATES,
    rates_beyond=1,
    solved_at=0.9 if arg == 'recall' else None,
    equal_within=None if arg == 'recall' else 0.02,
    measures=('initialization',)
    if arg == 'recall'
    else ('step((128, 512, 2048))', 'parts', 'loss_slices', 'initialization'),
  )
