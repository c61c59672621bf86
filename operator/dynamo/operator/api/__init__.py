"""`DynamoPipeline`: its types, its rules, and reading it from YAML."""
