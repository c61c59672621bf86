"""The frontend: OpenAI over HTTP in front of the workers of one or all Dynamo namespaces.

`main.py` is the composition root of the process; `server.py` is the same composition for
callers that bring their own runtime (`dynamo-run in=http`). The path of a request is
`app.py` -> `routes/generate.py` -> `models.py` -> `routing.py` -> `generation.py` -> `stream.py`.
"""
