"""How does an answer look? As text, as HTML for a notebook or a page, as Markdown for a pull request."""
