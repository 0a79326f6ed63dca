"""Exports that continue across migrations: rows that were sent are not sent again, and each new row is sent once."""
