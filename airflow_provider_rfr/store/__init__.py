"""The control store: a small SQL database for leases, row locks, registries and audits."""
