"""A job and its commands, for every scheduler; slurm.py, tpu.py and gke.py say what each of them runs."""

import dataclasses
import pathlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tfm.errors import INVALID_INPUT_STATUS, require


MAX_FAILURES = 5  # in a row without a new checkpoint, such as of a step that does not fit into memory
BUCKET = re.compile(r'gs://([\w.-]+)(/.*)?')


@dataclasses.dataclass(frozen=True)
class Job:
  """What to run, and where.

  Attributes:
    name: of the job, the TPU or the workload.
    arguments: of `tfm train`, or of `tfm ablate`, without the workdir.
    workdir: a folder that all machines see, or gs://BUCKET/….
    environment: variables to export.
    directory: the working directory on the machines; '': the one they start in.
    options: flags of the scheduler, name → value; '' is the value of a flag without one.
    setup: a shell command to run first; '': none.
    slices: into how many tasks a study is divided, each with a share of its arms; 0: the job is no study.

  Raises:
    ValueError: for a name of a variable or an option that a shell would read as something else, and for a
      line break in the job's name or in an option's value, which would begin a line of its own.
  """

  name: str
  arguments: Sequence[str]
  workdir: str
  environment: Mapping[str, str]
  directory: str
  options: Mapping[str, str]
  setup: str = ''
  slices: int = 0

  def __post_init__(self):
    for name in self.environment:
      require(
        re.fullmatch(r'[A-Za-z_][A-Za-z0-9_]*', name) is not None,
        f'--env={name}=… names no variable; names consist of letters, digits and _, and begin with no digit',
      )
    for name, value in {'name': self.name, **self.options}.items():
      require(
        re.fullmatch(r'[A-Za-z0-9][-_A-Za-z0-9]*', name) is not None,
        f'--{name} is not a flag; a flag consists of letters, digits and dashes',
      )
      require(
        value.isprintable(), f'--{name}={value!r} contains a line break or a control character; remove it'
      )

  def train_command(self, workdir: str, *prefix: str) -> str:
    """The command that every process runs."""
    return shlex.join([*prefix, 'tfm', 'train', '--processes=auto', f'--workdir={workdir}', *self.arguments])

  def study_command(self, workdir: str, *flags: str) -> str:
    """The command of a task of a study."""
    return shlex.join(['tfm', 'ablate', *self.arguments, f'--workdir={workdir}', *flags])

  def setup_lines(self) -> list[str]:
    """Shell lines that precede the training command: variables, setup, working directory."""
    lines = [f'export {name}={shlex.quote(value)}' for name, value in self.environment.items()]
    if self.setup:
      lines.append(self.setup)
    if self.directory:
      lines.append(f'cd {shlex.quote(self.directory)}')
    return lines

  def require_options(self, scheduler: str, *names: str) -> None:
    """Raises ValueError if one of these options is missing."""
    for name in names:
      require(
        bool(self.options.get(name)),
        f'--{name} is missing; tfm launch {scheduler} needs {", ".join(f"--{n}" for n in names)}',
      )

  def flags(self, *names: str) -> list[str]:
    """Those of these options that are set, as flags."""
    return [format_flag(name, self.options[name]) for name in names if name in self.options]


@dataclasses.dataclass(frozen=True)
class Step:
  """One command to run on the launching machine.

  Attributes:
    words: the command line.
    stdin: what it reads from standard input.
    note: a comment for the reader.
  """

  words: tuple[str, ...]
  stdin: str = ''
  note: str = ''

  def __str__(self):
    comment = f'# {self.note}\n' if self.note else ''
    end = 'END'
    while end in self.stdin.splitlines():  # a line that reads like the end would cut the text off
      end += '_'
    return comment + shlex.join(self.words) + (f" <<'{end}'\n{self.stdin}{end}" if self.stdin else '')


def format_flag(name: str, value: str) -> str:
  """`--name=value`, or `--name` for a flag without a value."""
  return f'--{name}={value}' if value else f'--{name}'


def restart_loop(
  command: str, checkpoints: str, stop: str = 'kill -TERM "$run"', after_stop: str = ''
) -> str:
  """A shell script that runs a command again until it succeeds or its input is invalid; each run resumes.

  SIGTERM is forwarded to the command, which saves; it is not run again after that, nor after MAX_FAILURES
  failures in a row without a new checkpoint.

  Args:
    checkpoints: the folder that holds them, or a pattern of such folders, as a word of the shell.
    stop: a shell command that sends SIGTERM to the processes of the command.
    after_stop: shell lines to run at the end; they may change `status`.
  """
  return f"""stopped= failures=0 status=0
trap 'stopped=1; {stop} 2>/dev/null' TERM
while [ -z "$stopped" ]; do
  saved=$(ls {checkpoints} 2>/dev/null)
  {command} &
  run=$!
  wait "$run"; status=$?
  while kill -0 "$run" 2>/dev/null; do wait "$run"; status=$?; done
  if [ -n "$stopped" ] || [ "$status" = 0 ] || [ "$status" = {INVALID_INPUT_STATUS} ]; then break; fi
  failures=$((failures + 1))
  [ "$(ls {checkpoints} 2>/dev/null)" = "$saved" ] || failures=0
  if [ "$failures" = {MAX_FAILURES} ]; then
    echo "tfm launch: {MAX_FAILURES} failures in a row without a new checkpoint; giving up" >&2
    break
  fi
  echo "tfm launch: exit status $status; restarting from the last checkpoint in 10 seconds" >&2
  sleep 10; status=0  # a stop from here on finds nothing running: all is saved
done
{after_stop}exit "$status"
"""


def checkpoints_of_run(workdir: str) -> str:
  """The folder of a run's checkpoints; the workdir and the result are words of the shell."""
  return f'{workdir}/checkpoints'


def checkpoints_of_study(workdir: str) -> str:
  """Those of all runs of a study."""
  return f'{workdir}/arms/*/*/checkpoints'


def validate_placement(job: Job) -> None:
  """Raises ValueError for a name or a workdir that machines created for the job cannot use."""
  require(
    re.fullmatch('[a-z]([-a-z0-9]*[a-z0-9])?', job.name) is not None,
    f'--name={job.name} must consist of lower-case letters, digits and dashes, and begin with a letter',
  )
  require(
    BUCKET.fullmatch(job.workdir) is not None or job.workdir.startswith('/'),
    f'--workdir={job.workdir} is a relative path, which is a different folder on each machine; use '
    'gs://BUCKET/…, or the absolute path of a folder that all machines see',
  )


def name_from_workdir(workdir: str) -> str:
  """A job name from the last part of the workdir: lower-case letters, digits and dashes."""
  return re.sub(r'[^a-z0-9]+', '-', pathlib.PurePosixPath(workdir).name.lower()).strip('-') or 'tfm'


def run_steps(steps: Sequence[Step], find_program: Callable[[str], str | None]) -> None:
  """Runs the steps one after another.

  Args:
    find_program: name of a program → its path, or None.

  Raises:
    ValueError: before anything runs, if a program is missing; and if a step fails.
  """
  for step in steps:
    require(
      find_program(step.words[0]) is not None,
      f'--run needs {step.words[0]}, which is not on the PATH; without --run the commands are printed, '
      'to be run on a machine that has it',
    )
  for step in steps:
    result = subprocess.run(step.words, input=step.stdin or None, text=True, encoding='utf-8')
    require(result.returncode == 0, f'{step.words[0]} failed with exit status {result.returncode}')
