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
  targets = ["operator", "frontend", "worker", "worker-llamacpp"]
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
