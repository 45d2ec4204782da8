"""The network and its files."""
