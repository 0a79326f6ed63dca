"""The control store: a small SQL database for what needs leases and row locks; the tables can make it anew."""
