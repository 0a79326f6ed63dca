"""Measurements of the product: a refresh against a script written by hand, and how costs grow."""
