"""What ``make demo`` runs: a sample API, a source definition for it, and the demo itself."""
