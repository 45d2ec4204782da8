"""Synthetic EM volumes with known neurites, for the demo and for tests."""
