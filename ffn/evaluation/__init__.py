"""Scores against the truth, a watershed to compare with, and the report."""
