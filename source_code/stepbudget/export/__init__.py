"""From a file on disk to typed tables, once."""
