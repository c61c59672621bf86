"""The original's flags for planes and discovery, which all its programs have; here they are NATS and etcd."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.flags import Former, needless, refused, renamed

OVER_NATS: Final = "requests, answers and events travel over NATS (NATS_SERVER)"
FOUND_IN_ETCD: Final = (
    "workers are found in etcd (ETCD_ENDPOINTS); `mem` serves one process; in a cluster the operator's own etcd is used"
)

PLANES: Final[tuple[Former, ...]] = (
    needless("--request-plane", OVER_NATS, plain=["nats"], env="DYN_REQUEST_PLANE"),
    needless("--response-plane", OVER_NATS, plain=["nats"], env="DYN_RESPONSE_PLANE"),
    needless("--event-plane", OVER_NATS, plain=["nats"], env="DYN_EVENT_PLANE"),
    renamed("--store-kv", "--discovery-backend", "{}", env="DYN_STORE_KV"),
    refused("--discovery-backend", FOUND_IN_ETCD, keeps=["etcd", "mem"], env="DYN_DISCOVERY_BACKEND"),
    refused(
        "--nats-tls-ca-cert-path --nats-tls-client-cert-path --nats-tls-client-key-path",
        "set NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY, and a tls:// address in NATS_SERVER",
        env="NATS_TLS_CA_CERT_PATH, NATS_TLS_CLIENT_CERT_PATH, NATS_TLS_CLIENT_KEY_PATH",
    ),
    refused("--nats-tls-insecure", "give the authority in NATS_TLS_CA", switch=True, env="NATS_TLS_INSECURE"),
    refused(
        "--tcp-tls-ca-cert-path --tcp-tls-cert-path --tcp-tls-client-ca-cert-path --tcp-tls-client-cert-path "
        "--tcp-tls-client-key-path --tcp-tls-key-path --tcp-tls-handshake-timeout --tcp-tls-server-name",
        "there is no TCP plane to encrypt; NATS_TLS_CA and tls:// in NATS_SERVER encrypt all traffic of requests",
        env="DYN_TCP_TLS_*",
    ),
    refused("--tcp-tls-insecure", "there is no TCP plane", switch=True, env="DYN_TCP_TLS_INSECURE"),
)
"""Common to all programs that talk to others."""
