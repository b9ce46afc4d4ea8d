"""HTML pages and charts that commands write."""
