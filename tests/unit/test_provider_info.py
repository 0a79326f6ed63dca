"""What Airflow is told of this package. A mistake in it would break ``import airflow`` for a whole deployment."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset

import airflow_provider_rfr
from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS, providers_of_hooks
from airflow_provider_rfr.connections.types import CATALOG_TYPES
from airflow_provider_rfr.get_provider_info import get_provider_info
from airflow_provider_rfr.hooks.api import ApiHook, HttpHook
from airflow_provider_rfr.hooks.lake import LakeHook
from tests.airflow_versions import plugin_import_errors

ROOT = Path(airflow_provider_rfr.__file__).parents[1]
DISTRIBUTION = "airflow-provider-rfr"


def texts(value: Any) -> Iterator[str]:
    """All strings in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def connection_type(name: str) -> dict[str, Any]:
    return next(kind for kind in get_provider_info()["connection-types"] if kind["connection-type"] == name)


def test_it_fits_the_installed_airflows_schema() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_dotted_path_in_it_imports() -> None:
    paths = [text for text in texts(get_provider_info()) if re.fullmatch(r"airflow_provider_rfr(\.\w+)+", text)]
    assert len(paths) >= 5
    for path in paths:
        module, _, name = path.rpartition(".")
        if name[0].isupper():
            assert isinstance(getattr(importlib.import_module(module), name), type), path
        elif name.startswith("get_"):
            assert getattr(importlib.import_module(module), name)(), path
        else:
            importlib.import_module(path)


def test_it_is_a_leaf_for_airflow_calls_it_while_it_configures_itself() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "from airflow_provider_rfr.get_provider_info import get_provider_info; get_provider_info()\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["airflow_provider_rfr"]


def test_the_installed_distribution_points_at_it_and_at_the_plugin() -> None:
    points = {(point.group, point.value) for point in metadata.distribution(DISTRIBUTION).entry_points}
    assert points == {
        ("apache_airflow_provider", "airflow_provider_rfr.get_provider_info:get_provider_info"),
        ("airflow.plugins", "airflow_provider_rfr.plugin:RfrPlugin"),
    }


def test_the_package_name_is_the_distributions_or_airflow_would_refuse_to_start() -> None:
    assert get_provider_info()["package-name"] == metadata.metadata(DISTRIBUTION)["Name"]
    assert metadata.version(DISTRIBUTION) == airflow_provider_rfr.__version__


def test_airflow_finds_the_provider_its_connection_types_and_its_plugin() -> None:
    from airflow.plugins_manager import get_plugin_info

    assert ProvidersManager().providers[DISTRIBUTION].version == airflow_provider_rfr.__version__
    for hook in (ApiHook, LakeHook):
        loaded = providers_of_hooks().hooks[hook.conn_type]
        assert loaded is not None
        assert loaded.connection_testable
        assert loaded.connection_id_attribute_name == hook.conn_name_attr
    assert "rfr" in {plugin["name"] for plugin in get_plugin_info()}
    assert not {path: error for path, error in plugin_import_errors().items() if "rfr" in path}


@pytest.mark.parametrize("hook", [ApiHook, HttpHook, LakeHook])
def test_a_connection_type_has_the_hooks_own_names(hook: type[ApiHook | HttpHook | LakeHook]) -> None:
    described = connection_type(hook.conn_type)
    assert described["hook-class-name"] == f"{hook.__module__}.{hook.__qualname__}"
    assert described["hook-name"] == hook.hook_name


def test_airflows_connection_form_is_what_it_describes() -> None:
    if not AIRFLOW_V_3_2_PLUS:  # Only hooks that are imported while Airflow asks for forms have one.
        ProvidersManager()._cleanup()
    forms = {form.connection_type: form for form in HookMetaService.hook_meta_data()}
    for described in get_provider_info()["connection-types"]:
        form, behaviour = forms[described["connection-type"]], described["ui-field-behaviour"]
        assert form.standard_fields is not None
        standard = form.standard_fields.model_dump(exclude_none=True)
        standard["schema"] = standard.pop("url_schema")
        assert {name for name, shown in standard.items() if shown["hidden"]} == set(behaviour["hidden-fields"])
        for key, told in {"title": "relabeling", "placeholder": "placeholders"}.items():
            assert {name: shown[key] for name, shown in standard.items() if key in shown} == behaviour[told]
        assert set(form.extra_fields or {}) == set(described["conn-fields"])


def test_whatever_may_be_secret_is_typed_unseen() -> None:
    for described in get_provider_info()["connection-types"]:
        for name, field in described["conn-fields"].items():
            is_secret = any(word in name for word in ("secret", "token")) or name == "properties"
            assert (field["schema"].get("format") == "password") == is_secret, name


def test_the_form_offers_the_catalog_types_that_the_hook_takes() -> None:
    assert tuple(connection_type("rfr_lake")["conn-fields"]["catalog_type"]["schema"]["enum"]) == CATALOG_TYPES


def test_airflow_knows_the_scheme_of_our_assets() -> None:
    assert Asset(uri="rfr://rfr_lake_default/raw/orders").uri == "rfr://rfr_lake_default/raw/orders"
    assert "rfr" in providers_of_hooks().asset_uri_handlers
