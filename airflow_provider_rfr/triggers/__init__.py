"""Triggers, which run in the triggerer."""
