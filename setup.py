"""The part of the packaging that setup.cfg cannot say: `metrics/` ships inside the package."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["capeval_core", "capeval_core.*"]), "capeval_core.hub_metrics"])
