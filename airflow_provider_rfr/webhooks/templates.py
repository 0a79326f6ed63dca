"""Templates of payloads: Handlebars, strict, without HTML escaping, and without running any code.

What a template means is what handlebars.js 4.7 makes of it with ``{strict: true, noEscape: true}``, except where
``docs/webhooks_templates.md`` says otherwise. How it is done is told in
:mod:`airflow_provider_rfr.webhooks.handlebars`.

Every failure is a :class:`~airflow_provider_rfr.exceptions.webhooks.TemplateError` with line and column, which names
variables and never says what they hold. A template has at most 64 KB, 32 blocks and 32 parentheses inside each other;
rendering takes at most 200,000 steps and gives at most 1 MB.
"""

from __future__ import annotations

from airflow_provider_rfr.exceptions.webhooks import TemplateError
from airflow_provider_rfr.webhooks.handlebars.template import Template, compile_template, render
from airflow_provider_rfr.webhooks.payload_templates import PayloadTemplate, compile_payload, render_payload

__all__ = [
    "PayloadTemplate",
    "Template",
    "TemplateError",
    "compile_payload",
    "compile_template",
    "render",
    "render_payload",
]
