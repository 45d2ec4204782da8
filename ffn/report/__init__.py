"""Output for people: the report page, its pictures and tables, and descriptions of files."""
