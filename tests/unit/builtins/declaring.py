"""Declarations in files, as the tests of the loader write them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec
from airflow_provider_rfr.exceptions import DeclarationError
from tests.profile import examples

PATIENT = examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""For machines that are busy with something else."""


def write(folder: Path, **files: str) -> Path:
    """A folder with these YAML files in it; ``__`` in a name is a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return folder


def load(*sources, **options) -> CatalogSpec:
    """What is declared there, and nothing else."""
    return load_objects(*sources, **{"project": "acme", "version": "1.0", "entry_points": False, **options})


def loaded(folder: Path, text: str, **options) -> dict[str, BuiltinObject]:
    """The objects that a text declares, by name."""
    return load(write(folder, objects=text), **options).by_key()


def problems(folder: Path, text: str, **options) -> list[str]:
    """What is wrong with a text, without the file's name."""
    with pytest.raises(DeclarationError) as refused:
        loaded(folder, text, **options)
    return [str(problem).replace(str(folder / "objects.yaml"), "") for problem in refused.value.problems]
