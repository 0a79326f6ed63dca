"""Handlebars as handlebars.js 4.7 understands it with ``{strict: true, noEscape: true}``, without running any code.

Each module knows only those before it: ``_values`` (values and limits), ``_json``, ``_helpers``, ``_lexer`` (text and
tags), ``_parser`` (the expression in a tag), ``_blocks`` (the tree and its whitespace), ``_evaluation``, ``template``.
"""
