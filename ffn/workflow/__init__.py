"""What turns a configuration into jobs."""
