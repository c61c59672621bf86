# docker buildx bake -f images/docker-bake.hcl: all images, for this machine's architecture.
variable "REGISTRY" {
  default = "dynamo-pipelines"
}

variable "VERSION" {
  default = "0.1.0"
}

variable "BASE" {
  default = "python:3.11.14-slim-bookworm"
}

# The time that is written into the images: the same source gives the same digests.
variable "SOURCE_DATE_EPOCH" {
  default = "0"
}

group "default" {
  targets = ["operator", "frontend", "worker", "worker-llamacpp", "worker-openai"]
}

target "_common" {
  context = "."
  args = {
    BASE              = BASE
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
  labels = {
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.licenses" = "Apache-2.0"
  }
}

target "operator" {
  inherits   = ["_common"]
  dockerfile = "images/Dockerfile.operator"
  tags       = ["${REGISTRY}/operator:${VERSION}"]
}

target "frontend" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.frontend"
  tags       = ["${REGISTRY}/frontend:${VERSION}"]
}

target "worker" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  tags       = ["${REGISTRY}/worker:${VERSION}"]
}

target "worker-llamacpp" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  args = {
    ENGINE = "llamacpp"
  }
  tags = ["${REGISTRY}/worker-llamacpp:${VERSION}"]
}

# Beside an engine's own image, which brings CUDA: `docker buildx bake -f images/docker-bake.hcl gpu`. Nobody has run
# them on a GPU yet; docs/how-to/operate/gpus.md says what was tried.
variable "VLLM_IMAGE" {
  default = "vllm/vllm-openai:latest"
}

variable "SGLANG_IMAGE" {
  default = "lmsysorg/sglang:latest"
}

# NVIDIA publishes TensorRT-LLM's release images in a registry of its own: name one in full.
variable "TRTLLM_IMAGE" {
  default = "tensorrt-llm/release:latest"
}

# A CUDA image with python3 and pip, of the same CUDA as the wheels.
variable "CUDA_IMAGE" {
  default = "python-cuda:latest"
}

group "gpu" {
  targets = ["worker-vllm", "worker-sglang", "worker-trtllm"]
}

target "_beside" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  target     = "beside"
}

target "worker-vllm" {
  inherits = ["_beside"]
  args = {
    BASE   = VLLM_IMAGE
    ENGINE = "vllm"
  }
  tags = ["${REGISTRY}/worker-vllm:${VERSION}"]
}

target "worker-sglang" {
  inherits = ["_beside"]
  args = {
    BASE   = SGLANG_IMAGE
    ENGINE = "sglang"
  }
  tags = ["${REGISTRY}/worker-sglang:${VERSION}"]
}

target "worker-trtllm" {
  inherits = ["_beside"]
  args = {
    BASE   = TRTLLM_IMAGE
    ENGINE = "trtllm"
  }
  tags = ["${REGISTRY}/worker-trtllm:${VERSION}"]
}

target "worker-mistralrs-cuda" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  args = {
    BASE    = CUDA_IMAGE
    ENGINE  = "mistralrs"
    VARIANT = "cuda"
  }
  tags = ["${REGISTRY}/worker-mistralrs-cuda:${VERSION}"]
}

target "worker-llamacpp-cuda" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  args = {
    BASE   = CUDA_IMAGE
    ENGINE = "llamacpp"
  }
  tags = ["${REGISTRY}/worker-llamacpp-cuda:${VERSION}"]
}

# Beside a server that runs in a container of its own: no engine, no CUDA.
target "worker-openai" {
  inherits   = ["_common"]
  dockerfile = "Dockerfile.worker"
  args = {
    ENGINE = "openai"
  }
  tags = ["${REGISTRY}/worker-openai:${VERSION}"]
}
