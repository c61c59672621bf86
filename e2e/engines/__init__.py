"""Scenarios of single engines, as pods with a real model."""
