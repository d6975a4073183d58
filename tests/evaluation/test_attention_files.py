"""What is made of attention maps: a picture, and a page that stands alone."""

import base64
import configparser
import html.parser
import json
import re
import warnings

import numpy as np
import pytest
from matplotlib.image import imread

from tfm.evaluation import attention_page, attention_picture
from tfm.evaluation.attention_maps import AttentionMaps


TRICKY = ['</script>', '<!--', '"', '\\', '$x', '{{data}}', '\u2028', '日', '␣word']


def drawn(queries, keys, heads_of_layers):
  """Maps of random weights."""
  draw = np.random.default_rng(0)
  return AttentionMaps(
    'cross',
    queries,
    keys,
    {
      layer: {head: draw.dirichlet(np.ones(len(keys)), len(queries)) for head in heads}
      for layer, heads in heads_of_layers.items()
    },
  )


class Read(html.parser.HTMLParser):
  """The elements of a page, and the text of each script by its id."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.scripts, self.inside = [], {}, None
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    self.inside = dict(attributes).get('id', 'code') if tag == 'script' else None

  def handle_endtag(self, tag):
    self.inside = None

  def handle_data(self, text):
    if self.inside:
      self.scripts[self.inside] = self.scripts.get(self.inside, '') + text


def test_the_template_is_installed(root):
  """It travels with the package, not only with the repository."""
  setup = configparser.ConfigParser()
  setup.read(root / 'setup.cfg')
  assert setup['options.package_data']['tfm.evaluation'] == '*.html'


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """(maps of two kinds, the page)."""
  file = tmp_path_factory.mktemp('page') / 'index.html'
  maps = [drawn(TRICKY, TRICKY, {0: [0, 2], 3: [2]}), drawn(['a', 'b'], TRICKY, {1: [0]})]
  attention_page.write_page(maps, 'Attention of <b>', file)
  return maps, file.read_text(encoding='utf-8')


def test_the_page_holds_the_weights(page):
  """Every label as it is, and every weight to half of the last of 16 bits."""
  maps, text = page
  data = json.loads(Read(text).scripts['data'])
  assert data['title'] == 'Attention of <b>'
  for found, kind in zip(maps, data['kinds'], strict=True):
    assert (kind['kind'], kind['queries'], kind['keys']) == (found.kind, found.queries, found.keys)
    assert dict(kind['layers']) == {layer: list(heads) for layer, heads in found.layers.items()}
    read = np.frombuffer(base64.b64decode(kind['weights']), '<u2') / data['levels']
    weights = np.stack([w for heads in found.layers.values() for w in heads.values()])
    np.testing.assert_allclose(read.reshape(weights.shape), weights, rtol=0, atol=0.5001 / data['levels'])


def test_the_page_stands_alone(page):
  """No token ends a script or begins another, and nothing is fetched; what its code looks for is there."""
  read = Read(page[1])
  assert list(read.scripts) == ['data', 'code'] and 'kinds = data.kinds.map' in read.scripts['code']
  assert not re.search(
    r'https?:|//\w+\.|@import|url\(', re.sub(r'"data">.*?</script>', '', page[1], flags=re.S)
  )
  assert not [
    tag
    for tag, attributes in read.tags
    if tag in ('link', 'img', 'iframe') or attributes.keys() & {'src', 'href'}
  ]
  assert page[1].count('{{data}}') == 3  # the label, where it is one
  assert (
    'prefers-color-scheme: dark' in page[1]
    and ('meta', dict(name='viewport', content='width=device-width, initial-scale=1')) in read.tags
  )
  used = set(re.findall(r"byId\('(\w+)'\)", read.scripts['code']))
  assert used == {attributes['id'] for _, attributes in read.tags if 'id' in attributes}


def test_the_picture_is_a_grid(tmp_path):
  """A blank where a layer has no such head; what the font lacks is no warning, and a dollar no formula."""
  one, grid = tmp_path / 'one.png', tmp_path / 'grid.png'
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    attention_picture.draw(
      AttentionMaps('cross', TRICKY, TRICKY, {0: {1: np.eye(len(TRICKY))}}), 'one $x', one
    )
    attention_picture.draw(drawn(TRICKY, TRICKY, {0: [0, 1, 5], 2: [5]}), 'four', grid)
  one, grid = ((imread(file)[..., :3] * 255).round().astype(int) for file in (one, grid))
  assert grid.shape[1] > one.shape[1] + 2 * 144 and grid.shape[0] > one.shape[0]
  assert (grid[-40, 200] == 255).all() and not (grid[-40, -180] == 255).all()
  for colour in (attention_picture.NOTHING, attention_picture.ALL):
    assert (one == tuple(bytes.fromhex(colour[1:]))).all(-1).any()


def test_many_tokens_are_labelled_now_and_then():
  tokens = [f'token{i}' for i in range(100)]
  found = attention_picture.fit_labels(tokens, 4.4)
  assert [text for _, text in found] == tokens[::3] and found[1][0] == pytest.approx(3.5 * 0.044)
  assert attention_picture.fit_labels(['a' * 20], 1.0) == [(0.5, 'a' * 13 + '…')]
