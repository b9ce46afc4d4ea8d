"""HTML pages, charts and Markdown tables of all commands, from plain values."""
