"""From a request to token ids and back: chat templates, options, stop strings, detokenising."""
