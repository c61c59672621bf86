"""Measure which files a request and a spec change run through; `python -m docs.generate.walked` writes them down."""
