"""Webhooks for published commits: configuration, templates, obligations, delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.exceptions.webhooks import TemplateError
    from airflow_provider_rfr.webhooks.templates import render

__all__ = ["TemplateError", "render"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: parsing a DAG needs none of them."""
    if name == "render":
        from airflow_provider_rfr.webhooks.templates import render

        return render
    if name == "TemplateError":
        from airflow_provider_rfr.exceptions.webhooks import TemplateError

        return TemplateError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
