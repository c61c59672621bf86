"""Grammars and schemas that constrain an answer: checked, and compiled outside of the worker's process."""
