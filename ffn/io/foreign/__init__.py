"""Volumes in foreign formats; axes are zyx for every source."""
