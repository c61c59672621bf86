"""The certificate that servers of one cluster show each other: `new_certificate(hosts, now)`.

All members have the same one, and trust nothing else: whoever has its key is a member. It is its own authority, so
no other key is left that could make a second one.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE: Final = "peers.crt"
KEY: Final = "peers.key"
_VALID: Final = datetime.timedelta(days=3650)
"""Nobody outside a cluster sees it, and a member that ran out could not be replaced: delete its Secret to renew it."""
_LONGEST: Final = {CERTIFICATE: 8192, KEY: 512}
"""Bytes of what is read. Whoever may write Secrets can put a key there that takes minutes to check; ours has 241."""
_CLOCKS_DIFFER: Final = datetime.timedelta(hours=1)


def new_certificate(hosts: Sequence[str], now: float) -> dict[str, bytes]:
    """Return certificate and key as PEM by file name; `hosts`: DNS names of the members; `now`: seconds since 1970."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dynamo peers")])
    begin = datetime.datetime.fromtimestamp(now, datetime.UTC) - _CLOCKS_DIFFER
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return {
        CERTIFICATE: made.public_bytes(serialization.Encoding.PEM),
        KEY: key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }


def is_for(data: Mapping[str, bytes], hosts: Sequence[str]) -> bool:
    """Return whether there is a certificate with its key for these hosts."""
    if any(not 0 < len(data.get(name, b"")) <= most for name, most in _LONGEST.items()):
        return False
    try:
        made = x509.load_pem_x509_certificate(data[CERTIFICATE])
        key = serialization.load_pem_private_key(data[KEY], None)
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return set(hosts) <= set(names.get_values_for_type(x509.DNSName)) and made.public_key() == key.public_key()
    except Exception:  # what can't be read makes the library raise many kinds
        return False
