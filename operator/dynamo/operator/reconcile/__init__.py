"""One reconcile: from what a pipeline wants and what is there to changes, status and events."""
