"""Every code of an error that the frontend answers with: what it says, why, and what helps.

Tests hold that no code of the source is missing here, and that the frontend or the runtime has the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Error(NamedTuple):
    """A code; `…` in a message stands for what differs."""

    statuses: tuple[int, ...]
    message: str
    """As it is sent; empty where each case has a sentence of its own."""
    cause: str
    remedy: str


_REQUEST: Final[Mapping[str, Error]] = {
    "invalid_json": Error(
        (400,), "The request body is not valid JSON: …",
        "The body isn't JSON, isn't UTF-8, or is nested too deeply. The message has the byte where reading ended.",
        "Send one JSON object, encoded by a JSON library.",
    ),
    "invalid_string": Error(
        (400,), "The request body holds half of a surrogate pair (…) at byte …",
        "A string holds half of a character outside the basic plane, usually because text was cut between the halves.",
        "Cut text by characters, not by UTF-16 units.",
    ),
    "invalid_type": Error(
        (400,), "", "A field has a value of another JSON type than the API takes; `param` names the field.",
        "Send the type that the message names.",
    ),
    "invalid_value": Error(
        (400,), "", "A field, header or combination of fields is outside what the API takes; `param` names it.",
        "Change the value as the message says.",
    ),
    "missing_required_parameter": Error(
        (400,), "…: this field is required.", "A required field is missing; `param` names it.", "Add the field.",
    ),
    "unknown_parameter": Error(
        (400,), "Unknown field(s): …",
        "The body has fields that the API doesn't know, and the frontend runs with `--strict-fields`.",
        "Correct the spelling (the message suggests one), remove the field, or run without the flag.",
    ),
    "unsupported_parameter": Error(
        (400,), "", "The API has this field, but this server or this model doesn't support it; `param` names it.",
        "Remove the field, or do what the message suggests.",
    ),
    "unsupported_value": Error(
        (400,), "", "The field is supported, but not with this value; `param` names it.",
        "Use a value that the message names.",
    ),
    "thread_unsupported_request": Error(
        (400,), "thread: conversations aren't held by this server; send all messages without it.",
        "A request to `/v1/messages` asks the server to hold its conversation. Anthropic's SDK then continues without.",
        "Send the whole conversation, without `thread`.",
    ),
    "thread_not_found": Error(
        (400,), "thread: conversations aren't held by this server; send all messages without it.",
        "A request to `/v1/messages` continues a conversation that another server has begun.",
        "Send the whole conversation, without `thread`.",
    ),
    "too_many_values": Error(
        (400,), "The request body has more … than the … that are taken; split the request.",
        "The body has more messages, values or strings than any model has a use for.", "Split the request.",
    ),
    "invalid_image": Error(
        (400,),
        "…: this image can't be read: ….",
        "An image isn't base64 of a format that is supported, or is damaged.",
        "Send a data URL of a PNG, JPEG or WebP image.",
    ),
    "invalid_image_url": Error(
        (400,),
        "…: this image can't be fetched: ….",
        "The server of the image's address doesn't answer, or addresses aren't allowed here.",
        "Send the image as a data URL.",
    ),
    "image_too_large": Error(
        (400,),
        "…: the images of this request are larger than is taken (--image-max-mb).",
        "The images have more bytes or pixels than one request may.",
        "Send smaller images, or raise the limit.",
    ),
    "too_many_images": Error(
        (400,),
        "messages: the request has … images: at most … are taken (--image-max-count).",
        "The request has more images than `--image-max-count`.",
        "Send fewer images, or raise the limit.",
    ),
    "invalid_encoding": Error(
        (400,),
        "The request body can't be read as …: ….",
        "The body says that it is gzip or zstd, and isn't, or is damaged.",
        "Compress the body as gzip or zstd, or send it as it is.",
    ),
    "unsupported_content_encoding": Error(
        (415,),
        "Content-Encoding … is not supported; send …, or the body as it is.",
        "The body is compressed in a way that the frontend can't decode.",
        "Send gzip or zstd, or the body as it is.",
    ),
    "context_length_exceeded": Error(
        (400,), "", "The prompt and the requested tokens don't fit into the model's context; the message has both.",
        "Shorten the prompt or lower `max_tokens`. If the model allows more, raise the worker's `--context-length`.",
    ),
    "conversation_too_long": Error(
        (400,), "previous_response_id: the conversation has more than …; send the part that matters.",
        "The stored conversation of a Responses request has more items or bytes than one request may.",
        "Send the part that matters in `input`, without `previous_response_id`.",
    ),
    "previous_response_not_found": Error(
        (400,),
        "previous_response_id: … isn't stored here; it was deleted, has expired, or the frontend that had it is gone.",
        "A response is kept in the memory of the frontend that made it, for `--stored-responses-ttl-secs`.",
        "Send the conversation in `input`.",
    ),
    "response_in_progress": Error(
        (400,),
        "previous_response_id: that response still runs in the background; wait until it is over.",
        "The request continues a background response that isn't complete.",
        "Poll `GET /v1/responses/ID` until its status is `completed`.",
    ),
    "bad_http": Error(
        (400,), "This can't be read as a request of HTTP/1.1.",
        "What was sent isn't HTTP/1.1, for example TLS on a plain port.",
        "Check the scheme (http or https) and the port.",
    ),
    "unknown_method": Error(
        (501,), "No route here has the request's method.", "The method isn't one that this HTTP server knows.",
        "Methods are written in capitals; `/openapi.json` lists those of each route.",
    ),
    "url_too_long": Error(
        (414,), "The request's URL is too long: it and the headers may have … bytes.",
        "The URL is longer than the frontend reads.", "Send what is long in the body.",
    ),
    "unsupported_media_type": Error(
        (415,), "Content-Type … is not supported; send application/json.", "The content type isn't JSON.",
        "Send the header `Content-Type: application/json`.",
    ),
    "headers_too_large": Error(
        (431,), "The request's headers are larger than … bytes.", "The headers are larger than the frontend reads.",
        "Send fewer or shorter headers; cookies are the usual cause.",
    ),
    "request_too_large": Error(
        (413,), "The request body is larger than the limit of …",
        "The body has more bytes than `--body-limit-mb` (4 by default).",
        "Send less, or raise the limit; `--body-budget-mb` bounds the memory of all bodies together.",
    ),
    "request_timeout": Error(
        (408,), "The request's … did not arrive in time.",
        "The client sent its headers or its body too slowly, or stopped.",
        "Check the client and the network. `--header-timeout-secs` and `--body-timeout-secs` set the limits.",
    ),
    "takes_workers_down": Error(
        (422,), "", "Two workers died while they had this request, so it isn't given to a third one.",
        "Read the workers' logs, and report the request to the engine's developers.",
    ),
}  # fmt: skip
_ACCESS: Final[Mapping[str, Error]] = {
    "invalid_api_key": Error(
        (401,), "Incorrect API key provided. Ask whoever runs this server for one that is known here.",
        "The frontend requires a key (`--api-keys-file`, `frontend.apiKeys`), and the request has none that it knows.",
        "Send the header `Authorization: Bearer KEY`, or `x-api-key: KEY`.",
    ),
    "not_local": Error(
        (403,), "Thresholds can be changed …, or with --open-admin-api.",
        "An administrative route was called from another machine, through a proxy or from a web page.",
        "Call it on the frontend's machine, for example by `kubectl port-forward`, or start with `--open-admin-api`.",
    ),
    "not_alone": Error(
        (409,), "With --workers, thresholds are set by flags: this process can't change those of the others.",
        "The frontend runs as several processes, and thresholds are set for one process.",
        "Set thresholds by flags, or run with `--workers 1`.",
    ),
    "unknown_url": Error(
        (404,), "Unknown route: … …", "There is no such route.", "Check the path; `/openapi.json` lists all routes.",
    ),
    "method_not_allowed": Error(
        (405,), "Method … is not allowed for …; use ….", "The route exists, but not with this method.",
        "Use the method that the message and the header `Allow` name.",
    ),
    "model_not_found": Error(
        (404,), "The model '…' does not exist.…",
        "No worker serves a model of this name, or the model doesn't do what this route asks (chat, embeddings).",
        "`curl HOST/v1/models` lists the names. The name is `model.name` or `--model-name`, else the file's name.",
    ),
    "response_not_found": Error(
        (404,), "There is no response … here: it was never stored, was deleted, or has expired.",
        "A response is kept in the memory of the frontend that made it, for `--stored-responses-ttl-secs`.",
        "Create the response anew.",
    ),
    "request_not_found": Error(
        (404,), "This frontend knows no such request: it ended more than ten minutes ago, …",
        "Each frontend process keeps its own last requests, `--request-log-size` of them; `/requests/ID` asks for one.",
        "Ask the frontend that answered it; with `--workers`, its system port.",
    ),
    "conversation_not_found": Error(
        (404,), "There is no conversation … here: it was never made, was deleted, or has expired.",
        "A conversation is kept in the memory of the frontend that made it, for `--stored-responses-ttl-secs`.",
        "Make the conversation anew.",
    ),
    "item_not_found": Error(
        (404,), "input[…]: item … isn't stored here; send the item itself.",
        "The request refers to an item of an earlier response that isn't stored.", "Send the item itself in `input`.",
    ),
}  # fmt: skip
_OVERLOAD: Final[Mapping[str, Error]] = {
    "rate_limit_exceeded": Error(
        (429,), "Concurrency limit of one caller reached: … of … requests in flight. Retry when one ends.",
        "This caller has as many requests in flight as `--max-requests-per-client` allows.",
        "Wait for one to end. A gateway that sets `x-tenant-id` makes its clients separate callers.",
    ),
    "frontend_full": Error(
        (503,), "This frontend has … requests already; try again in a moment.",
        "The frontend process has `--max-concurrent-requests` in flight.", "Retry; add frontends or `--workers`.",
    ),
    "model_full": Error(
        (503,), "Model '…' has … requests here already; try again in a moment.",
        "The model has `--max-requests-per-model` in flight in this frontend.",
        "Retry; add workers, then raise the limit.",
    ),
    "connections": Error(
        (503,), "This frontend has … connections already; try again in a moment.",
        "The frontend process has `--max-connections` open.",
        "Reuse connections in the client; add frontends or raise the limit (and that of open files).",
    ),
    "bodies": Error(
        (503,), "This frontend reads … MB … already; try again in a moment.",
        "More bytes of large bodies arrive at once than `--body-budget-mb`.", "Retry, or raise the budget.",
    ),
    "large_requests": Error(
        (503,), "Too many large requests wait to be read here; try again in a moment.",
        "More large requests arrive than this process can parse and tokenize in time.",
        "Retry; add frontends or `--workers`.",
    ),
    "busy": Error(
        (503,), "Every worker of model '…' is over its busy threshold; try again in a moment.",
        "The load of every worker is over a threshold (`--active-decode-blocks-threshold`, `/busy_threshold`).",
        "Add workers (`kubectl scale dp/NAME --replicas=N`), or raise the thresholds.",
    ),
    "queue_full": Error(
        (503,), "… requests wait for a worker of model '…' already; try again in a moment.",
        "As many requests as `--router-queue-limit` wait for a worker of this model.",
        "Add workers (`kubectl scale dp/NAME --replicas=N`), or raise the limit if clients can wait.",
    ),
    "queue_timeout": Error(
        (503,), "No worker of model '…' had room for the request within … s; try again in a moment.",
        "The request waited `--router-queue-timeout-secs` for a worker with room.",
        "Add workers, or raise the limit if clients can wait.",
    ),
    "stored_full": Error(
        (503,),
        "There is no room for what this response was asked; try again in a moment.",
        "The memory for stored responses is used up by background responses.",
        "Retry when some are complete, or raise `--stored-responses-max-mb`.",
    ),
    "stored_elsewhere": Error(
        (503,),
        "Other frontends take too long to say what they have stored; try again in a moment.",
        "Another frontend has the stored response, and doesn't answer in time.",
        "Retry. If it lasts, check that frontend, and NATS.",
    ),
    "full": Error(
        (503,), "", "Every worker's engine has no room: its own queue is full.",
        "Add workers, or raise the engine's queue (`max_waiting`) if clients can wait.",
    ),
}  # fmt: skip
_WORKERS: Final[Mapping[str, Error]] = {
    "no_instances": Error(
        (503,), "No worker serves the model '…' now; try again in a moment.",
        "The model has no worker: none has registered, all have stopped, or the one that the request names is gone.",
        "Look at the workers (`dynamo ps`, `kubectl get dp`). `--worker-wait-timeout-secs` lets requests wait for one.",
    ),
    "model_loading": Error(
        (503,), "The model '…' is being loaded; try again in a moment.",
        "The frontend loads the model's tokenizer and template.", "Retry after the seconds in `Retry-After`.",
    ),
    "model_failed": Error(
        (503,), "The model '…' can't be loaded here: …",
        "The frontend can't load the model's tokenizer or template. The message has the reason.",
        "Correct the model's files or name; restart the worker.",
    ),
    "unreachable": Error(
        (503,), "", "The chosen worker, or NATS, doesn't answer.", "Retry. If it lasts, check NATS and the workers.",
    ),
    "timeout": Error(
        (503,), "", "The chosen worker didn't accept the request in time.",
        "Retry. If it lasts, the worker's process hangs: read its log.",
    ),
    "draining": Error(
        (503,), "", "The chosen worker is shutting down, and no other one was there.", "Retry; add a second worker.",
    ),
    "shutdown": Error(
        (500, 503), "This frontend leaves, and its … s for running requests have passed; try again in a moment.",
        "The frontend (503) or the engine (500) stopped before the answer was complete.",
        "Retry. Raise `gracefulShutdownTimeoutSeconds` above the longest stream.",
    ),
    "viewers": Error(
        (503,), "", "As many browsers look at the console as it serves at once, or as many of this address.",
        "Close a page that shows it, or try again in a moment.",
    ),
    "worker_lost": Error(
        (500,), "", "The worker died while it streamed, and the request could not move to another one.",
        "Read why the worker died (`dynamo logs`). `--migration-limit` lets requests move to another worker.",
    ),
    "incomplete": Error(
        (500,), "", "Part of the stream was lost between worker and frontend.",
        "Retry. `--migration-limit` lets such requests continue on another worker.",
    ),
    "version": Error(
        (500,), "", "Frontend and worker speak different versions of the protocol.",
        "Run the same release on both sides.",
    ),
}  # fmt: skip
_ENGINES: Final[Mapping[str, Error]] = {
    "engine_error": Error(
        (500,), "", "The engine failed on this request; the message is the engine's.",
        "Read the worker's log at the request's `x-request-id`.",
    ),
    "rejected_by_engine": Error(
        (400,), "", "A Python engine raised `HttpError` with this status, which can be any from 400 to 499.",
        "Do what the engine's message says.",
    ),
    "deadline": Error(
        (504,), "", "The request's own time limit passed (`x-request-timeout-ms`, `--request-timeout-secs`).",
        "Raise the limit, ask for fewer tokens, or add workers.",
    ),
    "first_token_timeout": Error(
        (504,), "no token within … s: the time limit for a first token passed",
        "The worker sent no first token within `--first-token-timeout-secs`.",
        "Read the worker's log; raise the limit for long prompts.",
    ),
    "stream_timeout": Error(
        (504,), "no token for … s: the time limit between two tokens passed",
        "The worker's stream brought no token for `--backend-stream-timeout-secs`.", "Read the worker's log.",
    ),
    "cancelled": Error(
        (499,), "", "The client left before the answer was complete. Only logs and metrics show it.", "Nothing.",
    ),
    "internal_error": Error(
        (500,),
        "The server had an error while processing the request; its log has the cause under this x-request-id.",
        "A defect of the frontend.", "Read the frontend's log at that id, and report the defect.",
    ),
    "unknown": Error(
        (500,), "", "The worker reports an error that this frontend doesn't know, for example of a newer version.",
        "Read the worker's log; run the same release on both sides.",
    ),
}  # fmt: skip

GROUPS: Final[Mapping[str, Mapping[str, Error]]] = {
    "The request": _REQUEST,
    "Access and names": _ACCESS,
    "Too much load": _OVERLOAD,
    "Workers": _WORKERS,
    "Engines, time limits, defects": _ENGINES,
}
CODES: Final[Mapping[str, Error]] = {code: error for group in GROUPS.values() for code, error in group.items()}
