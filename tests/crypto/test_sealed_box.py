from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from paraaegis.crypto.sealed_box import new_pair, seal, unseal
from paraaegis.errors import CryptoError

CONTEXT = b"run 1, round 2, attempt 0, from 3, to 4"
GROUP = b"what the clients share"
OPAQUE = "sealed bytes do not open with these keys and this context"
SENDER, SENDER_PUBLIC = new_pair()


@pytest.mark.parametrize("text", [b"", b"a share", bytes(5000)])
def test_the_receiver_opens_what_was_sealed(text: bytes) -> None:
    private, public = new_pair()
    sealed = seal(SENDER, public, text, CONTEXT, group=GROUP)
    assert len(sealed) == len(text) + 48
    assert unseal(private, SENDER_PUBLIC, sealed, CONTEXT, group=GROUP) == text


def test_the_text_does_not_show_and_two_seals_differ() -> None:
    _, public = new_pair()
    first, second = (
        seal(SENDER, public, b"a share of a secret", CONTEXT),
        seal(SENDER, public, b"a share of a secret", CONTEXT),
    )
    assert b"share" not in first
    assert first[:32] != second[:32]
    assert first[32:] != second[32:]


def test_every_changed_byte_is_refused_alike() -> None:
    private, public = new_pair()
    sealed = seal(SENDER, public, b"a share", CONTEXT)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
            unseal(private, SENDER_PUBLIC, bytes(changed), CONTEXT)


def test_cut_lengthened_empty_and_degenerate_bytes_are_refused_alike() -> None:
    private, public = new_pair()
    sealed = seal(SENDER, public, b"a share", CONTEXT)
    for broken in (b"", sealed[:31], sealed[:32], sealed[:-1], sealed + b"\0", bytes(len(sealed))):
        with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
            unseal(private, SENDER_PUBLIC, broken, CONTEXT)


def test_another_receiver_context_or_group_does_not_open() -> None:
    private, public = new_pair()
    stranger, _ = new_pair()
    sealed = seal(SENDER, public, b"a share", CONTEXT, group=GROUP)
    wrong = [
        (stranger, CONTEXT, GROUP),
        (private, CONTEXT + b"1", GROUP),
        (private, CONTEXT, b""),
        (b"", CONTEXT, GROUP),
    ]
    for key, context, group in wrong:
        with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
            unseal(key, SENDER_PUBLIC, sealed, context, group=group)


def test_a_server_without_the_group_secret_cannot_forge_a_share() -> None:
    private, public = new_pair()
    with pytest.raises(CryptoError, match=OPAQUE):
        unseal(private, SENDER_PUBLIC, seal(SENDER, public, b"a forged share", CONTEXT), CONTEXT, group=GROUP)


def test_only_the_owner_of_the_senders_key_can_seal_in_its_name() -> None:
    """Somebody who has the group's secret, as every client does, still cannot."""
    private, public = new_pair()
    other, other_public = new_pair()
    forged = seal(other, public, b"a forged share", CONTEXT, group=GROUP)
    with pytest.raises(CryptoError, match=OPAQUE):
        unseal(private, SENDER_PUBLIC, forged, CONTEXT, group=GROUP)
    assert unseal(private, other_public, forged, CONTEXT, group=GROUP) == b"a forged share"


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32)])
def test_nothing_is_sealed_to_what_is_no_public_key(public: bytes) -> None:
    with pytest.raises(CryptoError, match="not a pair of X25519 keys"):
        seal(SENDER, public, b"a share", CONTEXT)


def test_what_is_sealed_to_a_one_time_key_too_opens_with_it_alone() -> None:
    """Neither with both long-term keys nor with another one-time key: once it is erased, nobody can open it."""
    (private, public), (once, once_public) = new_pair(), new_pair()
    sealed = seal(SENDER, public, b"a model", CONTEXT, group=GROUP, once=once_public)
    assert len(sealed) == len(b"a model") + 48
    assert unseal(private, SENDER_PUBLIC, sealed, CONTEXT, group=GROUP, once=once) == b"a model"
    for other in (b"", new_pair()[0], private, SENDER, b"short"):
        with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
            unseal(private, SENDER_PUBLIC, sealed, CONTEXT, group=GROUP, once=other)


def test_a_one_time_key_does_not_stand_in_for_the_receivers_own() -> None:
    (private, public), (once, once_public) = new_pair(), new_pair()
    sealed = seal(SENDER, public, b"a model", CONTEXT, once=once_public)
    for receiver, second in ((once, private), (once, once), (new_pair()[0], once)):
        with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
            unseal(receiver, SENDER_PUBLIC, sealed, CONTEXT, once=second)


def test_what_is_sealed_without_a_one_time_key_does_not_open_with_one() -> None:
    private, public = new_pair()
    sealed = seal(SENDER, public, b"a model", CONTEXT)
    with pytest.raises(CryptoError, match=f"^{OPAQUE}$"):
        unseal(private, SENDER_PUBLIC, sealed, CONTEXT, once=new_pair()[0])


@pytest.mark.parametrize("once", [bytes(31), bytes(32), b"short"])
def test_nothing_is_sealed_to_what_is_no_one_time_key(once: bytes) -> None:
    """A key of zeros agrees with every other on the same secret, which a server could know."""
    with pytest.raises(CryptoError, match="not a pair of X25519 keys"):
        seal(SENDER, new_pair()[1], b"a model", CONTEXT, once=once)


def test_sealed_bytes_are_as_a_second_implementation_opens_them() -> None:
    (private, public), (once, once_public) = new_pair(), new_pair()
    sealed = seal(SENDER, public, b"a model", CONTEXT, group=GROUP, once=once_public)

    def agreed(mine: bytes, other: bytes) -> bytes:
        return X25519PrivateKey.from_private_bytes(mine).exchange(X25519PublicKey.from_public_bytes(other))

    ephemeral = sealed[:32]
    secret = agreed(private, ephemeral) + agreed(private, SENDER_PUBLIC) + agreed(once, ephemeral)
    info = b"paraaegis-seal-3" + ephemeral + SENDER_PUBLIC + public + once_public + CONTEXT
    key = hmac.digest(hmac.digest(GROUP, secret, hashlib.sha256), info + b"\x01", hashlib.sha256)
    assert ChaCha20Poly1305(key).decrypt(bytes(12), sealed[32:], CONTEXT) == b"a model"
