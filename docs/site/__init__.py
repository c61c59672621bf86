"""Builds the site and looks at it: `make docs`, `make test-docs`. Nothing here is a page."""
