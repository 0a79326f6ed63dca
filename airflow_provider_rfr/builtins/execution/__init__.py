"""Execution of a plan: observe the catalog, do each journalled step once, and write the registry at the end."""
