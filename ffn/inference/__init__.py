"""Flood filling of one subvolume."""
