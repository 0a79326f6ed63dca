"""Handlebars as handlebars.js 4.7 understands it with ``{strict: true, noEscape: true}``, without running any code.

Each module knows only those before it: ``values`` (with limits and helpers), ``_parser`` (tags, and the expression in a
tag), ``_blocks`` (the tree and its whitespace), ``render``.
"""
