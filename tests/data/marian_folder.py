"""The files of a Marian tokenizer, trained on a few sentences."""

import io
import json

import numpy as np
import sentencepiece


SOURCE = [
  'Now is better than never.',
  'Although never is often better than right now.',
  'Sparse is better than dense.',
]
TARGET = [
  'Jetzt ist besser als nie.',
  'Obwohl nie oft besser ist als gerade jetzt.',
  'Karg ist besser als dicht.',
]


def write(folder, separate=False):
  """source.spm, target.spm, vocab.json and, with separate vocabularies, target_vocab.json; returns how many
  tokens each table has. Numbers are in no order.
  """
  pieces = []
  for name, texts in (('source', SOURCE), ('target', TARGET)):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts * 20),
      model_writer=model,
      vocab_size=44,
      hard_vocab_limit=False,
      minloglevel=2,
    )
    (folder / f'{name}.spm').write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces.append([processor.id_to_piece(i) for i in range(3, len(processor))])
  if separate:
    return [
      table(folder / file, own, seed)
      for seed, (file, own) in enumerate(zip(('vocab.json', 'target_vocab.json'), pieces))
    ]
  return [table(folder / 'vocab.json', pieces[0] + pieces[1], 2)]


def table(path, pieces, seed):
  shuffled = np.random.default_rng(seed).permutation(sorted(set(pieces))).tolist()
  shuffled = shuffled[:-2]  # which SentencePiece has and the table has not
  numbers = {piece: number for number, piece in enumerate(['</s>', '<unk>', '>>de<<', *shuffled, '<pad>'])}
  path.write_text(json.dumps(numbers))
  return len(numbers)
