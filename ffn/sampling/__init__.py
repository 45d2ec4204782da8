"""Where training may look: membranes, partitions, coordinates, records."""
