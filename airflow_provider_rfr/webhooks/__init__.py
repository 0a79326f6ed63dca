"""Webhooks for published commits: configuration, templates, outbox, delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr import lazy_exports
from airflow_provider_rfr.exceptions import TemplateError

if TYPE_CHECKING:
    from airflow_provider_rfr.webhooks.handlebars import render

__all__ = ["TemplateError", "render"]

__getattr__ = lazy_exports(__name__, {"handlebars": ("render",)})
