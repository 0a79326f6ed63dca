"""Declarations in YAML and Python become one immutable catalog."""
