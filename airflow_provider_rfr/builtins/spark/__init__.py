"""SQL on the lake's own catalog by Spark with Iceberg's runtime: views, and the rows of queries as data files."""
