# What type checkers see of `dynamo._core`; `__init__.py` looks the same names up.

from dynamo._core.functions import get_reasoning_parser_names as get_reasoning_parser_names
from dynamo._core.functions import get_tool_parser_names as get_tool_parser_names
from dynamo._core.functions import log_message as log_message
from dynamo.llm import *  # noqa: F403
from dynamo.runtime import *  # type: ignore[assignment]  # noqa: F403
from dynamo.runtime.client import ItemStream as ItemStream

AsyncResponseStream = ItemStream
