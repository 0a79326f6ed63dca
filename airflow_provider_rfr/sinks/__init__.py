"""Exports that continue across migrations: what was sent is not sent again, what came meanwhile is sent once."""
