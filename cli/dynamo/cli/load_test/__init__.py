"""Measurements of any OpenAI-compatible server under load: `dynamo bench`."""
