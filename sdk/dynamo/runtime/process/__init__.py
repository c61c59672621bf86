"""What every program has: settings, logs, traces, an event loop, tasks and an orderly end."""
