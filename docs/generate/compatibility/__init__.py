"""docs/compatibility.md: every flag, form, variable and endpoint of the original, with its state here.

`originals.py`, `forms.py`, `variables.py` and `routes.py` name what the original has; `page.py` asks the code for the
state of each and writes the page: `make generate`.
"""
