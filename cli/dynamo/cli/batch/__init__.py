"""`dynamo-run in=batch:FILE`: every line of a JSON Lines file is asked, every answer is a line of another one.

`input_lines.py` and `output_lines.py` say what lines mean, `ledger.py` keeps output and resumption exact, `runner.py`
asks with bounded concurrency, `run/batch.py` puts them together for `session.py`.
"""
