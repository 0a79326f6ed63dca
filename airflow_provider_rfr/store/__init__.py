"""The control store: a small SQL database for what needs leases and row locks; rebuilt from the tables if it is lost."""
