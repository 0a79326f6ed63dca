"""Checks of built-in objects across deploys."""
