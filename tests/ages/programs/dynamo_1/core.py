"""As of 2026: the native module by name and by attribute; what isn't there says what to use instead."""

import logging
import sys

import dynamo._core as _core
from dynamo._core import Context, ModelInput, WorkerType, get_tool_parser_names, log_message, lora_name_to_id
from dynamo.llm import RouterMode
from dynamo.runtime import DistributedRuntime

heavy = [name for name in sys.modules if name.startswith(("grpc", "nats", "tokenizers", "fastapi", "uvicorn"))]
print("loaded", heavy)
print("same", _core.DistributedRuntime is DistributedRuntime, _core.RouterMode is RouterMode)
print("names", Context(id="7").id(), ModelInput.Tokens.name, WorkerType.Decode.name, lora_name_to_id("abc"))
print("parsers", "hermes" in get_tool_parser_names(), "qwen3" in _core.get_reasoning_parser_names())
try:
    from dynamo._core import VirtualConnectorClient  # type: ignore[attr-defined]  # noqa: F401
except ImportError as error:
    print("instead", error)
try:
    _core.LoRADownloader()
except _core.InvalidArgument as error:
    print("instead", error)
print("nothing", hasattr(_core, "Nonsense"), "Client" in dir(_core))
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(filename)s:%(lineno)d %(message)s")
log_message("warn", "a line of a native library", "native", "lib.rs", 7)
