"""Puts configs/ and experiments/ into wheels and sdists, as tfm.configs and tfm.experiments.

setup.cfg, which says everything else, either finds packages or lists them; these two are no packages to find.
"""

from setuptools import find_packages, setup


FOLDERS = 'configs', 'experiments'

setup(
  packages=[*find_packages(include=['tfm', 'tfm.*']), *(f'tfm.{folder}' for folder in FOLDERS)],
  package_dir={f'tfm.{folder}': folder for folder in FOLDERS},
)
