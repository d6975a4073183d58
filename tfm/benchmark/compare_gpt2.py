"""Training and decoding speed beside PyTorch's GPT-2, in one run.

A GPT-2-shaped model (6 layers, width 384, 6 heads, context 256, vocabulary 8192, float32, no dropout)
trains with AdamW on batches of 12 and 16 rows, and decodes 128 tokens after prompts of 32 with its key/value
cache: greedily, by samples from all tokens, and by beam search. tfm and PyTorch alternate; ratios are ratios
of medians. Peak memory is the largest resident size of the process, imports included.
"""

from tfm.benchmark.beside_torch import compare, rounds_argument


MEASUREMENTS = {
  'training, 12 rows': ('training', '12'),
  'training, 16 rows': ('training', '16'),
  'decoding 1 row': ('decoding', '1', '1'),
  'decoding 8 rows': ('decoding', '8', '1'),
  'sampling 8 rows': ('decoding', '8', '1', '1'),
  'four beams, 1 row': ('decoding', '1', '4'),
  'four beams, 8 rows': ('decoding', '8', '4'),
}


arguments = rounds_argument


def main(args):
  compare(MEASUREMENTS, 'tfm.benchmark.gpt2', 'tfm.benchmark.gpt2_torch', args.rounds)
