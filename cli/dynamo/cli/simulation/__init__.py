"""Hours of traffic in seconds: traces, the router's own code, the mock engine without its clock. Pure but for files."""
