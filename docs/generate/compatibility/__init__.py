"""docs/reference/compatibility/: every flag, form, variable and endpoint of NVIDIA Dynamo, with its state here.

`nvidia_flags.py`, `forms.py`, `variables.py` and `routes.py` name what NVIDIA Dynamo has; `page.py` asks the code for
the state of each and writes the page: `make generate`.
"""
