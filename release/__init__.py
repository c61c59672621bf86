"""What a release consists of and how `make release` makes it. How to publish it: docs/contributing/releasing.md."""
