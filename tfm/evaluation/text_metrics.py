"""How close written texts come to what they should be; every number is a well-known package's."""

import functools
import re
from collections.abc import Callable, Sequence

import sacrebleu
import sacremoses
from rouge_score.rouge_scorer import RougeScorer


# (hypotheses, references) → values by name; a value is a number, or words on how it was computed.
Metric = Callable[[Sequence[str], Sequence[str]], dict[str, float | str]]


def bleu(lowercase: bool = False, tokenize: str = '13a') -> Metric:
  """SacreBLEU (Papineni et al. 2002; Post 2018), with its signature.

  Args:
    tokenize: '13a', 'intl', 'char', 'zh', …; 'none' where texts are tokenised already.
  """
  return functools.partial(_sacre, 'bleu', sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenize))


def tokenized_bleu(language: str, lowercase: bool = False, split_compounds: bool = False) -> Metric:
  """BLEU over Moses tokens, as papers before SacreBLEU report it (`multi-bleu.perl`).

  Args:
    split_compounds: whether a hyphen between two letters is a token of its own (Vaswani et al. 2017's figures,
      by `get_ende_bleu.sh` of Tensor2Tensor).
  """
  moses = sacremoses.MosesTokenizer(lang=language)
  score = sacrebleu.BLEU(lowercase=lowercase, tokenize='none', smooth_method='none', force=True)

  def tokenized(text):
    text = moses.tokenize(text, return_str=True, escape=False)
    return re.sub(r'(\S)-(\S)', r'\1 ##AT##-##AT## \2', text) if split_compounds else text

  def metric(hypotheses, references):
    return _sacre('tokenized_bleu', score, *([*map(tokenized, texts)] for texts in (hypotheses, references)))

  return metric


def chrf(words: int = 0) -> Metric:
  """chrF, or chrF++ with words=2 (Popović 2015, 2017), by SacreBLEU."""
  return functools.partial(_sacre, 'chrf', sacrebleu.CHRF(word_order=words))


def rouge(stem: bool = True) -> Metric:
  """F1 of ROUGE-1, -2 and -L (Lin 2004), in per cent."""
  names = 'rouge1', 'rouge2', 'rougeL'
  scorer = RougeScorer(names, use_stemmer=stem)

  def metric(hypotheses, references):
    found = [scorer.score(r, h) for h, r in zip(hypotheses, references, strict=True)]
    return {name: 100 * sum(s[name].fmeasure for s in found) / len(found) for name in names}

  return metric


def exact() -> Metric:
  """The share of texts that are what they should be, to the letter, in per cent."""

  def metric(hypotheses, references):
    right = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return dict(exact=100 * right / len(references))

  return metric


def _sacre(name, metric, hypotheses, references) -> dict[str, float | str]:
  found = metric.corpus_score(list(hypotheses), [list(references)])
  return {name: found.score, f'{name}_signature': str(metric.get_signature())}


METRICS = {f.__name__: f for f in (bleu, tokenized_bleu, chrf, rouge, exact)}
