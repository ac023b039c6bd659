"""The packages of the wheel; everything else about it is in setup.cfg."""

from setuptools import find_packages, setup

# `find:` in setup.cfg takes no further packages, and these two lie outside capeval_core (`package_dir`).
ELSEWHERE = ["capeval_core.hub_cards", "capeval_core.hub_metrics"]

setup(packages=[*find_packages(include=["capeval_core", "capeval_core.*"]), *ELSEWHERE])
