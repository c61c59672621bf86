"""The console: one page with a chat playground, and the models and workers of this frontend."""
