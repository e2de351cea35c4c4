"""How does a result look? Tables, timelines, bars, listings."""
