"""`dynamo-run`: its grammar, settings, and what it does with an engine."""
