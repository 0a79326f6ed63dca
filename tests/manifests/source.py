"""A manifest made ready for a made-up API: references resolved, addresses on loopback, a configuration guessed from the
specification, and in each request the name of the stream that sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from airflow_provider_rfr.streams.airbyte.spec import sample_config
from tests.manifests.api import FEW, TAG, MadeUpApi, MadeUpEndpoint
from tests.manifests.paging import place, rendered

_ADDRESSES: Final = frozenset({"url_base", "url", "path", "api_url", "token_refresh_endpoint"})


class Loader(yaml.CSafeLoader):
    """Dates stay text, as where the product reads a manifest."""


Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def prepared(manifest: Mapping[str, Any], api: MadeUpApi) -> dict[str, Any]:
    """Return the manifest for this API. Budgets are left out: the API has no limits."""
    from airbyte_cdk.sources.declarative.parsers.manifest_reference_resolver import ManifestReferenceResolver

    resolved = ManifestReferenceResolver().preprocess_manifest(dict(manifest))
    # A copy in which no two places share a mapping.
    document: dict[str, Any] = json.loads(json.dumps(resolved, default=str))
    document.pop("definitions", None)
    document.pop("api_budget", None)
    _localize({name: part for name, part in document.items() if name != "spec"}, api.url)
    return {**document, "spec": _local_value(document["spec"], api.url)} if "spec" in document else document


def serve(manifest: dict[str, Any], config: Mapping[str, Any], api: MadeUpApi, *, few_parents: bool = False) -> None:
    """Have the API answer each stream of a prepared manifest, parents too.

    :param few_parents: give each page of a parent few records, each of which is a slice in each window of its children
    """
    streams = [node for node in nodes_of({**manifest, "spec": None}) if isinstance(node.get("retriever"), dict)]
    keys: dict[int, list[list[str]]] = {}
    for node in streams:
        for parent in [
            candidate
            for candidate in nodes_of(node)
            if "parent_key" in candidate and isinstance(candidate.get("stream"), dict)
        ]:
            key = str(rendered(parent["parent_key"], parent.get("$parameters", {}), config))
            extra = [[str(part) for part in path] for path in parent.get("extra_fields") or []]
            keys.setdefault(id(parent["stream"]), []).extend([re.split(r"[./]", key), *extra])
    for number, node in enumerate(streams):
        requester = node["retriever"].get("requester")
        headers = (requester or {}).get("request_headers") or {}
        if isinstance(requester, dict) and isinstance(headers, dict):
            tag = f"{number}"
            requester["request_headers"] = {**headers, TAG: f"stream-{tag}"}
            most = FEW if few_parents and id(node) in keys else None
            api.endpoints[f"stream-{tag}"] = MadeUpEndpoint(node, keys.get(id(node), []), config, most)
    for node in nodes_of(manifest):
        if isinstance(node.get("session_token_path"), list):
            place(api.credentials, node["session_token_path"], "made-up-token")
        if isinstance(node.get("access_token_name"), str):
            api.credentials[node["access_token_name"]] = "made-up-token"


def nodes_of(value: Any) -> Iterator[dict[str, Any]]:
    """List all mappings in a manifest, but not those of schemas."""
    if isinstance(value, dict):
        yield value
        value = [item for name, item in value.items() if name not in ("schema", "connection_specification")]
    if isinstance(value, list):
        for item in value:
            yield from nodes_of(item)


def _localize(manifest: Mapping[str, Any], url: str) -> None:
    for node in nodes_of(dict(manifest)):
        for name in _ADDRESSES & node.keys():
            if isinstance(node[name], str):
                node[name] = local(node[name], url)


def local(text: str, url: str) -> str:
    """``https://api.example/v1`` as ``http://127.0.0.1:1234/api.example/v1``; templates too."""
    return re.sub(r"https?://(?!127\.0\.0\.1)", f"{url}/", text)


def guessed(manifest: Mapping[str, Any], url: str, *, all_fields: bool) -> dict[str, Any]:
    """Return a configuration that the specification accepts.

    :param all_fields: also those that are neither required, nor have a default, nor begin the time to read
    """
    spec = manifest.get("spec") or {}
    values = sample_config(spec.get("connection_specification") or {}, all_fields=all_fields)
    addresses = [str(node[name]) for node in nodes_of(dict(manifest)) for name in _ADDRESSES & node.keys()]
    begins = re.compile(r"\s*\{\{\s*config(?:\.|\[['\"]|\.get\(['\"])(\w+)")
    for name in {match[1] for match in map(begins.match, addresses) if match}:
        value = values.get(name)
        if isinstance(value, str) and "://" not in value:
            values[name] = f"https://{value}"
    return {name: _local_value(value, url) for name, value in values.items()}


def _local_value(value: Any, url: str) -> Any:
    if isinstance(value, str):
        return local(value, url)
    if isinstance(value, dict):
        return {name: _local_value(item, url) for name, item in value.items()}
    return [_local_value(item, url) for item in value] if isinstance(value, list) else value
