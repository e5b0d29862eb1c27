"""Entropy coders, whole numbers and layouts: what is read is what was written."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from bmrjax.codec import CSR, Bitmap, CodecError, Dense, Gaps
from bmrjax.codec.arithmetic import ArithmeticReader, ArithmeticWriter
from bmrjax.codec.huffman import HuffmanReader, HuffmanWriter, code_lengths, code_words
from bmrjax.codec.integers import read_integer, read_integers, write_integer, write_integers

CODERS = {
    "range": (ArithmeticWriter, ArithmeticReader),
    "ans": (
        lambda: ArithmeticWriter(stack=True),
        lambda code: ArithmeticReader(code, stack=True),
    ),
    "huffman": (HuffmanWriter, HuffmanReader),
}
coders = pytest.mark.parametrize("coder", CODERS)
NUMBERS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**31 - 1)), max_size=40)


@coders
@given(symbols=st.lists(st.integers(0, 6), max_size=60), numbers=NUMBERS, width=st.integers(1, 40))
def test_reads_what_was_written(coder, symbols, numbers, width):
    make_writer, make_reader = CODERS[coder]
    writer = make_writer()
    plain = np.array(numbers, np.int64) % (1 << width)
    writer.symbols(np.array(symbols, np.int64), 7)
    write_integers(writer, np.array(numbers, np.int64), 2**31 - 1)
    writer.bits(plain, width)
    write_integer(writer, len(symbols))
    reader = make_reader(writer.finish())
    assert reader.symbols(len(symbols), 7).tolist() == symbols
    assert read_integers(reader, len(numbers), 2**31 - 1).tolist() == numbers
    assert reader.bits(len(numbers), width).tolist() == plain.tolist()
    assert read_integer(reader, 60) == len(symbols)
    assert abs(reader.spent - writer.spent) < 1e-6 * (1 + writer.spent)


@coders
def test_code_is_as_long_as_it_says(coder):
    symbols = np.random.default_rng(0).choice(5, 4000, p=[0.5, 0.3, 0.1, 0.05, 0.05])
    writer = CODERS[coder][0]()
    writer.symbols(symbols, 5)
    entropy = -4000 * sum(p * np.log2(p) for p in np.bincount(symbols) / 4000)
    assert abs(8 * len(writer.finish()) - writer.spent) < 64
    assert entropy <= writer.spent < entropy * (1.06 if coder == "huffman" else 1.01)


@given(counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_huffman_is_a_prefix_code_within_a_bit_of_the_entropy(counts):
    counts = np.array(counts)
    lengths = code_lengths(counts)
    assert ((lengths > 0) == (counts > 0)).all()
    words = [f"{w:0{n}b}" for w, n in zip(code_words(lengths), lengths, strict=True) if n]
    ordered = sorted(words)
    assert not any(b.startswith(a) for a, b in zip(ordered[:-1], ordered[1:], strict=True))
    if len(words) > 1:
        chances = counts[counts > 0] / counts.sum()
        entropy = -(chances * np.log2(chances)).sum()
        assert entropy - 1e-9 <= (counts * lengths).sum() / counts.sum() < entropy + 1


def test_huffman_words_are_never_longer_than_their_field():
    fibonacci = [1, 1]
    while len(fibonacci) < 45:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert code_lengths(np.array(fibonacci)).max() <= 31


def test_lengths_that_no_code_has_are_refused():
    with pytest.raises(CodecError, match="no code has words"):
        code_words(np.array([1, 1, 1]))


CODES = hnp.arrays(
    np.int64,
    st.tuples(st.integers(1, 9), st.integers(1, 70)),
    elements=st.sampled_from([0, 0, 0, 0, 0, 0, 0, -2, 1, 3]),
)


@pytest.mark.parametrize("layout", [CSR(2), CSR(5), Gaps(), Bitmap(), Dense()], ids=repr)
@given(codes=CODES)
def test_layouts_say_where_entries_are(layout, codes):
    writer = ArithmeticWriter()
    values = layout.write(writer, codes)
    writer.symbols(values + 2, 6)
    reader = ArithmeticReader(writer.finish())
    where = layout.read(reader, *codes.shape)
    assert (np.diff(where) > 0).all()
    found = np.zeros(codes.size, np.int64)
    found[where] = reader.symbols(len(where), 6) - 2
    assert (found.reshape(codes.shape) == codes).all()


def test_csr_is_as_large_as_in_the_paper():
    """Row pointers, five bits an offset, and a padding zero for each 32 columns without an entry."""
    codes = np.zeros((3, 100), np.int64)
    codes[0, [0, 5]] = codes[2, 99] = 1
    writer = HuffmanWriter()
    values = CSR(5).write(writer, codes)
    assert values.tolist() == [1, 1, 0, 0, 0, 1]
    header = 5 + 6 + 2
    assert writer.spent == header + 3 * 3 + 6 * 5


def test_bitmap_uses_what_rows_and_columns_tell():
    rng = np.random.default_rng(0)
    chance = np.outer(rng.random(200) ** 4, rng.random(300) ** 4)
    codes = (rng.random((200, 300)) < chance).astype(np.int64)
    spent = {}
    for layout in (Bitmap(), Gaps()):
        writer = ArithmeticWriter()
        layout.write(writer, codes)
        spent[type(layout)] = writer.spent
    assert spent[Bitmap] < 0.85 * spent[Gaps]


@pytest.mark.parametrize("bits", [0, 17])
def test_csr_refuses_offsets_of_other_widths(bits):
    with pytest.raises(ValueError, match="offset_bits"):
        CSR(bits)
