"""A method, a generator, a metric and a data source for Vitrail; pyproject.toml registers them as entry points."""
