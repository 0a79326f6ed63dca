"""Catalogs, tables, schemas and files: the only package that uses PyIceberg.

Modules are imported one by one: a task of a round needs only :mod:`.files`, without PyIceberg's second of imports.
"""
