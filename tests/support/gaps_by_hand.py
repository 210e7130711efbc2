"""A second implementation of the code of a set of positions, with strings of bits and from the definition alone."""


def code_of(positions, length):
    k, width = len(positions), 0
    while k and k * 2 ** (width + 1) <= length - k:
        width += 1
    gaps = [after - before - 1 for before, after in zip([-1, *positions], positions, strict=False)]
    remainders = "".join(f"{gap % 2**width:b}".zfill(width)[::-1] for gap in gaps) if width else ""
    quotients = "".join("0" * (gap // 2**width) + "1" for gap in gaps)
    return octets(remainders) + octets(quotients)


def octets(bits):
    """The first bit is the lowest of the first byte."""
    return int(bits[::-1] or "0", 2).to_bytes(-(-len(bits) // 8), "little")
