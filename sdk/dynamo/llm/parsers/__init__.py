"""What a model's answer holds beside its text: thoughts and tool calls. Pure: pieces of text in, events out.

`parser_names.py` knows the parsers by their names, `factory.py` makes one for a request; `parser.py`, `harmony.py` and
`forced_calls.py` are the three state machines. None of them does I/O, and where the text was cut never shows in what is
said.
"""
