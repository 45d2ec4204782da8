"""Monitoring of a training: metrics, pictures, timings."""
