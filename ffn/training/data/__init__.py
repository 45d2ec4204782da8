"""From records to batches of examples."""
