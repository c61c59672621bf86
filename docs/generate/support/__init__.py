"""Writes the support matrix: engine by feature, with the test that shows it."""
