"""Metrics of texts: what each counts, by hand where that is short."""

import json
import math
import random
import re
import subprocess
import sys

import pytest

from tfm.evaluation.text_metrics import METRICS


SAID, TRUE = ['Der Hund läuft .', 'ein Teil'], ['der Hund läuft .', 'ein Teil']


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'rouge', 'exact'])
def test_the_reference_itself_is_perfect(name):
  texts = ['eins zwei drei vier fünf', 'sechs sieben acht neun zehn']
  assert all(
    v == pytest.approx(100) for v in METRICS[name]()(texts, texts).values() if not isinstance(v, str)
  )


def test_case_counts_by_default():
  texts = ['Eins Zwei Drei Vier Fünf'], ['eins zwei drei vier fünf']
  assert METRICS['bleu']()(*texts)['bleu'] < 50 < METRICS['bleu'](lowercase=True)(*texts)['bleu']
  assert METRICS['tokenized_bleu']('de')(*texts)['tokenized_bleu'] == 0
  assert METRICS['tokenized_bleu']('de', lowercase=True)(*texts)['tokenized_bleu'] == pytest.approx(100)


def test_tokenized_bleu_counts_moses_tokens():
  """Punctuation is a token, an abbreviation and a number with a comma are one each."""
  for written, tokens in (
    ('Hallo, Welt!', 'Hallo , Welt !'),
    ('Das kostet ca. 3,5 Euro (netto).', 'Das kostet ca. 3,5 Euro ( netto ) .'),
  ):
    score = METRICS['tokenized_bleu']('de')
    assert score([written], [tokens])['tokenized_bleu'] == pytest.approx(100)
    assert METRICS['bleu'](tokenize='none')([written], [tokens])['bleu'] < 50


@pytest.mark.parametrize('language, tokens', [('fr', 5), ('de', 6)])
def test_tokens_follow_the_language(language, tokens):
  """The apostrophe belongs to the article in French only; of the n-grams, those with the last word differ."""
  texts = ["nous aimons beaucoup l'eau"], ["nous aimons beaucoup l'air"]
  precisions = [(tokens - n) / (tokens - n + 1) for n in (1, 2, 3, 4)]
  score = METRICS['tokenized_bleu'](language)(*texts)['tokenized_bleu']
  assert score == pytest.approx(100 * math.prod(precisions) ** 0.25)


def test_a_missing_4_gram_is_not_smoothed_in_tokenized_bleu():
  texts = ['eins zwei drei fünf'], ['eins zwei drei vier']
  assert METRICS['tokenized_bleu']('de')(*texts)['tokenized_bleu'] == 0 < METRICS['bleu']()(*texts)['bleu']


@pytest.mark.parametrize(
  'metric, name, parts',
  [
    (METRICS['bleu'](), 'bleu', {'case:mixed', 'tok:13a', 'smooth:exp'}),
    (METRICS['tokenized_bleu']('de'), 'tokenized_bleu', {'case:mixed', 'tok:none', 'smooth:none'}),
    (METRICS['chrf'](), 'chrf', {'nc:6', 'nw:0'}),
    (METRICS['chrf'](words=2), 'chrf', {'nc:6', 'nw:2'}),
  ],
)
def test_a_signature_says_how_it_was_computed(metric, name, parts):
  values = metric(SAID, TRUE)
  assert set(values) == {name, f'{name}_signature'} and parts <= set(values[f'{name}_signature'].split('|'))


def test_a_compound_is_split_if_requested():
  """Of gut-altes and gut-neues the first half is then found, and the hyphen."""
  texts = ['wir sehen heute ein gut-altes Haus'], ['wir sehen heute ein gut-neues Haus']
  whole, split = (
    METRICS['tokenized_bleu']('de', split_compounds=s)(*texts)['tokenized_bleu'] for s in (False, True)
  )
  assert split > whole == METRICS['tokenized_bleu']('de')(*texts)['tokenized_bleu'] > 0


def test_exact_and_rouge_by_hand():
  assert METRICS['exact']()(SAID, TRUE) == {'exact': 50}
  found = METRICS['rouge']()(['the cat sat'], ['the cat ran away'])
  assert found['rouge1'] == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
  assert found['rouge2'] == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))


def test_rouge_compares_stems_by_default():
  texts = ['cats running'], ['cat runs']
  assert (
    METRICS['rouge']()(*texts)['rouge1'] == pytest.approx(100)
    and METRICS['rouge'](stem=False)(*texts)['rouge1'] == 0
  )


def test_unequal_numbers_are_refused():
  for name in ('exact', 'rouge'):
    with pytest.raises(ValueError):
      METRICS[name]()(['a'], ['a', 'b'])


def test_two_systems_are_compared_as_by_sacrebleu_on_the_command_line(tmp_path):
  draw = random.Random(0)
  references = [' '.join(draw.choices('ABCDEFGH', k=12)) for _ in range(60)]

  def spoil(share):
    return [
      re.sub(r'\w', lambda word: 'x' if draw.random() < share else word[0], text) for text in references
    ]

  texts = dict(reference=references, others=spoil(0.12), own=spoil(0.10))
  for file, lines in texts.items():
    (tmp_path / file).write_text('\n'.join(lines) + '\n')
  command = [sys.executable, '-m', 'sacrebleu', 'reference', '-i', 'others', 'own', '--paired-bs']
  done = subprocess.run([*command, '--format=json'], cwd=tmp_path, capture_output=True, text=True, check=True)
  other, own = (system['BLEU'] for system in json.loads(done.stdout))
  found = METRICS['bleu']().compare(texts['own'], texts['others'], references)
  assert found['bleu_p'] == pytest.approx(own['p_value'], abs=1e-4) and 0 < own['p_value'] < 1
  assert found['bleu_against'] == pytest.approx(other['score'], abs=0.01)
  for key, printed in (('bleu_interval', own), ('bleu_against_interval', other)):
    low, high = found[key]
    assert [(low + high) / 2, (high - low) / 2] == pytest.approx([printed['mean'], printed['ci']], abs=0.01)
