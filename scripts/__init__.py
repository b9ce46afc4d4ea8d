"""Small tools of the repository itself."""
