"""Tells what a config is: parameters, FLOPs, memory, mask; nothing is trained.

Prints the resolved config, the parameter table (path, shape, dtype, logical axes, partition spec,
initializer, count), parameters and FLOPs per token by kind, and the bytes of one device by kind; and
draws the masks. Nothing is allocated or compiled, so any model on any mesh fits a laptop.
"""

import argparse
import functools
import math

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, AxisType
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from tfm import build, check
from tfm import config as configs
from tfm.data import pipeline
from tfm.data.packing.protocol import Row
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.evaluation import mask_picture
from tfm.masks.protocol import Mask
from tfm.models import flops, memory, table
from tfm.models.trunk import Trunk
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--config', required=True, metavar='FILE[:args]', help='the Python file of the config')
  parser.add_argument('--devices', type=int, metavar='N',
                      help='lay the mesh over so many devices; default: as many as it names, or as are here')
  parser.add_argument('--picture', default='mask.png', metavar='FILE',
                      help="where the masks are drawn; '' for nowhere")


def main(args: argparse.Namespace) -> None:
  config = args.config
  mesh = abstract_mesh(config, args.devices)
  check.run(config, mesh.size)
  rules = sharding.parse_rules(config.rules)
  vocab, source_vocab = vocabularies(config)
  model = build.model(config, vocab, source_vocab=source_vocab)
  boxed = abstract_state(config, model)
  sharding.check_divisible(boxed.params, mesh, rules)
  rows = table.rows(boxed.params, rules)

  console = wide_console()
  console.print(config_text(config), end='', markup=False, highlight=False, soft_wrap=True)
  console.print(parameter_table(rows))
  console.print(cost_table(rows, flops.per_token(model, config.data.length), vocab, config.data.length))
  console.print(memory_table(config, vocab, source_vocab, boxed, mesh, rules))
  if args.picture:
    if drawn := masks(config, model):
      mask_picture.draw(drawn, config.data.length, args.picture)
      console.print(f'masks: {args.picture}', highlight=False)
    else:
      console.print('masks: no mixer here has one', highlight=False)


def wide_console() -> Console:
  """Stdout, without an end of the line where it is no terminal: nothing is cut short in a pipe."""
  console = Console()
  return console if console.is_terminal else Console(width=10_000)


def abstract_mesh(config: ConfigDict, devices: int | None) -> AbstractMesh:
  """The mesh of a config, over devices that need not be here."""
  named = config.mesh.to_dict()
  if devices is None:
    fixed = math.prod(size for size in named.values() if size != -1)
    here = jax.device_count()
    devices = here if -1 in named.values() and here % fixed == 0 else fixed
  sizes = meshes.resolve(named, devices)
  return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def vocabularies(config: ConfigDict) -> tuple[int, int]:
  """Tokens there are, and those of the source where they are others (0: they are not); the text is read only
  where nothing else tells.
  """
  tokenizer, source_tokenizer = build.tokenizer(config), build.source_tokenizer(config)
  vocab = known_vocabulary(tokenizer), known_vocabulary(source_tokenizer)
  if None not in vocab:
    return vocab
  text = pipeline.open_text(build.source(config), tokenizer, source_tokenizer=source_tokenizer)
  return text.tokenizer.vocab_size, text.source_tokenizer.vocab_size if source_tokenizer else 0


def known_vocabulary(tokenizer: Tokenizer | None) -> int | None:
  """Tokens there are, where the tokenizer's spec tells; 0 without one."""
  if tokenizer is None:
    return 0
  return tokenizer.vocab_size if tokenizer.trained else getattr(tokenizer, 'size', None)


def abstract_state(config: ConfigDict, model: Trunk) -> states.State:
  """Shapes and boxes of everything that training carries."""
  optimizer, _ = build.optimizer(config)
  return states.abstract(states.init(
    model, optimizer, config.training.batch_size, config.data.length, config.model.dtype == 'float16'))


def masks(config: ConfigDict, model: Trunk) -> dict[str, Mask]:
  """Title → mask of every kind of block whose mixer has one, and of cross-attention."""
  made = {}

  def add(title, mixer, text):
    if hasattr(mixer, 'mask'):
      made[f'{title}: {text}' if title else text] = mixer.mask
  for where, part in configs.parts(config).items():
    title = where.removeprefix('model').removeprefix('.')
    if where == 'model.cross':
      add(title, model.stack().pattern[0]().cross(), part.mask)
    elif 'pattern' in part:
      stack = (model if where == 'model' else model.encoder()).stack()
      for name, block in zip(part.pattern or (title,), stack.pattern):
        add(name, block().mixer(), config.model.blocks[name].mask if part.pattern else part.mask)
  return made


def config_text(config: ConfigDict) -> str:
  """One line for every field."""
  return ''.join(f'{path} = {value!r}\n' for path, value in configs.leaves(config))


def parameter_table(rows: list[table.Row]) -> Table:
  """One row for each parameter."""
  made = titled('parameters',
                'path', 'shape', 'dtype', 'logical axes', 'partition spec', 'initializer', '>count')
  for row in rows:
    made.add_row('/'.join(row.path), ' × '.join(map(str, row.shape)), row.dtype, ' '.join(row.axes),
                 ' '.join(row.spec), row.initializer, f'{row.count:,}')
  return made


def cost_table(rows: list[table.Row], cost: flops.Flops, vocab: int, length: int) -> Table:
  """Parameters and FLOPs per token, by kind."""
  made = titled((f'vocabulary {vocab:,}, ' if vocab else '') + f'rows of {length:,} tokens',
                'kind', '>parameters', '>share', '>forward FLOPs per token', '>share')
  counts = {}
  for row in rows:
    counts[row.kind] = counts.get(row.kind, 0) + row.count
  total = sum(counts.values())

  def line(name, count, spent):
    made.add_row(name, f'{count:,}' if count else '', f'{count / total:.1%}' if count else '',
                 f'{spent:,.0f}' if spent else '', f'{spent / cost.forward:.1%}' if spent else '')
  for name in dict.fromkeys((*counts, *cost.kinds)):
    line(name, counts.get(name, 0), cost.kinds.get(name, 0))
  made.add_section()
  line('all', total, cost.forward)
  made.add_row('without the mask', '', '', f'{cost.unmasked:,.0f}', '')
  made.add_row('training (3 × forward)', '', '', f'{cost.training:,.0f}', '')
  return made


def memory_table(
    config: ConfigDict, vocab: int, source_vocab: int, boxed: states.State, mesh: AbstractMesh, rules: sharding.Rules,
) -> Table:
  """Bytes of one device, by kind."""
  params = memory.on_device(boxed.params, mesh, rules)
  optimizer = memory.on_device(boxed.opt_state, mesh, rules)
  rows = config.training.batch_size // config.training.accumulation // ways(mesh, rules, 'batch')
  alive = activations(config, vocab, source_vocab, mesh, rules, rows, params)
  sizes = ' × '.join(f'{axis} {size}' for axis, size in mesh.shape.items())
  made = titled(f'one device of {mesh.size} ({sizes}), {rows} rows at once', 'kind', '>bytes', '>', 'how')
  estimate = f'estimate: the most that is alive at once in the gradient, remat {config.model.remat}'
  kinds = [
    ('parameters', params, 'float32'),
    ('gradients', params, 'float32'),
    ('optimizer', optimizer, config.optimizer.name),
    ('activations', alive, estimate)]
  if config.training.accumulation > 1:
    kinds[1] = 'gradients', 2 * params, "float32: a microbatch's and their sum"
  for name, count, how in kinds:
    made.add_row(name, f'{count:,}', readable(count), how)
  made.add_section()
  total = sum(count for _, count, _ in kinds)
  made.add_row('all', f'{total:,}', readable(total), '')
  return made


def activations(
    config: ConfigDict, vocab: int, source_vocab: int, mesh: AbstractMesh, rules: sharding.Rules, rows: int, held: int,
) -> int:
  """`memory.activations` of what one device computes: its rows, heads, feed-forward and vocabulary.

  What a mixer sizes by itself is taken whole. `held` is the bytes of the parameters on one device.
  """
  part = config.copy_and_resolve_references()
  for b in configs.parts(part).values():
    b.heads = max(1, b.heads // ways(mesh, rules, 'heads'))
    b.kv_heads = math.gcd(b.heads, max(1, b.kv_heads // ways(mesh, rules, 'kv_heads')))
    if 'feed_forward_width' in b:
      b.feed_forward_width //= ways(mesh, rules, 'mlp')
  vocab, source_vocab = (-(-v // ways(mesh, rules, 'vocab')) for v in (vocab, source_vocab))
  model = build.model(part, vocab, source_vocab=source_vocab)
  params = nn.unbox(abstract_state(part, model).params)
  objective = build.objective(part)
  return memory.activations(
    functools.partial(loss, objective, model), params, functools.partial(batch, objective.padding(part.data.length)), rows,
    held / memory.whole(params))


def ways(mesh: AbstractMesh, rules: sharding.Rules, axis: str) -> int:
  """How many parts a logical axis is cut into."""
  return math.prod(mesh.shape[name] for name in dict(rules).get(axis, ()))


def loss(objective, model: Trunk, params, rows):
  """What training differentiates, dropout on."""
  return objective(model, params, rows, jax.random.key(0))[0]


def batch(row: Row, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """The shapes of a batch of rows like one."""
  return {field: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for field, x in row.items()}


def titled(title: str, *columns: str) -> Table:
  """An empty table; '>' before a column's name sets it to the right."""
  made = Table(title=title, title_justify='left', box=box.SIMPLE)
  for name in columns:
    # A path is for copying: in a narrow terminal the other columns give way to it.
    made.add_column(name.removeprefix('>'), justify='right' if name.startswith('>') else 'left',
                    overflow='fold', no_wrap=name in ('path', '>count'))
  return made


def readable(count: int) -> str:
  """`1.5 GiB`."""
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if count < 1024:
      return f'{count:.4g} {unit}'
    count /= 1024
  return f'{count:.4g} TiB'
