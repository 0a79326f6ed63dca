"""Entry points that ``spark-submit`` runs."""
