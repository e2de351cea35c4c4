"""How is an answer shown? Once, for notebooks, pages and terminals alike."""
