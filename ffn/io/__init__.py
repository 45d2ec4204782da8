"""Files: volumes of any format, training records, and how they are written."""
