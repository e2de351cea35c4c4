"""CPU model of conv_backward's new indexing, and of wgmma.sp's compressed A: shared memory as a flat array of numbers,
ldmatrix and wgmma by the PTX ISA's layouts. One sample at a time, whole numbers, compared with plain sums."""
import re, sys
from pathlib import Path
import numpy as np

text = Path(sys.argv[1] if len(sys.argv) > 1 else "source_code/labkit/kernels/hopper_backward.cu").read_text()
SIDE, CHUNK, CHANNELS1, CHANNELS2, IMAGE_SIDE, W = 26, 16, 32, 64, 28, 12
C = dict(SIDE=26, CHUNK=16, CHANNELS1=32, CHANNELS2=64, IMAGE_SIDE=28, WINDOWS_SIDE=12, WARPGROUP=128, WINDOWS=144,
         INPUTS=288, TAPS=9, CONV1_WORDS=256)
for line in re.findall(r"^constexpr int ([^;]+);", text, re.M):  # the kernel's own constants
    for part in line.split(", "):
        name, value = part.split(" = ")
        C[name] = eval(value.replace("/", "//"), {}, C)
globals().update(C)
BACK = CHANNELS2 // 8 * BACK_PLANE            # chunks
HIDDEN = (HIDDEN_ROWS + 1) * PLANES * SIDE
HALF = BACK + HIDDEN + PAIRS // 4 + 2 * PIXELS
print("chunks: back", BACK * 16, "hidden", HIDDEN * 16, "half", HALF * 16, "all", 2 * HALF * 16 + (3 * COLUMN + TAP) * 16 + 1024)

def read(mem, start, rows, k, lbo, sbo, mn_major):
    """Operand (rows x k) from a descriptor without swizzle; start, lbo, sbo in chunks."""
    r, s = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    core = start + r // 8 * sbo + s // 8 * lbo
    at = (core + s % 8) * 8 + r % 8 if mn_major else (core + r % 8) * 8 + s % 8
    return mem[at]

def ldmatrix_trans(mem, chunks):  # chunks[32]; returns [lane][register][2]
    m = mem[(chunks[:, None] * 8 + np.arange(8))].reshape(4, 8, 8)  # matrix, row, column
    out = np.zeros((32, 4, 2))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(4):
            out[lane, i] = m[i, 2 * t, g], m[i, 2 * t + 1, g]
    return out

LANE = np.arange(32); G, T = LANE // 4, LANE % 4

def compress(mem, even, odd):
    a, other = ldmatrix_trans(mem, even), ldmatrix_trans(mem, odd)
    assert not ((a != 0) & (other != 0)).any()
    places = np.zeros((32, 2), dtype=np.uint64)
    for row in range(2):
        n = (other != 0).astype(np.uint64)
        first = n[:, 2 * row, 0] | n[:, 2 * row + 1, 0] << np.uint64(16)
        second = n[:, 2 * row, 1] | n[:, 2 * row + 1, 1] << np.uint64(16)
        places[:, row] = (first | second << np.uint64(2) | np.uint64(0x00080008)) << (4 * T).astype(np.uint64)
    assert (places < 2**32).all()
    give = np.where(T & 1, places[:, 0], places[:, 1])
    meta = np.where(T & 1, places[:, 1], places[:, 0]) | give[LANE ^ 1]
    meta |= meta[LANE ^ 2]
    return a + other, meta

def decompress(a, meta):
    """A warp's 16 x 32 from registers and metadata, as the PTX ISA draws them (selector 0)."""
    dense = np.zeros((16, 32))
    for row in range(16):
        for chunk in range(8):
            lane = 4 * (row % 8) + chunk % 4
            two = a[lane, row // 8 + 2 * (chunk // 4)]
            holder = 4 * (row % 8) + chunk // 4          # thread 0 or 1 of four
            bits = int(meta[holder]) >> (16 * (row // 8) + 4 * (chunk % 4)) & 15
            places = bits & 3, bits >> 2
            assert places[0] < places[1]
            dense[row, 4 * chunk + places[0]] += two[0]
            dense[row, 4 * chunk + places[1]] += two[1]
    return dense

rng = np.random.default_rng(1)
for trial in range(3):
    image = rng.integers(0, 256, (28, 28)).astype(float)
    hidden = np.maximum(rng.integers(-4, 5, (26, 26, 32)), 0).astype(float)
    value = rng.integers(-3, 4, (12, 12, 64)).astype(float)
    winner = rng.integers(0, 5, (12, 12, 64))
    weight = rng.integers(-3, 4, (64, 3, 3, 32)).astype(float)
    out = np.zeros((24, 24, 64))
    for p in range(4):
        out[p // 2::2, p % 2::2] = value * (winner == p)
    dw2 = np.zeros((64, 3, 3, 32)); dh = np.zeros((26, 26, 32))
    for y in range(3):
        for x in range(3):
            dw2[:, y, x] = np.einsum("ijo,ijc->oc", out, hidden[y:y + 24, x:x + 24])
            dh[y:y + 24, x:x + 24] += out @ weight[:, y, x]
    dh *= hidden > 0
    dw1 = np.stack([np.einsum("ijc,ij->c", dh, image[y:y + 26, x:x + 26]) for y in range(3) for x in range(3)], 1)
    db1 = dh.sum((0, 1))

    wmem = np.zeros((3 * COLUMN + TAP) * 8)
    for i in range(3 * COLUMN + TAP):
        plane, o, row, column = i % PLANES, i // PLANES % 64, i // TAP % 4 - 1, i // COLUMN
        to = i // TAP * PLANES + plane
        if row >= 0:
            wmem[(to * 64 + o) * 8:][:8] = weight[o, row, column, 8 * plane:8 * plane + 8]

    got2 = np.zeros((64, 3, 3, 32)); got1 = np.zeros((64, 16)); cover = np.zeros((26, 26), int)
    for half in range(2):
        mem = np.zeros(2 * HALF * 8)  # room for what is read beyond
        mem[HALF * 8:] = 777          # and what lies there
        for window in range(HALF_WINDOWS):
            row = window // 12; gw = half * HALF_BEGINS * 12 + window
            pixel = (row + 1 - half) * SIDE + 2 * (window - 12 * row)
            for plane in range(8):
                for p in range(4):
                    to = plane * BACK_PLANE + ROOM + pixel + p // 2 * BACK_ODD + p % 2
                    c = slice(8 * plane, 8 * plane + 8)
                    mem[to * 8:][:8] = value[gw // 12, gw % 12, c] * (winner[gw // 12, gw % 12, c] == p)
        top = half * SEEN_BEGINS
        for y in range(HIDDEN_ROWS):
            for plane in range(4):
                for x in range(26):
                    mem[(BACK + (y * PLANES + plane) * SIDE + x) * 8:][:8] = hidden[top + y, x, 8 * plane:][:8]
        pairs = (BACK + HIDDEN) * 8
        seen = image.reshape(-1)[half * SEEN_BEGINS * 28:][:SEEN_ROWS * 28 + 1]
        for i in range(SEEN_ROWS * 28):
            mem[pairs + 2 * i] = seen[i]; mem[pairs + 2 * i + 1] = seen[i + 1] if i + 1 < len(seen) else 0
        # conv2's weights
        sums = np.zeros((3, 64, 96))
        for step in range(STEPS):
            for k in range(CORES):
                dense = np.zeros((64, 32))
                for warp in range(4):
                    window, below, plane, row = LANE % 4, LANE // 4 % 2, 2 * warp + LANE // 8 % 2, 1 + LANE // 16
                    corner = plane * BACK_PLANE + ROOM + row * SIDE + below * BACK_ODD + 2 * window
                    even = corner + 2 * step * SIDE + CORE_PIXELS * k
                    dense[16 * warp:16 * warp + 16] = decompress(*compress(mem, even, even + 1))
                rows = half * 12 + 4 * step
                assert (dense == out[rows:rows + 4, 8 * k:8 * k + 8].reshape(32, 64).T).all(), "decompressed is not the original"
                for column in range(3):
                    b = read(mem, BACK + step * 4 * ROW + CORE_PIXELS * k + column, 96, 32, ROW, SIDE, True)
                    sums[column] += dense @ b.T
        for column in range(3):
            got2[:, :, column] += sums[column].reshape(64, 3, 32)
        # the hidden layer's gradient
        begin = half * SEEN_AGAIN
        bytes_at = BACK + HIDDEN + PAIRS // 4
        for i in range(PIXELS):
            corner = begin + i + (2 * IMAGE_SIDE - SIDE) * ((begin + i) // SIDE)
            word = lambda n: mem[pairs + 2 * (corner + n):][:2]
            assert corner + 3 * 28 + 1 < PAIRS
            mem[(bytes_at + i) * 8:][:8] = np.concatenate([word(0), [word(2)[0], word(28)[0]], word(29), word(56)])
            mem[(bytes_at + PIXELS + i) * 8:][:8] = np.concatenate([[word(58)[0], word(84)[0]], word(85), [1, 0], [0, 0]])
        sums1 = np.zeros((64, 16))
        for first, columns in ((0, FIRST_PART), (FIRST_PART, LAST_PART)):
            s = np.zeros((64, columns))
            for k in range(48):
                row, column, piece = k // 12, k // 4 % 3, k % 4
                a = read(wmem, column * COLUMN + (3 - row) * TAP + piece * 16, 64, 16, 8, 64, True)
                b = read(mem, ROOM + begin + first + row % 2 * BACK_ODD + row // 2 * SIDE - column + piece * 2 * BACK_PLANE,
                         columns, 16, BACK_PLANE, 8, False)
                s += a @ b.T
            for m in range(64):
                odd, c = m // 32, m % 32
                for n in range(columns):
                    pixel = begin + first + n
                    r, x = pixel // SIDE, pixel % SIDE
                    keep = pixel < HALF_ROWS * SIDE and mem[(BACK + ((2 * r + odd) * PLANES + c // 8) * SIDE + x) * 8 + c % 8] != 0
                    if pixel < HALF_ROWS * SIDE:
                        if c == 0: cover[top + 2 * r + odd, x] += 1
                        if keep: assert s[m, n] == dh[top + 2 * r + odd, x, c], (half, m, n)
                    if not keep: s[m, n] = 0
            sums1 += s @ read(mem, bytes_at + first, 16, columns, 8, PIXELS, True).T
        got1 += sums1
    assert (cover == 1).all(), "each hidden pixel once"
    assert (got2 == dw2).all()
    for odd in range(2):
        pass
    w1 = sum(got1[32 * odd:32 * odd + 32, 3 * odd:3 * odd + 9] for odd in range(2))
    b1 = got1[:32, BIAS] + got1[32:, BIAS]
    assert (w1 == dw1).all() and (b1 == db1).all()
    print("trial", trial, "equal: decompressed A, conv2's weights, hidden gradient, conv1's weights and bias")
