"""Bundles: charts, images, models and wheels in one archive that a machine without a network can check and use."""
