"""The frontend: OpenAI over HTTP in front of the workers of one or all Dynamo namespaces.

`main.py` is the composition root of the process; `server.py` is the same composition for
callers that bring their own runtime (`dynamo-run in=http`). The path of a request is
`app.py` -> `routes/generate.py` -> `routing/model_pool.py` -> `generation/choice.py` -> `routing/model_set.py` ->
`responses/stream.py`.
"""
