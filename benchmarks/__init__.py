"""Measurements of the whole product against what a person would write by hand."""
