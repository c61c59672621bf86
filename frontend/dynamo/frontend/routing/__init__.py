"""Which models there are, which worker takes a request, and which requests wait for one."""
