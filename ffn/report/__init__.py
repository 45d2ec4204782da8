"""What is told to a person: pages, pictures, tables, descriptions."""
