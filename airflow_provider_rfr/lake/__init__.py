"""Catalogs, tables, schemas and files: everything that touches PyIceberg's API, and nothing else does.

Modules are imported by name: a task of a round needs :mod:`.files` alone, without PyIceberg's second of imports.
"""
