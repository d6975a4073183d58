"""Data: source -> corpus -> tokenizer -> tokens -> rows -> batches -> devices; of images, without the
tokenizer.

Everything is random access by index: row i of a stream is a pure function of (corpus, tokenizer,
packing, length, seed, i), so an iterator's whole state is the index of its next batch, and one
state restores on any number of processes.

  from tfm import spec
  from tfm.data import cache, device, packing, pipeline, sources, tokenizers
  from tfm.data.packing.protocol import Packing
  from tfm.data.sources.protocol import Source
  from tfm.data.tokenizers.protocol import Tokenizer, load

  source = spec.build('stdlib', sources, Source)       # stdlib | text('*.txt') | tfds('ag_news') | labelled('*.tsv')
  untrained = spec.build("sentencepiece(8192, kind='bpe')", tokenizers, Tokenizer)  # bytes | char
  pack = spec.build('concat', packing, Packing)        # concat(shuffle=True) | first_fit(bins=64)

  text = pipeline.open_text(source, untrained, cache.directory())
  text.corpus.hash, text.corpus.name, text.corpus.documents, text.corpus.bytes     # for the log
  text.tokenizer                     # trained: vocab_size, eos_id, encode, decode, token_bytes
  text.tokenizer.state()             # JSON-able, into the checkpoint; load(state) gives it back
  tokens = text.tokens('train')      # 'train' | 'validation' | 'test': Tokens, memory mapped, or Pairs of them, or LabelledTexts

  rows = pack.rows(tokens, length=1024, seed=0)        # endless; rows[i] -> dict of int32 [T]
  rows.tokens_per_epoch              # targets in one epoch
  iterator = pipeline.train_iterator(rows, batch_size=32, process_index=0, process_count=1)
  next(iterator)                     # dict of int32 [B / process_count, T]; of `buckets`, of k times as many rows of T / k
  iterator.get_state()               # {'next_index': 1}; iterator.set_state(state); close()

  for fetched in device.prefetch(iterator, sharding, batch_size=32):  # sharding of [B, T]
    fetched.batch                    # dict of int32 jax.Array [B, T]
    fetched.state                    # save this: a resume continues with the next batch
    fetched.hash                     # of this process's rows (hex); computed only when read

  rows = pack.evaluation_rows(text.tokens('validation'), length=1024)     # one pass, in order
  for batch in pipeline.evaluation_batches(rows, batch_size=32): ...      # constant shapes

A batch holds `inputs`, `targets`, `positions`, `segments`: int32 [B, T]. `segments` is 0 at padding and 1, 2,
… for the documents of a row; a target counts where `segments > 0`. Where documents are pairs of a source and
a target, these four are the target, and `source`, `source_positions`, `source_segments` stand beside them.
Over one evaluation pass, every token of the split (each document's end included) is predicted exactly once;
so it is over one epoch of training, where the row in which two epochs meet belongs to both.
Bits per byte: sum of the loss over an evaluation pass / ln 2 / tokens.bytes.

Of `each`, which packs documents with a label, a batch holds `classes` (int32 [B], or [B, T] of words; -1:
none) in place of targets, and of images `image`, float32 [B, H, W, C] between -1 and 1, in place of inputs:
`pipeline.open_data` opens either.

Process p of n holds rows [p B / n, (p + 1) B / n) of every global batch, and batch k holds rows
k B … k B + B - 1 of the stream, whatever n is. `device.process_rows(sharding, batch_size)` gives
(process_index, process_count) when several processes share rows (tensor parallelism over hosts).
`pipeline.add_hashes(hashes)` makes a global batch's hash of the processes' hashes.
"""
