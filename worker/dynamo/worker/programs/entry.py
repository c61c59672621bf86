"""The entry points of NVIDIA Dynamo's worker programs: their flags, then the worker's own `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from dynamo.runtime.errors import DynamoException
from dynamo.runtime.process.legacy_flags import FlagCommand, modern
from dynamo.runtime.process.settings import command
from dynamo.worker.programs import gpu_engines, legacy_flags, mocker
from dynamo.worker.programs.engine_flags import divide, engine_arguments
from dynamo.worker.programs.gpu_engines import EngineProgramSettings
from dynamo.worker.programs.mocker import MockerSettings
from dynamo.worker.settings import WorkerSettings

FORMER: Final = {
    "mocker": legacy_flags.MOCKER,
    "vllm": legacy_flags.VLLM,
    "sglang": legacy_flags.SGLANG,
    "trtllm": legacy_flags.TRTLLM,
}
TITLES: Final = {
    "mocker": "Serve simulated engines: scheduling, KV blocks and timing of a real one.",
    "vllm": "Serve a model with vLLM.",
    "sglang": "Serve a model with SGLang.",
    "trtllm": "Serve a model with TensorRT-LLM.",
}
GROUPS: Final = {
    "Model": ("model", "served_", "chat_template", "context_length", "max_model_len", "dyn_"),
    "Where it serves": ("endpoint", "namespace", "discovery_", "num_workers", "migration_"),
    "Health and leaving": ("system_", "health_", "graceful_"),
}
_CONNECTIONS: Final = (
    "etcd and NATS are found by ETCD_ENDPOINTS and NATS_SERVER. When frontends can route here, one line 'ready {…}' is "
    "printed. Flags of older versions are understood: docs/reference/compatibility/index.md."
)
_EXAMPLES: Final = {
    "mocker": "  python -m dynamo.mocker --model-path Qwen/Qwen3-0.6B --speedup-ratio 10\n"
    "  python -m dynamo.mocker --num-workers 8 --disaggregation-mode decode",
    "vllm": "  python -m dynamo.vllm --model Qwen/Qwen3-0.6B --max-model-len 4096 --gpu-memory-utilization 0.8\n"
    "  python -m dynamo.vllm --model Qwen/Qwen3-0.6B --disaggregation-mode prefill",
    "sglang": "  python -m dynamo.sglang --model-path Qwen/Qwen3-0.6B --tp 2 --mem-fraction-static 0.8",
    "trtllm": "  python -m dynamo.trtllm --model-path Qwen/Qwen3-0.6B --extra-engine-args llm.yaml",
}
Run = Callable[[WorkerSettings], Any]


class EngineCommand(FlagCommand):
    """A program whose unknown flags are its engine's."""

    short: dict[str, str]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, notices = modern(args, self.former)
        mine, others = divide(words, own_flags(self))
        ctx.obj = engine_arguments(others, self.short)
        if not ctx.resilient_parsing:
            for sentence in notices:
                click.echo(f"note: {sentence}", err=True)
        return super().parse_args(ctx, mine)


def own_flags(made: click.Command) -> dict[str, bool]:
    """Return the flags of a command, and whether each takes a value."""
    flags = {"-h": False, "--help": False}
    for option in made.params:
        if isinstance(option, click.Option):
            takes = not (option.is_flag or option.count)
            flags |= dict.fromkeys([*option.opts, *option.secondary_opts], takes)
    return flags


def make_command(engine: str, run: Run | None = None) -> FlagCommand:
    """Make the click command of `python -m dynamo.<engine>`; `run` gets the worker's settings."""
    made = _mocker(run or _run) if engine == "mocker" else _engine(engine, run or _run)
    made.params.append(click.Option(["-v", "--verbose"], count=True, help="More log lines; twice for all of them."))
    return made


def _mocker(run: Run) -> FlagCommand:
    def start(given: MockerSettings) -> None:
        run(_understood(lambda: mocker.worker_settings(given)))

    return command(
        MockerSettings, start, name="python -m dynamo.mocker", help=TITLES["mocker"], epilog=_epilog("mocker"),
        former=FORMER["mocker"], groups=GROUPS,
    )  # fmt: skip


def _engine(engine: str, run: Run) -> FlagCommand:
    def start(given: EngineProgramSettings) -> None:
        own = click.get_current_context().obj
        run(_understood(lambda: gpu_engines.worker_settings(engine, given, own)))

    plain = command(
        EngineProgramSettings, start, name=f"python -m dynamo.{engine}", former=FORMER[engine], groups=GROUPS,
        help=f"{TITLES[engine]} Flags that are not listed are the engine's own.", epilog=_epilog(engine),
    )  # fmt: skip
    made = EngineCommand(
        plain.name, params=plain.params, callback=plain.callback, help=plain.help, epilog=plain.epilog,
        former=plain.former, groups=plain.groups, context_settings=plain.context_settings,
    )  # fmt: skip
    made.short = dict(gpu_engines.SHORT[engine])
    return made


def _epilog(engine: str) -> str:
    return f"\b\nExamples:\n{_EXAMPLES[engine]}\n\n{_CONNECTIONS}"


def _understood(make: Callable[[], WorkerSettings]) -> WorkerSettings:
    try:
        return make()
    except DynamoException as error:
        raise click.UsageError(error.message) from error


def _run(settings: WorkerSettings) -> None:
    from dynamo.worker.main import run

    run(settings)


def main(engine: str, argv: Sequence[str] | None = None) -> None:
    """Run `python -m dynamo.<engine>`."""
    make_command(engine).main(None if argv is None else list(argv), prog_name=f"python -m dynamo.{engine}")
