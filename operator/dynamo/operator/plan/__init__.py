"""What a pipeline means: its workloads, and how revisions replace each other. Pure; laptops share it."""
