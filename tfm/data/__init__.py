"""Data: source → corpus → tokenizer → tokens → rows → batches → devices; images need no tokenizer.

Everything is random access by index: row i of a stream is a pure function of (corpus, tokenizer, packing,
length, seed, i), so the whole state of an iterator is the index of its next batch, and one state restores on
any number of processes.

  from tfm import spec
  from tfm.data import cache, device_prefetch, packing, pipeline, tokenizers
  from tfm.data.packing.protocol import Packing
  from tfm.data.sources.protocol import build_source
  from tfm.data.tokenizers.protocol import Tokenizer, load

  source = build_source('stdlib')      # or text('*.txt'), tfds('ag_news'), labelled('*.tsv')
  untrained = spec.build("sentencepiece(8192, kind='bpe')", tokenizers, Tokenizer)  # or bytes, char
  pack = spec.build('concat', packing, Packing)        # or concat(shuffle=False), first_fit(bins=64)

  text = pipeline.open_text(source, untrained, cache.directory())
  text.corpus.hash, text.corpus.name, text.corpus.documents, text.corpus.bytes     # for the log
  text.tokenizer                     # trained: vocab_size, eos_id, encode, decode, token_bytes
  text.tokenizer.state()             # a JSON object for checkpoints; load(state) restores it
  tokens = text.tokens('train')      # or 'validation', 'test': Tokens, Pairs, LabelledTexts or AnsweredTexts

  rows = pack.rows(tokens, length=1024, seed=0)        # infinite; rows[i] is a dict of int32 [T]
  rows.tokens_per_epoch              # the number of targets in one epoch
  iterator = pipeline.train_iterator(rows, batch_size=32)        # all rows; see share, below
  next(iterator)                     # dict of int32 [B, T]; `buckets`: more, shorter rows
  iterator.get_state()               # {'next_index': 1}; iterator.set_state(state); close()

  for batch in device_prefetch.prefetch(iterator, sharding, batch_size=32):    # sharding of [B, T]
    batch.batch                      # dict of int32 jax.Array [B, T]
    batch.state                      # save it: a resume continues with the next batch
    batch.hash                       # of this process's rows (hexadecimal); computed on first access

  rows = pack.evaluation_rows(text.tokens('validation'), length=1024)     # one pass, in order
  for batch in pipeline.evaluation_batches(rows, batch_size=32): ...      # constant shapes

A batch has `inputs`, `targets`, `positions`, `segments`: int32 [B, T]. `segments` is 0 at padding and 1, 2, …
for the documents of a row; a target counts where `segments > 0`. For pairs of a source and a target, these
four are of the target, and `source`, `source_positions`, `source_segments` are of the source. In one
evaluation pass, every token of the split (including each document's end) is predicted exactly once; so it is
in one epoch of training, where the row between two epochs belongs to both. Bits per byte: the sum of the loss
over an evaluation pass / ln 2 / tokens.bytes.

With `each`, which packs labelled documents, a batch has `classes` (int32 [B], or [B, T] for words; -1: none)
instead of targets, and for images `image`, float32 [B, H, W, C] between -1 and 1, instead of inputs.
`pipeline.open_data` opens texts and images.

Each part of a mixture (`sources.mix`) has its own rows, and `interleaving` orders them by the weights; row i
of the stream is still a function of i. `preparation` writes tokens once into a folder or a bucket, in one
process or, with `beam_engine`, in many, and `sources.prepared` reads them.

Batch k has rows k B … k B + B - 1 of the stream, for any number of processes, and of several processes each
reads the rows that its devices hold: `train_iterator(rows, batch_size, share)` with the share of
`row_share.process_share(sharding, batch_size)`. `pipeline.add_hashes(hashes)` returns the hash of a global
batch from the hashes of the processes.
"""
