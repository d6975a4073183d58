"""config.json as checkpoints on the hub have it: every field is understood, and the model is as large as published."""

import math

import jax
import pytest

from tfm import declared
from tfm.training import state

SUMMARY = dict(summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type='cls_index',
               summary_use_proj=True)
WRITTEN = dict(initializer_range=0.02, torch_dtype='float16', transformers_version='4.27.4', use_cache=True)

# Name → (parameters, config.json).
PUBLISHED = {
  'EleutherAI/gpt-neox-20b': (20_554_567_680, dict(
    architectures=['GPTNeoXForCausalLM'], attention_probs_dropout_prob=0, bos_token_id=0, eos_token_id=0, hidden_act='gelu_fast',
    hidden_dropout_prob=0, hidden_size=6144, intermediate_size=24576, layer_norm_eps=1e-05, max_position_embeddings=2048,
    model_type='gpt_neox', num_attention_heads=64, num_hidden_layers=44, rotary_emb_base=10000, rotary_pct=0.25,
    tie_word_embeddings=False, vocab_size=50432)),
  'EleutherAI/pythia-70m': (70_426_624, dict(
    architectures=['GPTNeoXForCausalLM'], bos_token_id=0, eos_token_id=0, hidden_act='gelu', hidden_size=512,
    intermediate_size=2048, layer_norm_eps=1e-05, max_position_embeddings=2048, model_type='gpt_neox', num_attention_heads=8,
    num_hidden_layers=6, rotary_emb_base=10000, rotary_pct=0.25, tie_word_embeddings=False, use_parallel_residual=True,
    vocab_size=50304)),
  'EleutherAI/gpt-j-6b': (6_050_882_784, dict(
    activation_function='gelu_new', architectures=['GPTJForCausalLM'], attn_pdrop=0.0, bos_token_id=50256, embd_pdrop=0.0,
    eos_token_id=50256, gradient_checkpointing=False, layer_norm_epsilon=1e-05, model_type='gptj', n_embd=4096, n_head=16,
    n_inner=None, n_layer=28, n_positions=2048, resid_pdrop=0.0, rotary=True, rotary_dim=64, scale_attn_weights=True,
    tie_word_embeddings=False, tokenizer_class='GPT2Tokenizer', vocab_size=50400, **SUMMARY,
    task_specific_params={'text-generation': {'do_sample': True, 'max_length': 50, 'temperature': 1.0}})),
  'bigscience/bloom-560m': (559_214_592, dict(
    apply_residual_connection_post_layernorm=False, architectures=['BloomForCausalLM'], attention_dropout=0.0,
    attention_softmax_in_fp32=True, bias_dropout_fusion=True, bos_token_id=1, eos_token_id=2, pad_token_id=3, unk_token_id=0,
    hidden_dropout=0.0, layer_norm_epsilon=1e-05, masked_softmax_fusion=True, model_type='bloom', n_embed=1024, n_inner=None,
    n_layer=24, num_attention_heads=16, offset_alibi=100, pretraining_tp=1, skip_bias_add=True, skip_bias_add_qkv=False,
    slow_but_exact=False, vocab_size=250880)),
  'mosaicml/mpt-7b': (6_649_286_656, dict(
    architectures=['MPTForCausalLM'], auto_map={'AutoConfig': 'configuration_mpt.MPTConfig'}, d_model=4096, emb_pdrop=0,
    attn_config=dict(alibi=True, alibi_bias_max=8, attn_impl='torch', attn_pdrop=0, attn_type='multihead_attention',
                     attn_uses_sequence_id=False, clip_qkv=None, prefix_lm=False, qk_ln=False, softmax_scale=None),
    embedding_fraction=1.0, expansion_ratio=4, init_config=dict(emb_init_std=None, name='kaiming_normal_'), init_device='cpu',
    learned_pos_emb=True, logit_scale=None, max_seq_len=2048, model_type='mpt', n_heads=32, n_layers=32, no_bias=True,
    norm_type='low_precision_layernorm', resid_pdrop=0, tokenizer_name='EleutherAI/gpt-neox-20b', verbose=0, vocab_size=50432)),
  'tiiuae/falcon-7b': (6_921_720_704, dict(
    alibi=False, apply_residual_connection_post_layernorm=False, architectures=['FalconForCausalLM'], attention_dropout=0.0,
    auto_map={'AutoConfig': 'configuration_falcon.FalconConfig'}, bias=False, bos_token_id=11, eos_token_id=11,
    hidden_dropout=0.0, hidden_size=4544, layer_norm_epsilon=1e-05, model_type='falcon', multi_query=True,
    new_decoder_architecture=False, num_attention_heads=71, num_hidden_layers=32, parallel_attn=True, vocab_size=65024)),
  'tiiuae/falcon-40b': (41_303_293_952, dict(
    alibi=False, apply_residual_connection_post_layernorm=False, architectures=['FalconForCausalLM'], attention_dropout=0.0,
    bias=False, bos_token_id=11, eos_token_id=11, hidden_dropout=0.0, hidden_size=8192, layer_norm_epsilon=1e-05,
    model_type='falcon', new_decoder_architecture=True, num_attention_heads=128, num_hidden_layers=60, num_kv_heads=8,
    parallel_attn=True, vocab_size=65024)),
  'tiiuae/falcon-rw-1b': (1_311_625_216, dict(
    alibi=True, apply_residual_connection_post_layernorm=False, architectures=['FalconForCausalLM'], attention_dropout=0.0,
    bias=True, bos_token_id=1, eos_token_id=2, hidden_dropout=0.0, hidden_size=2048, layer_norm_epsilon=1e-05,
    model_type='falcon', multi_query=False, new_decoder_architecture=False, num_attention_heads=32, num_hidden_layers=24,
    parallel_attn=False, vocab_size=50304)),
  'bigcode/starcoder': (15_517_456_384, dict(
    activation_function='gelu', architectures=['GPTBigCodeForCausalLM'], attention_softmax_in_fp32=True, attn_pdrop=0.1,
    bos_token_id=0, embd_pdrop=0.1, eos_token_id=0, inference_runner=0, layer_norm_epsilon=1e-05, max_batch_size=None,
    max_sequence_length=None, model_type='gpt_bigcode', multi_query=True, n_embd=6144, n_head=48, n_inner=24576, n_layer=40,
    n_positions=8192, pad_key_length=True, pre_allocate_kv_cache=False, resid_pdrop=0.1, scale_attention_softmax_in_fp32=True,
    scale_attn_weights=True, validate_runner_input=True, vocab_size=49152, **SUMMARY)),
  'facebook/opt-125m': (125_239_296, dict(
    activation_dropout=0.0, activation_function='relu', architectures=['OPTForCausalLM'], attention_dropout=0.0, bos_token_id=2,
    do_layer_norm_before=True, dropout=0.1, eos_token_id=2, ffn_dim=3072, hidden_size=768, init_std=0.02, layerdrop=0.0,
    max_position_embeddings=2048, model_type='opt', num_attention_heads=12, num_hidden_layers=12, pad_token_id=1, prefix='</s>',
    vocab_size=50272, word_embed_proj_dim=768)),
  'facebook/opt-350m': (331_196_416, dict(
    activation_dropout=0.0, activation_function='relu', architectures=['OPTForCausalLM'], attention_dropout=0.0, bos_token_id=2,
    do_layer_norm_before=False, dropout=0.1, eos_token_id=2, ffn_dim=4096, hidden_size=1024, init_std=0.02, layerdrop=0.0,
    max_position_embeddings=2048, model_type='opt', num_attention_heads=16, num_hidden_layers=24, pad_token_id=1, prefix='</s>',
    vocab_size=50272, word_embed_proj_dim=512)),
  'microsoft/phi-2': (2_779_683_840, dict(
    architectures=['PhiForCausalLM'], attention_dropout=0.0, bos_token_id=50256, embd_pdrop=0.0, eos_token_id=50256,
    hidden_act='gelu_new', hidden_size=2560, intermediate_size=10240, layer_norm_eps=1e-05, max_position_embeddings=2048,
    model_type='phi', num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=32, partial_rotary_factor=0.4,
    qk_layernorm=False, resid_pdrop=0.1, rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False, vocab_size=51200)),
  'state-spaces/mamba-130m-hf': (129_135_360, dict(
    architectures=['MambaForCausalLM'], bos_token_id=0, conv_kernel=4, d_inner=1536, d_model=768, eos_token_id=0, expand=2,
    fused_add_norm=True, hidden_act='silu', hidden_size=768, intermediate_size=1536, layer_norm_epsilon=1e-05,
    model_type='mamba', n_layer=24, num_hidden_layers=24, pad_token_id=0, pad_vocab_size_multiple=8,
    rescale_prenorm_residual=False, residual_in_fp32=True, rms_norm=True, ssm_cfg={}, state_size=16, time_step_floor=0.0001,
    time_step_init_scheme='random', time_step_max=0.1, time_step_min=0.001, time_step_rank=48, time_step_scale=1.0,
    use_bias=False, use_conv_bias=True, vocab_size=50280)),
  'mistralai/Mamba-Codestral-7B-v0.1': (7_285_403_648, dict(
    architectures=['Mamba2ForCausalLM'], bos_token_id=0, chunk_size=256, conv_kernel=4, eos_token_id=0, expand=2, head_dim=64,
    hidden_act='silu', hidden_size=4096, layer_norm_epsilon=1e-05, model_type='mamba2', n_groups=8, norm_before_gate=True,
    num_heads=128, num_hidden_layers=64, pad_token_id=0, rescale_prenorm_residual=False, residual_in_fp32=True, rms_norm=True,
    state_size=128, tie_word_embeddings=False, time_step_floor=0.0001, time_step_init_scheme='random',
    time_step_limit=[0.0, math.inf], time_step_max=0.1, time_step_min=0.001, time_step_rank=256, time_step_scale=1.0,
    use_bias=False, use_conv_bias=True, vocab_size=32768)),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_published_config(name):
  count, fields = PUBLISHED[name]
  fields = WRITTEN | fields
  family = declared.families()[fields['model_type']]
  config, output, _, vocab, _ = declared.declared(family, fields)
  model = declared.model_of(config, vocab)
  params = jax.eval_shape(lambda key: state.parameters(model, key, 1, 4), jax.random.key(0))
  assert output == 'vocabulary' and sum(math.prod(x.shape) for x in jax.tree.leaves(params)) == count
