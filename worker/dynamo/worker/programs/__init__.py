"""`python -m dynamo.vllm|sglang|trtllm|mocker`: the original's worker programs, as flags of ours.

Each is the same worker with the engine of its name. `engines.py` and `mocker.py` say what their flags become,
`passing.py` what happens to flags that belong to the engine itself, `former.py` what has no meaning here.
"""
