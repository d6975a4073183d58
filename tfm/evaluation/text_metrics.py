"""Metrics of generated texts against references, computed by well-known packages."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from tfm.errors import importing_extra


# (hypotheses, references) → values by name; a value is a number, or a signature of how it was computed.
Metric = Callable[[Sequence[str], Sequence[str]], dict[str, float | str]]
SAMPLES = 1000  # of the sentences, by which two systems are compared


@dataclasses.dataclass(frozen=True)
class CorpusMetric:
  """A `Metric` of sacreBLEU, which can also compare two systems.

  Attributes:
    name: of the score.
    scorer: of sacreBLEU.
    tokenize: what is done to every text first.
  """

  name: str
  scorer: Any
  tokenize: Callable[[str], str] = str

  def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    hypotheses, references = ([*map(self.tokenize, texts)] for texts in (hypotheses, references))
    score = self.scorer.corpus_score(hypotheses, [references]).score
    return {self.name: score, f'{self.name}_signature': str(self.scorer.get_signature())}

  def compare(
    self, hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str]
  ) -> dict[str, float | list[float]]:
    """The 95 % interval of the score of `hypotheses`, the score of `others` with its own, and p of no
    difference: the paired bootstrap over sentences (Koehn 2004), by sacreBLEU.
    """
    with importing_extra('translation'):
      from sacrebleu.significance import PairedTest
    systems = [(name, [*map(self.tokenize, texts)]) for name, texts in (('others', others), ('', hypotheses))]
    references = [[*map(self.tokenize, references)]]
    _, scores = PairedTest(systems, {self.name: self.scorer}, references, 'bs', SAMPLES)()
    other, own = next(results for name, results in scores.items() if name != 'System')
    intervals = [[float(x.mean - x.ci), float(x.mean + x.ci)] for x in (own, other)]
    return {
      f'{self.name}_interval': intervals[0],
      f'{self.name}_against': float(other.score),
      f'{self.name}_against_interval': intervals[1],
      f'{self.name}_p': float(own.p_value),
    }


def bleu(lowercase: bool = False, tokenize: str = '13a') -> Metric:
  """SacreBLEU (Papineni et al. 2002; Post 2018), with its signature.

  Args:
    tokenize: '13a', 'intl', 'char', 'zh', …; 'none' for tokenized texts.
  """
  with importing_extra('translation'):
    import sacrebleu
  return CorpusMetric('bleu', sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenize))


def tokenized_bleu(language: str, lowercase: bool = False, split_compounds: bool = False) -> Metric:
  """BLEU over Moses tokens, as papers before SacreBLEU report it (`multi-bleu.perl`).

  Args:
    split_compounds: whether a hyphen inside a word is a separate token (as in the results of Vaswani et al.
      2017, by `get_ende_bleu.sh` of Tensor2Tensor).
  """
  with importing_extra('translation'):
    import sacrebleu
    import sacremoses
  moses = sacremoses.MosesTokenizer(lang=language)
  score = sacrebleu.BLEU(lowercase=lowercase, tokenize='none', smooth_method='none', force=True)

  def tokenize(text):
    text = moses.tokenize(text, return_str=True, escape=False)
    return re.sub(r'(\S)-(\S)', r'\1 ##AT##-##AT## \2', text) if split_compounds else text

  return CorpusMetric('tokenized_bleu', score, tokenize)


def chrf(words: int = 0) -> Metric:
  """chrF, or chrF++ with words=2 (Popović 2015, 2017), by SacreBLEU."""
  with importing_extra('translation'):
    import sacrebleu
  return CorpusMetric('chrf', sacrebleu.CHRF(word_order=words))


def rouge(stem: bool = True) -> Metric:
  """F1 of ROUGE-1, -2 and -L (Lin 2004), in percent."""
  with importing_extra('translation'):
    from rouge_score.rouge_scorer import RougeScorer
  names = 'rouge1', 'rouge2', 'rougeL'
  scorer = RougeScorer(names, use_stemmer=stem)

  def metric(hypotheses, references):
    scores = [scorer.score(r, h) for h, r in zip(hypotheses, references, strict=True)]
    return {name: 100 * sum(s[name].fmeasure for s in scores) / len(scores) for name in names}

  return metric


def exact() -> Metric:
  """The percentage of hypotheses that equal their reference."""

  def metric(hypotheses, references):
    correct = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return dict(exact=100 * correct / len(references))

  return metric


METRICS = {f.__name__: f for f in (bleu, tokenized_bleu, chrf, rouge, exact)}
