"""Synchronous data-parallel training of a flood-filling network."""
