"""The relation between two entities: `relate`."""
