"""Files: volumes in any format, training records, atomic writes."""
