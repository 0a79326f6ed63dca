"""Calls to endpoints: when, to which addresses, signed, and what their answers mean."""
