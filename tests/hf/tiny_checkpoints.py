"""A tiny checkpoint of every published family, with random numbers."""

import json
import pathlib

import flax.linen as nn
import jax
import numpy as np
import safetensors.numpy

from tfm.hf.checkpoint_tensors import iterate_tensors
from tfm.hf.from_config import build_model, config_from_hf, load_families
from tfm.training.state import init_params


VOCAB, ROWS = 61, 40
COMMON = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
BERT = COMMON | dict(
  intermediate_size=48, max_position_embeddings=ROWS, type_vocab_size=2, layer_norm_eps=1e-3, pad_token_id=1
)
LLAMA = COMMON | dict(
  intermediate_size=48,
  num_key_value_heads=2,
  max_position_embeddings=ROWS,
  rms_norm_eps=1e-3,
  hidden_act='silu',
  rope_theta=10_000.0,
  eos_token_id=2,
)
GEMMA = LLAMA | dict(head_dim=12, hidden_activation='gelu_pytorch_tanh')
del GEMMA['hidden_act']
BART = dict(
  vocab_size=VOCAB,
  d_model=32,
  encoder_layers=2,
  decoder_layers=2,
  encoder_attention_heads=4,
  decoder_attention_heads=4,
  encoder_ffn_dim=48,
  decoder_ffn_dim=48,
  max_position_embeddings=ROWS,
  dropout=0.1,
  is_encoder_decoder=True,
)
GPT2 = dict(vocab_size=VOCAB, n_positions=ROWS, n_embd=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-3)
DEBERTA = BERT | dict(relative_attention=True, position_biased_input=False, pos_att_type=['c2p', 'p2c'])
MAMBA = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=5, layer_norm_epsilon=1e-3)
T5 = dict(
  vocab_size=VOCAB,
  d_model=32,
  d_kv=8,
  d_ff=48,
  num_layers=2,
  num_heads=4,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=20,
  layer_norm_epsilon=1e-3,
  feed_forward_proj='gated-gelu',
  decoder_start_token_id=0,
)
VIT = dict(
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=48,
  image_size=8,
  patch_size=4,
  num_channels=3,
  layer_norm_eps=1e-3,
  id2label={'0': 'cat', '1': 'dog', '2': 'owl'},
)

# model_type → the other fields of config.json.
FIELDS = {
  'bart': BART,
  'bert': BERT,
  'bloom': dict(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-3),
  'camembert': BERT,
  'clip': dict(
    text_config=COMMON | dict(intermediate_size=48, max_position_embeddings=ROWS, eos_token_id=VOCAB - 1),
    vision_config=dict(
      hidden_size=24,
      num_hidden_layers=2,
      num_attention_heads=2,
      intermediate_size=40,
      image_size=8,
      patch_size=4,
      layer_norm_eps=1e-3,
    ),
    projection_dim=32,
  ),
  'deberta': DEBERTA | dict(architectures=['DebertaForMaskedLM']),
  'deberta-v2': DEBERTA | dict(position_buckets=8, norm_rel_ebd='layer_norm', conv_kernel_size=3),
  'deepseek_v2': LLAMA
  | dict(
    num_key_value_heads=4,
    kv_lora_rank=12,
    q_lora_rank=20,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    moe_intermediate_size=24,
    rope_scaling=dict(
      type='yarn', factor=2.0, original_max_position_embeddings=20, mscale=0.7, mscale_all_dim=0.7
    ),
  ),
  'deit': VIT | dict(architectures=['DeiTForImageClassificationWithTeacher']),
  'distilbert': dict(
    vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=ROWS
  ),
  'falcon': COMMON | dict(max_position_embeddings=ROWS, multi_query=True, parallel_attn=True, bias=False),
  'gemma': GEMMA,
  'gemma2': GEMMA
  | dict(
    query_pre_attn_scalar=24,
    attn_logit_softcapping=5.0,
    final_logit_softcapping=3.0,
    sliding_window=4,
    layer_types=['sliding_attention', 'full_attention'],
  ),
  'gpt2': GPT2 | dict(activation_function='gelu_new', scale_attn_by_inverse_layer_idx=True),
  'gpt_bigcode': GPT2 | dict(multi_query=True),
  'gpt_neox': COMMON | dict(intermediate_size=48, max_position_embeddings=ROWS, rotary_pct=0.5),
  'gptj': GPT2 | dict(rotary_dim=4),
  'llama': LLAMA
  | dict(
    rope_scaling=dict(
      rope_type='llama3',
      factor=4.0,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_max_position_embeddings=20,
    )
  ),
  'longformer': BERT | dict(attention_window=[4, 8]),
  'mamba': MAMBA | dict(conv_kernel=3, expand=2, time_step_rank=4),
  'mamba2': MAMBA | dict(num_heads=8, head_dim=8, n_groups=2, chunk_size=4),
  'marian': BART
  | dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB, pad_token_id=VOCAB - 1),
  'mistral': LLAMA | dict(sliding_window=4),
  'mixtral': LLAMA | dict(num_local_experts=3, num_experts_per_tok=2),
  'mpt': dict(
    vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=ROWS, attn_config=dict(softmax_scale=0.3)
  ),
  'mt5': T5 | dict(tie_word_embeddings=False),
  'opt': COMMON | dict(ffn_dim=40, max_position_embeddings=ROWS, word_embed_proj_dim=24),
  'phi': COMMON | dict(intermediate_size=40, max_position_embeddings=ROWS, partial_rotary_factor=0.5),
  'qwen2': LLAMA | dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
  'qwen3': LLAMA | dict(head_dim=12),
  'roberta': BERT,
  't5': T5,
  'vit': VIT,
  'xlm-roberta': BERT,
}


def write_checkpoint(model_type: str, folder: pathlib.Path) -> None:
  """Writes config.json and model.safetensors of a family."""
  fields, family = FIELDS[model_type] | dict(model_type=model_type), load_families()[model_type]
  config, _, _, vocab, source_vocab = config_from_hf(family, fields)
  model = build_model(config, vocab, source_vocab)
  shapes = nn.unbox(jax.eval_shape(lambda: init_params(model, jax.random.key(0), 1, 8)))
  random = np.random.default_rng(0)
  params = jax.tree.map(lambda x: random.normal(0, 0.1, x.shape).astype(np.float32), shapes)
  tensors = dict(iterate_tensors(family.weights(config), params)) | dict(family.constants(config))
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(fields))
  safetensors.numpy.save_file(
    # `np.ascontiguousarray` gives a scalar an axis.
    {name: np.array(tensor, order='C') for name, tensor in tensors.items()},
    folder / 'model.safetensors',
  )
