"""What several labs share, a module a subject."""
