"""The figures of the text, drawn by code."""
