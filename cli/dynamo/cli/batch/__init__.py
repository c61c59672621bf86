"""`dynamo-run in=batch:FILE`: every line of a JSON Lines file is asked, every answer is a line of another one.

`entries.py` and `answers.py` say what lines mean, `ledger.py` keeps output and resumption exact, `running.py` asks
with bounded concurrency, `work.py` puts them together for `session.py`.
"""
