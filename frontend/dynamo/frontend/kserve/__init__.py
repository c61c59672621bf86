"""KServe's open inference protocol (version 2) over gRPC, in front of what answers /v1/completions."""
