"""Tables of commands."""

from rich import box
from rich.console import Console
from rich.table import Table


def wide_console(stderr: bool = False) -> Console:
  """A console on stdout or stderr; very wide if that is no terminal, so that pipes get untruncated lines."""
  console = Console(stderr=stderr)
  return console if console.is_terminal else Console(stderr=stderr, width=10_000)


def new_table(title: str, *columns: str) -> Table:
  """An empty table; '>' before a column's name right-aligns it."""
  rich_table = Table(title=title, title_justify='left', box=box.SIMPLE)
  for name in columns:
    # Paths are for copying: in a narrow terminal the other columns shrink first.
    rich_table.add_column(
      name.removeprefix('>'),
      justify='right' if name.startswith('>') else 'left',
      overflow='fold',
      no_wrap=name in ('path', '>count'),
    )
  return rich_table
