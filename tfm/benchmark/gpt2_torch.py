"""The measurements of `gpt2`, with `transformers`' GPT-2 in PyTorch: same shape, same optimizer, float32.

python -m tfm.benchmark.gpt2_torch training 16     → {"tokens_per_second": …, "peak_memory_mib": …}
"""

from tfm.benchmark.gpt2 import DECODING, SHAPE, TRAINING_SECONDS, decoding_rate, print_measurement
from tfm.benchmark.timing import seconds_per_call


def make_gpt2():
  """The model, without dropout."""
  import torch
  from transformers import GPT2Config, GPT2LMHeadModel

  torch.manual_seed(0)
  return GPT2LMHeadModel(
    GPT2Config(
      vocab_size=SHAPE['vocab'],
      n_positions=SHAPE['length'],
      n_embd=SHAPE['width'],
      n_layer=SHAPE['layers'],
      n_head=SHAPE['heads'],
      resid_pdrop=0.0,
      embd_pdrop=0.0,
      attn_pdrop=0.0,
    )
  )


def measure_training(rows: int) -> float:
  """Tokens per second of whole training steps: forward, backward, clipping, AdamW."""
  import torch

  tokens = torch.randint(0, SHAPE['vocab'], (rows, SHAPE['length']))
  step = make_step(make_gpt2(), dict(input_ids=tokens, labels=tokens))
  return tokens.numel() / seconds_per_call(step, lambda _: None, seconds=TRAINING_SECONDS)


def make_step(model, batch):
  """A function that trains the model once on `batch`, which has labels: with clipping and AdamW."""
  import torch

  model.train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

  def step():
    optimizer.zero_grad(set_to_none=True)
    model(**batch).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return step


def measure_decoding(batch: int, beams: int, temperature: int = 0) -> float:
  """New tokens of all rows per second of `generate`, with its key/value cache. One beam is greedy, or samples
  from all tokens at a temperature above 0.
  """
  import torch

  model = make_gpt2().eval()
  prompt = torch.randint(0, SHAPE['vocab'], (batch, DECODING['prompt']))

  def generate():
    return model.generate(
      prompt,
      attention_mask=torch.ones_like(prompt),
      num_beams=beams,
      do_sample=temperature > 0,
      temperature=temperature or None,
      top_k=0 if temperature else None,
      use_cache=True,
      pad_token_id=0,
      eos_token_id=None,
      min_new_tokens=DECODING['new'],
      max_new_tokens=DECODING['new'],
    )

  count = generate().shape[1] - DECODING['prompt']
  if count != DECODING['new']:
    raise RuntimeError(f'generate returned {count} tokens, not {DECODING["new"]}')
  return decoding_rate(generate, batch)


if __name__ == '__main__':
  print_measurement(dict(training=measure_training, decoding=measure_decoding))
