"""Queries of built-in objects, read with sqlglot."""
