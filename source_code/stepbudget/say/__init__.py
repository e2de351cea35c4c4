"""How is an answer written? As text, as JSON, on the command line."""
