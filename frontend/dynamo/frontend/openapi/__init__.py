"""What `/openapi.json` says: routes, bodies and answers of all APIs, as generators of clients and linters read it."""
