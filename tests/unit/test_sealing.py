from __future__ import annotations

import pytest

from paraaegis.crypto.sealing import new_pair, seal, unseal
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
