"""The commands that look after an installation: what is wrong with it, and what it left behind."""
