import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError
from tests.data_prep.reader.small import encode

INT32 = st.integers(-(2**31), 2**31 - 1)


def test_the_bytes_are_those_of_protobuf() -> None:
    # protobuf text: channels: 1 height: 2 width: 3 data: "abcdef" label: 300 encoded: false (absent)
    assert encode(1, 2, 3, b"abcdef", 300) == bytes.fromhex("0801 1002 1803 2206 616263646566 28ac02")
    assert encode(0, 0, 0, b"\xff\xd8", -1, True) == bytes.fromhex("0800 1000 1800 2202 ffd8 28ffffffffffffffffff01 3801")


@given(label=INT32, data=st.binary(max_size=300))
def test_what_is_encoded_is_parsed(label: int, data: bytes) -> None:
    raw = parse(encode(1, 1, len(data), data, label))
    assert (raw.channels, raw.height, raw.width, bytes(raw.data), raw.label, raw.encoded) == (1, 1, len(data), data, label, False)
    assert parse(memoryview(encode(3, 7, 9, data, label, True)))[3:] == (data, label, True)


def test_the_data_are_not_copied() -> None:
    value = bytearray(encode(1, 1, 4, b"abcd", 7))
    data = parse(value).data
    value[value.index(b"abcd")] = ord("z")
    assert bytes(data) == b"zbcd"


def test_unknown_fields_are_skipped_and_missing_ones_are_zero() -> None:
    unknown = bytes.fromhex("4801 5203616263 590102030405060708 6501020304 9a7d0178")  # varint, bytes, 64 bit, 32 bit, a field of two bytes
    assert parse(unknown + encode(1, 1, 1, b"x", 200) + unknown).label == 200
    assert parse(b"") == (0, 0, 0, b"", 0, False)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bytes.fromhex("3504000000"), "float_data"),
        (bytes.fromhex("320400000000"), "float_data"),
        (bytes.fromhex("0b"), "wire type 3"),
        (bytes.fromhex("00"), "field 0"),
        (bytes.fromhex("2205 6162"), "in the middle"),
        (bytes.fromhex("08"), "in the middle"),
        (bytes.fromhex("08" + "ff" * 11), "ten bytes"),
        (bytes.fromhex("0801 1001 1801 2200"), "comes with 0 bytes"),
        (bytes.fromhex("08ffffffffffffffffff01 10ffffffffffffffffff01 1801 220178"), "comes with 1 bytes"),
        (bytes.fromhex("22ffffffffffffffffff01"), "in the middle"),
    ],
)
def test_what_is_no_image_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(DatumError, match=reason):
        parse(value)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_datum_or_a_datum_error(value: bytes) -> None:
    try:
        datum = parse(value)
    except DatumError:
        return
    assert datum.encoded or len(datum.data) == datum.channels * datum.height * datum.width


@pytest.mark.parametrize(("size", "label"), [((1, 1, 2), 0), ((1, 1, 1), 2**31), ((1, 1, 1), -(2**31) - 1)])
def test_what_does_not_fit_is_not_encoded(size: tuple[int, int, int], label: int) -> None:
    with pytest.raises(DatumError):
        encode(*size, b"x", label)


def test_a_value_of_endless_small_fields_is_refused_at_once() -> None:
    for field in (b"\x08\x01", b"\x48\x01"):  # channels again and again; a field that nobody knows
        with pytest.raises(DatumError, match="fields"):
            parse(field * 100_000)
    assert parse(b"\x48\x01" * 500 + encode(1, 1, 1, b"x", 3)).label == 3
