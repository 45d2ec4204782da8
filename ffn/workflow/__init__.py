"""Turn a configuration into jobs."""
