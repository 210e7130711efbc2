"""Messages are typed, versioned and length-checked, and never pickled."""

import ast
import pickle
import types
import typing
from pathlib import Path

import msgspec
import pytest

import paraaegis
from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import (
    VERSION,
    AnyMessage,
    Ballot,
    Begin,
    Elected,
    Finish,
    Report,
    RollCall,
    RoundId,
    Upload,
    expect,
    pack,
    sizes,
    unpack,
)
from paraaegis.types import Blob, Payload

KINDS = typing.get_args(AnyMessage)
PACKAGE = Path(paraaegis.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "learn")  # CIFAR's own file is a pickle
PLAIN = {str: "word", int: 7, float: 0.5, bool: True, bytes: b"raw"}


def example(kind, depth=0):
    """A value of any type that a message holds."""
    if kind in PLAIN:
        return PLAIN[kind]
    if kind is Blob:
        return Blob(bytes(range(depth + 1)))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return () if depth > 4 else (example(arguments[0], depth + 1), example(arguments[0], depth + 2))
    if origin is dict:
        return {"one": example(arguments[1], depth + 1), "two": example(arguments[1], depth + 2)}
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0], depth)
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: example(hints[field.name], depth + 1) for field in msgspec.structs.fields(kind)})


def plain(frames):
    return [bytes(frame) for frame in frames]


def round_id(**changed):
    return RoundId(**({"run": "r", "method": "fedavg", "length": 4, "number": 2, "attempt": 0} | changed))


def ballot():
    return Ballot(round_id=round_id(), votes=Blob(b"votes"), fingerprint="f", report=Report(1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind):
    sent = example(kind)
    frames = plain(pack(sent))
    came = unpack(frames)
    assert type(came) is kind
    assert plain(pack(came)) == frames
    assert came.round_id == sent.round_id
    assert msgspec.msgpack.encode(came, enc_hook=lambda blob: bytes(blob.view)) == msgspec.msgpack.encode(
        sent, enc_hook=lambda blob: bytes(blob.view)
    )


def test_blobs_are_carried_beside_the_header_and_not_copied():
    buffer = bytearray(b"bulky")
    message = Ballot(round_id=round_id(), votes=Blob(buffer), fingerprint="f", report=Report(1))
    header, blob = pack(message)
    assert b"bulky" not in header
    buffer[0] = ord("s")
    assert bytes(blob) == b"sulky"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_cut_message_is_refused(kind):
    frames = plain(pack(example(kind)))
    for at, frame in enumerate(frames):
        with pytest.raises(ProtocolError):
            unpack([*frames[:at], frame[:-1], *frames[at + 1 :]])
        if at:
            with pytest.raises(ProtocolError):
                unpack(frames[:at])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_surplus_frame_is_refused(kind):
    with pytest.raises(ProtocolError, match=f"{kind.__name__} has 2 surplus frames"):
        unpack([*pack(example(kind)), b"more", b""])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bytes_after_the_header_are_refused(kind):
    header, *blobs = pack(example(kind))
    with pytest.raises(ProtocolError, match="not a message of this protocol"):
        unpack([header + b"\0", *blobs])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xff" * 40],
        [b"hello"],
        [msgspec.msgpack.encode({"kind": "roll-call"})],
        [msgspec.msgpack.encode({"kind": "unheard-of", "where": {}})],
        [msgspec.msgpack.encode([1, 2, 3])],
        [pickle.dumps({"kind": "roll-call"})],
    ],
    ids=["nothing", "empty", "noise", "text", "no-address", "unknown-kind", "list", "pickle"],
)
def test_foreign_bytes_are_refused(frames):
    with pytest.raises(ProtocolError, match="message"):
        unpack(frames)


def test_an_unknown_field_is_refused():
    header = msgspec.msgpack.decode(pack(RollCall(round_id=round_id()))[0])
    with pytest.raises(ProtocolError, match="extra"):
        unpack([msgspec.msgpack.encode(header | {"extra": 1})])


def test_a_field_of_another_type_is_refused():
    header = msgspec.msgpack.decode(pack(Begin(round_id=round_id(), aggregates=()))[0])
    with pytest.raises(ProtocolError, match="counts"):
        unpack([msgspec.msgpack.encode(header | {"counts": {"client-0": "3"}})])


@pytest.mark.parametrize("announced", [4, 6, -1, "5", None, 2**70 // 2**7])
def test_a_blob_of_another_size_than_announced_is_refused(announced):
    frames = pack(ballot())
    header = msgspec.msgpack.decode(frames[0])
    with pytest.raises(ProtocolError):
        unpack([msgspec.msgpack.encode(header | {"votes": announced}), *frames[1:]])


def test_a_payload_nested_without_end_is_refused():
    encode = msgspec.msgpack.encode
    leaf = encode(Payload("marker", 0))
    header = encode(Upload(round_id=round_id(), payload=Payload("marker", 0), fingerprint="f", report=Report(1)))
    level = b"\x83" + b"".join(map(encode, ["kind", "parallel", "length", 0, "parts"])) + b"\x91"
    with pytest.raises(ProtocolError):
        unpack([header.replace(leaf, level * 100_000 + leaf)])


def test_a_message_cannot_hold_an_object():
    with pytest.raises(TypeError, match="a message cannot hold a object"):
        pack(Elected(round_id=round_id(), positions=object()))


@pytest.mark.parametrize(
    ("field", "came"),
    [("run", "other"), ("method", "dp-fedavg"), ("length", 5), ("number", 3), ("attempt", 1), ("version", VERSION + 1)],
)
def test_a_message_for_elsewhere_is_refused_with_what_was_expected_and_what_came(field, came):
    with pytest.raises(ProtocolError) as caught:
        expect(RollCall(round_id=round_id(**{field: came})), RollCall, round_id())
    assert f"expected {field} {getattr(round_id(), field)!r}, got {came!r}" in str(caught.value)
    assert str(caught.value).count("expected") == 1
    assert ("must run the same version" in str(caught.value)) == (field == "version")


def test_every_field_of_an_address_is_compared():
    assert RoundId.__struct_fields__ == ("run", "method", "length", "number", "attempt", "version")


def test_a_message_of_another_kind_is_refused_with_both_kinds():
    with pytest.raises(ProtocolError, match="expected Elected, got Ballot"):
        expect(ballot(), Elected, round_id())


def test_a_message_that_is_due_is_returned():
    message = ballot()
    assert expect(message, Ballot, round_id()) is message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_bytes_by_kind_add_up_to_the_frames(kind):
    message = example(kind)
    frames = pack(message)
    assert sum(sizes(message, frames).values()) == sum(map(len, plain(frames)))


def test_bytes_are_counted_under_the_kind_of_their_part():
    inside, outside = Payload("ckks", 1, (Blob(b"123"),)), Payload("grid", 1, (Blob(b"1234"), Blob(b"1")))
    message = Upload(
        round_id=round_id(), payload=Payload("parallel", 2, parts=(inside, outside)), fingerprint="f", report=Report(1)
    )
    counted = sizes(message, pack(message))
    assert (counted["ckks"], counted["grid"]) == (3, 5)


def test_an_empty_finish_is_a_header_alone():
    message = Finish(round_id=round_id(), counts={"client-0": 1}, aggregates=())
    assert list(sizes(message, pack(message))) == ["header"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_outside_a_data_sets_file_is_pickled(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = getattr(node, "module", None) or ""
        assert not {"pickle", "marshal", "shelve", "dill"} & {part.split(".")[0] for part in [*names, module]}
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            assert "allow_pickle=False" in ast.unparse(node)
