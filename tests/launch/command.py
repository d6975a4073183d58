"""Runs `tfm` in this process."""

from tfm.commands import cli


def tfm(capsys, *argv):
  status = cli.main(argv)
  out, err = capsys.readouterr()
  return status, out, err
