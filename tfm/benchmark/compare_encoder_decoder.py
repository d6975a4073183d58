"""Training speed of encoder-decoders beside PyTorch's Marian, BART and T5, in one run.

Models of 3 + 3 layers, width 256, 4 heads, feed-forward width 1024 and a vocabulary of 8192, in float32 and
without dropout, train with AdamW on 32 pairs of 64 source and 64 target tokens. Both sides build them from
the same config.json. tfm and the classes of `transformers` alternate; ratios are ratios of medians.
"""

from tfm.benchmark.beside_torch import compare, rounds_argument


MEASUREMENTS = {'Marian': ('marian',), 'BART': ('bart',), 'T5': ('t5',)}


arguments = rounds_argument


def main(args):
  compare(MEASUREMENTS, 'tfm.benchmark.encoder_decoder', 'tfm.benchmark.encoder_decoder_torch', args.rounds)
