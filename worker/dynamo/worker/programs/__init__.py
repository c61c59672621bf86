"""`python -m dynamo.vllm|sglang|trtllm|mocker`: NVIDIA Dynamo's worker programs, as flags of ours.

Each is the same worker with the engine of its name. `gpu_engines.py` and `mocker.py` say what their flags become,
`engine_flags.py` what happens to flags that belong to the engine itself, `legacy_flags.py` what has no meaning here.
"""
