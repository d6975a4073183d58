"""Spec strings: what parses, what is rejected, and the error messages."""

import functools

import pytest

import tfm.kernels
import tfm.masks
import tfm.positions
from tfm import spec
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel
from tfm.masks.causal import Causal
from tfm.masks.protocol import And, Mask, Not, Or
from tfm.masks.window import Window
from tfm.positions.learned import Learned
from tfm.positions.protocol import Position
from tfm.positions.rope import Rope
from tfm.spec import Call, PositiveFloat, SpecError


CONTEXT = dict(width=8, heads=2, head_width=4, length=16)


def mask(text):
  return spec.build(text, tfm.masks, Mask)


def position(text):
  return spec.factory(text, tfm.positions, Position, **CONTEXT)


@pytest.mark.parametrize(
  'text, args, kwargs',
  [
    ('name', (), {}),
    ('name()', (), {}),
    ('  name ', (), {}),
    ('name(1, 2)', (1, 2), {}),
    ('name(-1, +2.5)', (-1, 2.5), {}),
    ('name(10_000, 1e-5)', (10_000, 1e-5), {}),
    ('name(a=1, b="x")', (), {'a': 1, 'b': 'x'}),
    ("name('*.txt', True, None)", ('*.txt', True, None), {}),
    ('name((1, (2, -3)), ())', ((1, (2, -3)), ()), {}),
    ('name([1, {"a": (2,)}])', ([1, {'a': (2,)}],), {}),
    ('name(a=((1, 2), (3, 4)))', (), {'a': ((1, 2), (3, 4))}),
    ('name(\n  1)', (1,), {}),
    ('name("os.system(1) # & | ~")', ('os.system(1) # & | ~',), {}),
  ],
)
def test_valid_specs_parse(text, args, kwargs):
  assert spec.parse(text) == Call('name', args, kwargs)


@pytest.mark.parametrize(
  'text',
  [
    '',
    ' ',
    '1',
    '"rope"',
    'None',
    '()',
    '[]',
    'a b',
    'a(',
    'a)',
    'a, b',
    'a; b',
    'a = 1',
    'import os',
    'os.path',
    'os.path()',
    'a.b(1)',
    'a()()',
    'a(1)(2)',
    'a[0]',
    'a()[0]',
    '"a"(1)',
    '(lambda: 1)()',
    'lambda: 1',
    '__import__("os").system("x")',
    'a if b else c',
    'a + b',
    'a and b',
    'not a',
    'a < b',
    '-a',
    'a @ b',
    '(a := b)',
    'f"a"',
    '[a for a in b]',
    '{a: 1}',
    'await a',
    'a(*[1])',
    'a(*b)',
    'a(**{})',
    'a(**b)',
    'a(1, *(2,), b=3)',
    'a(b)',
    'a(b())',
    'a(b.c)',
    'a(b=c)',
    'a(lambda: 1)',
    'a(f"{1}")',
    'a([x for x in (1,)])',
    'a(x for x in (1,))',
    'a(1 + 1)',
    'a(2 ** 9)',
    'a(9 ** 9 ** 9)',
    'a("x" * 9)',
    'a(not 1)',
    'a(1 if 1 else 2)',
    'a((b := 1))',
    'a(b[0])',
    'a(__import__("os"))',
    'a(().__class__)',
    'a(-"x")',
    'a([1, b])',
    'a({b: 1})',
    'a({1: b()})',
    'a({**{}})',
    'a({[]: 1})',
    'a({[1]})',
    'a(b"\\xff" b"x" "y")',
    'a(1=2)',
    'a(b=1, b=2)',
    'a\nb',
    'a\x00',
    '(' * 300,
    '-' * 100_000 + '1',
    'a(' * 100 + ')' * 100,
    'a(' + '9' * 5000 + ')',
  ],
)
def test_other_python_is_rejected_and_never_executed(text):
  with pytest.raises(SpecError):
    spec.parse(text)


@pytest.mark.parametrize('text', [None, 1, (), b'rope', ['rope']])
def test_a_spec_must_be_a_string(text):
  with pytest.raises(SpecError, match='a spec is a string'):
    spec.parse(text)


@pytest.mark.parametrize(
  'text',
  [
    '__import__("os")',
    '__import__',
    '__init__',
    '__class__',
    'protocol',
    'eval("1")',
    'exec',
    'print',
    'And',
    'Mask',
    '_find',
    'np',
    'causal.Causal',
    'getattr(1, "x")',
    'open("/etc/passwd")',
  ],
)
def test_only_the_variants_of_the_slot_are_valid_names(text):
  with pytest.raises(SpecError):
    mask(text)


def test_spec_error_is_a_value_error():
  assert issubclass(SpecError, ValueError)


@pytest.mark.parametrize(
  'text, parts',
  [
    ('causl', ["'causl'", 'masks does not have', 'causal', 'window', "did you mean 'causal'?"]),
    ('causal & windw(2)', ["'causal & windw(2)'", "'windw'", "did you mean 'window'?"]),
    ('zzz', ["'zzz'", 'known: ', 'causal']),
    (
      'window(lft=2)',
      ["passes 'lft'", 'window takes (left [≥ 0], right=None [≥ 0])', "did you mean 'left'?"],
    ),
    ('window', ["leaves out 'left'", 'window takes (left [≥ 0], right=None [≥ 0])']),
    ('window()', ["leaves out 'left'"]),
    ('window(right=1)', ["leaves out 'left'"]),
    ('window(1, 2, 3)', ['passes 3 positional arguments', 'window takes (left [≥ 0], right=None [≥ 0])']),
    ('window(1, left=2)', ["sets 'left' twice"]),
    ('causal(1)', ['passes 1 positional arguments', 'causal takes ()']),
    ('causal(x=1)', ["passes 'x'", 'known: none']),
    ('window(a/b.txt)', ["'a/b.txt'", 'not a literal', "for a string write 'a/b.txt' in quotes"]),
    ('window(a/*.txt)', ['not a spec', 'with strings in quotes']),
    ('window(left)', ["'left'", 'not a literal', "for a string write 'left' in quotes"]),
    ('window(-1)', ["'window(-1)'", 'left=-1', 'at least 0']),
    ('window(2.5)', ['left=2.5', 'must be of type int']),
    ('window("2")', ["left='2'", 'must be of type int']),
  ],
)
def test_error_messages_name_value_and_remedy(text, parts):
  with pytest.raises(SpecError) as error:
    mask(text)
  assert all(part in str(error.value) for part in parts), error.value
  assert '\n' not in str(error.value)


def test_positional_and_keyword_arguments_are_equivalent():
  assert mask('window(3, 0)') == mask('window(3, right=0)') == mask('window(right=0, left=3)') == Window(3, 0)


@pytest.mark.parametrize(
  'text, expected',
  [
    ('causal', Causal()),
    ('~causal', Not(Causal())),
    ('~~causal', Not(Not(Causal()))),
    ('causal & window(2)', And(Causal(), Window(2))),
    ('causal | window(2) & ~causal', Or(Causal(), And(Window(2), Not(Causal())))),
    ('(causal | window(2)) & causal', And(Or(Causal(), Window(2)), Causal())),
    ('~causal & window(2)', And(Not(Causal()), Window(2))),
    ('~(causal & window(2))', Not(And(Causal(), Window(2)))),
    ('causal & window(1) & window(2)', And(And(Causal(), Window(1)), Window(2))),
  ],
)
def test_operators_have_python_precedence(text, expected):
  assert mask(text) == expected


@pytest.mark.parametrize(
  'text',
  [
    'causal ^ causal',
    'causal + causal',
    'causal and causal',
    'not causal',
    '-causal',
    'causal & 1',
    'causal & "x"',
    '~1',
    'causal << causal',
    'causal &',
    'causal < window(1)',
  ],
)
def test_other_operators_are_rejected(text):
  with pytest.raises(SpecError):
    mask(text)


def test_only_masks_support_operators():
  with pytest.raises(SpecError, match='which only masks allow'):
    spec.build('dense & dense', tfm.kernels, Kernel)
  with pytest.raises(SpecError):
    position('rope & rope')
  assert spec.build('dense', tfm.kernels, Kernel) == Dense()


def test_a_maker_may_take_any_names():
  def mix(first: int = 0, *, known, **weights: PositiveFloat):
    return first, known, weights

  def build(text):
    return spec.bind_from_table(text, {'mix': mix}, known='context')()

  assert build('mix(web=1, code=0.5)') == (0, 'context', {'web': 1, 'code': 0.5})
  assert build('mix(3)') == (3, 'context', {})
  usage = r'mix takes \(first=0, \*\*weights \[> 0\]\)'
  for text, message in (
    ('mix(web=-1)', f'web=-1 must be above 0; {usage}'),
    ('mix(web="x")', f"web='x' must be of type float; {usage}"),
    ('mix(known=1)', f"passes 'known'; {usage}"),
    ('mix(weights=1)', f"passes 'weights'; {usage}"),
    ('mix(1, 2)', f'passes 2 positional arguments; {usage}'),
    ('mix(1, first=2)', f"sets 'first' twice; {usage}"),
  ):
    with pytest.raises(SpecError, match=message):
      build(text)


def test_factory_binds_the_context_fields():
  factory = position('rope(theta=500)')
  assert isinstance(factory, functools.partial)
  assert factory() == Rope(theta=500, **CONTEXT)
  assert position('learned(20)')() == Learned(rows=20, **CONTEXT)


@pytest.mark.parametrize(
  'text, parts',
  [
    ('rope(width=3)', ["passes 'width'", 'rope takes (theta=10000.0', 'known: theta']),
    ('rope(name="x")', ["passes 'name'"]),
    ('rope(parent=None)', ["passes 'parent'"]),
    ('rope(examples=())', ["passes 'examples'"]),
    ('rope(thta=3)', ["did you mean 'theta'?"]),
    ('rope(theta=-1)', ['theta=-1', 'above 0']),
    ('learned(3)', ['rows=3', 'data.length=16']),
  ],
)
def test_factory_validates_at_once(text, parts):
  with pytest.raises(SpecError) as error:
    position(text)
  assert all(part in str(error.value) for part in parts), error.value


def test_build_from_table():
  table = {'plus': lambda a, b=2: a + b, 'minus': lambda a, k: a - k}
  assert spec.build_from_table('plus(1)', table) == 3
  assert spec.build_from_table('plus(1, b=-3)', table) == -2
  assert (
    spec.build_from_table('minus(5)', table, k=3) == 2 and spec.build_from_table('plus(1)', table, k=3) == 3
  )
  assert spec.bind_from_table('plus(1)', table)(b=5) == 6
  with pytest.raises(SpecError, match="'pluss' names 'pluss'.*known: plus, minus; did you mean 'plus'"):
    spec.build_from_table('pluss', table)
  with pytest.raises(SpecError, match="passes 'k'"):
    spec.build_from_table('minus(5, k=1)', table, k=3)
  with pytest.raises(SpecError, match=r"'plus\(\"x\"\)': .*str"):
    spec.build_from_table('plus("x")', table)


def test_a_bare_value_is_rejected_with_the_specs_that_accept_it():
  def steps(every: int):
    pass

  with pytest.raises(SpecError, match=r"'200' has no name; use steps\(200\)"):
    spec.build_from_table('200', dict(evaluation=lambda: None, steps=steps))
  with pytest.raises(SpecError, match=r"'None' has no name; known: evaluation, steps"):
    spec.build_from_table('None', dict(evaluation=lambda: None, steps=steps))


def test_variant_names_are_the_file_names():
  assert {'causal', 'window'} <= set(spec.variant_names(tfm.masks)) and 'protocol' not in spec.variant_names(
    tfm.masks
  )


def test_a_file_must_define_one_public_class(tmp_path, monkeypatch):
  package = tmp_path / 'slot_of_test'
  package.mkdir()
  (package / '__init__.py').write_text('')
  head = 'from tfm.masks.protocol import Mask\nfrom tfm.masks.causal import Causal\n'
  (package / 'one.py').write_text(
    head + 'class _Base(Mask): pass\nclass One(_Base):\n  def __call__(self, q, k): return q == k\n'
  )
  (package / 'two.py').write_text(head + 'class A(Mask): pass\nclass B(Mask): pass\n')
  (package / 'nothing.py').write_text(head)
  monkeypatch.syspath_prepend(tmp_path)
  import slot_of_test

  assert type(spec.build('one', slot_of_test, Mask)).__name__ == 'One'
  with pytest.raises(SpecError, match=r'two.py must define one public class .*\.Mask, and has A, B'):
    spec.build('two', slot_of_test, Mask)
  with pytest.raises(SpecError, match=r'nothing.py must define one public class .*\.Mask, and has none'):
    spec.build('nothing', slot_of_test, Mask)


@pytest.mark.parametrize(
  'text, message',
  [
    ('window("3")', "left='3' must be of type int;"),
    ('window(3.5)', 'left=3.5'),
    ('window(True)', 'left=True'),
    ('window(3, right=(1,))', 'right=(1,) must be of type int | None'),
  ],
)
def test_arguments_of_a_wrong_type_are_rejected(text, message):
  with pytest.raises(spec.SpecError) as error:
    mask(text)
  assert message in str(error.value) and 'window takes (left [≥ 0], right=None [≥ 0])' in str(error.value)


def test_matches_type():
  assert (
    spec.matches_type(1, float)
    and spec.matches_type(None, int | None)
    and spec.matches_type('x', dict)
    and spec.matches_type(True, bool)
  )
  assert not any(
    (
      spec.matches_type(1.0, int),
      spec.matches_type(True, float),
      spec.matches_type(None, str),
      spec.matches_type(1, bool),
    )
  )
