"""The choices of one answer: sent to workers, migrated, retried and timed."""
