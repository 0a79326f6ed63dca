"""Handlebars as handlebars.js 4.7 understands it with ``{strict: true, noEscape: true}``, without running any code.

Each module knows only those before it: ``values`` (and limits), ``json_mode``, ``_helpers``, ``_lexer`` (text and
tags), ``_parser`` (the expression in a tag), ``_blocks`` (the tree and its whitespace), ``_evaluation``, ``template``.
"""
