"""Training data: from records to augmented examples."""
