"""A seeded campaign: whole refreshes, while their processes are killed and stopped and their API misbehaves."""
