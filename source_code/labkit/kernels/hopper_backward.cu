// Backward, from the gradient of what was pooled to the gradients of both convolutions' weights and biases.
//
// A block makes one sample after another, each in two halves of seven rows of pooling windows (two rows are in both).
// Warps are specialised: one warpgroup brings from memory what the three others multiply.
//
//     shared memory of a block, struct Backward: 228,864 bytes
//     +---------------------------------+---------------------------------+----------------------+---------+
//     | half[0]                  87,296 | half[1]                  87,296 | weight        53,248 | conv1   |
//     | back 54,656 | hidden     24,960 | as half[0]                      | conv2's: A of wgmma, |   1,024 |
//     | pairs 2,048 | bytes       5,632 |                                 | transposed           |         |
//     +---------------------------------+---------------------------------+----------------------+---------+
//
//     warps 12 to 15, the makers     global memory → pairs, back (each window's gradient at its winner)
//     warps 0 to 3                   conv2's weights: back (A, ldmatrix) × hidden by wgmma.sp, over pixels
//     warps 4 to 7, of half[0]       while the makers spread: pairs → bytes; pairs × conv1 by wgmma, ReLU → hidden.
//     warps 8 to 11, of half[1]      The hidden layer's gradient: weight × back by wgmma; where ReLU let through,
//                                    conv1's weights: that (A, in registers) × bytes by wgmma, over pixels
//
//     named barriers of a half       makers     warps 0 to 3     warps 4 to 7 or 8 to 11
//     PAIRS  the image is there      arrive                      wait
//     BACK   gradients are there     arrive                      wait
//     FULL   hidden is there as well arrive     wait             arrive
//     EMPTY  it may be filled again  wait       arrive           arrive
//     SUMMED (one for both) all samples are done, and shared memory is free for the sums: all wait
//
// Of a window's four outputs one at most has a gradient: of two neighbours in a row one is zero, of four two. That is
// the 2:4 sparsity of wgmma.sp for A, exact and by itself, where the sum runs along a row: so for conv2's weights. For
// the hidden layer's gradient it runs along channels.
#include "hopper.cuh"

constexpr int THREADS = 4 * WARPGROUP;
constexpr int WEIGHT_REGISTERS = 200, OTHER_REGISTERS = 104;  // of a thread: 128 would be everybody's share

constexpr int HALF_ROWS = 7, HALF_WINDOWS = HALF_ROWS * WINDOWS_SIDE;  // of windows
constexpr int TURN_WINDOWS = WARPGROUP / (CHANNELS2 / 8);  // that the makers take at once: eight channels a thread
constexpr int TURNS = (HALF_WINDOWS + TURN_WINDOWS - 1) / TURN_WINDOWS;
constexpr int HALF_BEGINS = WINDOWS_SIDE - HALF_ROWS;  // the second half's first row of windows
constexpr int SEEN_ROWS = 16, SEEN_BEGINS = 12;        // of the image, and the second half's first
constexpr int SEEN_WORDS = SEEN_ROWS * IMAGE_SIDE / 4;
constexpr int HIDDEN_ROWS = 2 * HALF_ROWS, HIDDEN_PIXELS = HIDDEN_ROWS * SIDE;
constexpr int HIDDEN_TILES = (HIDDEN_PIXELS + 15) / 16;     // of 16 pixels
constexpr int AT_ONCE = 3;                                  // that a warp makes in a turn: as registers allow
constexpr int TILE_TURNS = (HIDDEN_TILES + 4 * AT_ONCE - 1) / (4 * AT_ONCE);
constexpr int PAIR_WORDS = 512;                             // SEEN_ROWS * IMAGE_SIDE, and zeros that are read beyond
// Hidden pixels of a parity, 13 x 26: each half makes 176 of them, in two products. The second half sees some of the
// first half's pixels again and begins behind them.
constexpr int FIRST_PART = 96, LAST_PART = 80, PIXELS = FIRST_PART + LAST_PART;
constexpr int SEEN_AGAIN = PIXELS - SEEN_BEGINS / 2 * SIDE;
constexpr int ROOM = 8;                                     // chunks to the left of `back`: pixels that no output sees
constexpr int BACK_ODD = 8 * SIDE + 1;                      // chunks from an even row's pixel to the one below; odd
constexpr int BACK_PLANE = ROOM + 2 * BACK_ODD + 1;         // from plane to plane; odd: they begin in other banks
constexpr int LINE = SIDE * CHUNK;                          // bytes of a row's pixels in one plane
constexpr int PLANES = CHANNELS1 / 8, ROW = PLANES * SIDE;  // of the hidden layer; chunks of a row, all planes
constexpr int TAP = PLANES * CHANNELS2;                     // chunks of conv2's weights for a tap
constexpr int COLUMN = 4 * TAP;                             // of a column of taps: zeros and its three rows
constexpr int BIAS = 12;                                    // of 16 numbers under a pixel, 3 x 4 bytes and more: a one
constexpr int CORE_PIXELS = 8;                              // of a core matrix; four rows of them are 32 numbers
constexpr int CORES = 2 * WINDOWS_SIDE / CORE_PIXELS;       // of a row of outputs
constexpr int STEPS = (HALF_ROWS - 1) / 2;                  // of four rows of outputs, two of windows
constexpr int SUMS_ROW = INPUTS + 8;                        // of conv2's sums at the end: rows begin in other banks

struct Half {
    char back[CHANNELS2 / 8 * BACK_PLANE * CHUNK];  // gradient of conv2's output: [8 channels][parity of row][16 bytes]
    char hidden[(HIDDEN_ROWS + 1) * PLANES * LINE];  // [row][8 channels][pixel][16 bytes], and a row to spare; reads beyond are masked
    u32 pairs[PAIR_WORDS];
    char bytes[2 * PIXELS * CHUNK];  // [8 of 16][pixel][16 bytes]: an image's bytes under a pixel's 3 x 4 taps, and 1
};

struct Backward {
    Half half[2];
    char weight[(3 * COLUMN + TAP) * CHUNK];  // [column, zeros or a row of taps, 8 channels in][channel out][16 bytes]
    u32 conv1[CONV1_WORDS];
};

// What a block has summed when all its samples are done, where the halves lay. The smaller gradients, conv1's weights
// and biases and conv2's biases, come from several warps each, in four shares; only what the block has added up of them
// goes to memory. All blocks add to the same 1,536 bytes, and the L2 cache takes such additions one after another.
constexpr int BIAS1_AT = CHANNELS1 * TAPS, BIAS2_AT = BIAS1_AT + CHANNELS1, SMALL = BIAS2_AT + CHANNELS2;
constexpr int SHARES = 4;
struct Sums {
    float weight2[CHANNELS2][SUMS_ROW];
    float small[SHARES][SMALL];
};
static_assert(sizeof(Sums) <= sizeof(Backward) && SMALL <= THREADS);

// Named barriers: two each, one a half, but for the last, for which all threads wait.
enum BackwardBarrier { PAIRS = 1, BACK = PAIRS + 2, FULL = BACK + 2, EMPTY = FULL + 2, SUMMED = EMPTY + 2 };

// What a maker brings for half a sample: eight channels of some windows, and four bytes of the image.
struct Windows {
    uint4 value[TURNS];
    uint2 which[TURNS];
    Bytes bytes;
};

PTX void fetch_windows(
    Windows& mine, const u8* image, const u16* upstream, const u8* winner, int sample, int half) {
    const int thread = threadIdx.x % WARPGROUP;
    const int at = (sample * WINDOWS + half * HALF_BEGINS * WINDOWS_SIDE) * (CHANNELS2 / 8) + thread;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        if (thread / 8 + TURN_WINDOWS * i < HALF_WINDOWS) {
            mine.value[i] = ((const uint4*)upstream)[at + WARPGROUP * i];
            mine.which[i] = ((const uint2*)winner)[at + WARPGROUP * i];
        }
    mine.bytes = fetch(image + half * SEEN_BEGINS * IMAGE_SIDE, SEEN_WORDS, half == 1);
}

// The compiler no longer knows the value. What follows from it is computed where it is needed; else it were computed
// once, before the first sample, and there are not registers enough to keep it all.
template <typename Word> PTX void forget(Word& value) { asm volatile("" : "+r"(value)); }
template <int COUNT> PTX void forget(u32 (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) forget(values[i]);
}

// Four bytes of up to seven: those that equal `place` become negative. 128 less zero has bit 7 set, less more has not.
PTX u32 negative_where(u32 bytes, int place) {
    constexpr u32 ONES = 0x01010101;
    return 128 * ONES - (bytes ^ place * ONES);
}

// Each window's gradient goes to the one of its four outputs that won.
PTX void spread(char* back, const Windows& mine, int half, float (&bias)[8]) {
    constexpr u32 FIRST_TWICE = 0x1100, SECOND_TWICE = 0x3322;  // for `signs`: bytes 0 and 1, or 2 and 3, as masks
    int thread = threadIdx.x % WARPGROUP;
    forget(thread);
    const int plane = thread % 8;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int window = thread / 8 + TURN_WINDOWS * i, row = window / WINDOWS_SIDE;
        if (window >= HALF_WINDOWS) break;
        const uint4 value = mine.value[i];
        const uint2 which = mine.which[i];
        const int pixel = (row + 1 - half) * SIDE + 2 * (window - WINDOWS_SIDE * row);
        char* const to = back + (plane * BACK_PLANE + ROOM + pixel) * CHUNK;
        uint4 any = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int place = 0; place < 4; place++) {
            const u32 first = negative_where(which.x, place), last = negative_where(which.y, place);
            const uint4 out = make_uint4(value.x & signs<FIRST_TWICE>(first), value.y & signs<SECOND_TWICE>(first),
                value.z & signs<FIRST_TWICE>(last), value.w & signs<SECOND_TWICE>(last));
            *(uint4*)(to + (place / 2 * BACK_ODD + place % 2) * CHUNK) = out;
            any = make_uint4(any.x | out.x, any.y | out.y, any.z | out.z, any.w | out.w);
        }
        const u32 ours = row == (half ? 0 : HALF_ROWS - 1) ? 0 : ~0u;  // or the other half's
        const u32 words[4] = {any.x & ours, any.y & ours, any.z & ours, any.w & ours};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            bias[2 * c] += __uint_as_float(words[c] << 16);
            bias[2 * c + 1] += __uint_as_float(words[c] & 0xFFFF0000u);
        }
    }
}

// Eight outputs of each of four rows as A of wgmma.sp: of two neighbours the one that is not zero. `even` and `odd` are
// where this lane's even and odd outputs lie: channels g and g + 8 of a row of windows, then of the next one.
PTX void compress(u32 (&a)[4], u32& metadata, u32 even, u32 odd) {
    constexpr u32 EACH_ONE = 0x00010001, SECOND_PAIR = 0x00080008;  // 8: its two places are 2 and 3 of the four
    const int t = threadIdx.x % 4;
    u32 other[4], places[2];
    ldmatrix_trans(a, even);
    ldmatrix_trans(other, odd);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 g = __vminu2(other[2 * row], EACH_ONE), g8 = __vminu2(other[2 * row + 1], EACH_ONE);
        const u32 first = __byte_perm(g, g8, LOW_HALVES), second = __byte_perm(g, g8, HIGH_HALVES);
        places[row] = (first | second << 2 | SECOND_PAIR) << 4 * t;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] |= other[i];
    // What four threads found is put together: even threads get the first row of windows, odd ones the next.
    const bool next = t & 1;
    metadata = (next ? places[1] : places[0]) | __shfl_xor_sync(~0u, next ? places[0] : places[1], 1);
    metadata |= __shfl_xor_sync(~0u, metadata, 2);
}

// A half's hidden layer, made anew from its image: conv1 and ReLU. By a warpgroup, AT_ONCE tiles a warp.
PTX void make_hidden(char* hidden, const u32* pairs, const u32* conv1) {
    int thread = threadIdx.x % WARPGROUP;
    forget(thread);
    const int warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    auto corner = [](int pixel) { return pixel + (IMAGE_SIDE - SIDE) * row_of(pixel); };
#pragma unroll 1
    for (int first = warp, turn = 0; turn < TILE_TURNS; first += 4 * AT_ONCE, turn++) {
        u32 seen[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int pixel = 16 * min(first + 4 * i, HIDDEN_TILES - 1) + g;
            const int one = min(pixel, HIDDEN_PIXELS - 1), two = min(pixel + 8, HIDDEN_PIXELS - 1);
            see(seen[i], pairs, corner(one), corner(two));
        }
        float found[AT_ONCE][16];
        hidden_pixels(found, seen, conv1);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int pixel = 16 * min(first + 4 * i, HIDDEN_TILES - 1) + k % 2 * 8 + g;
                const int line = row_of(pixel) * (PLANES - 1) + k / 2;  // beside the pixels of rows before
                *(u32*)(hidden + pixel * CHUNK + line * LINE + 4 * t) = pack_relu(found[i][2 * k], found[i][2 * k + 1]);
            }
    }
}

// The gradient of two rows of the hidden layer's 32 channels, by pixels: over four rows of outputs, three columns of
// taps, 64 channels out. Begins; its end is waited for later.
template <int COLUMNS> PTX void hidden_gradient(float (&sums)[COLUMNS / 2], u32 weight, u32 back) {
    forget(weight);
    forget(back);
    const u64 left = descriptor(weight, CORE_MATRIX, CHANNELS2 * CHUNK);
    const u64 right = descriptor(back, BACK_PLANE * CHUNK, CORE_MATRIX);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4 * 3 * 4; k++) {
        const int row = k / 12, column = k / 4 % 3, piece = k % 4;  // 16 of the channels
        const u64 taps = left + column * COLUMN + (3 - row) * TAP + piece * PIECE;
        const u64 seen = right + row % 2 * BACK_ODD + row / 2 * SIDE - column + piece * 2 * BACK_PLANE;
        if constexpr (COLUMNS == FIRST_PART)
            wgmma_64x96_trans_a(sums, taps, seen, k > 0);
        else
            wgmma_64x80_trans_a(sums, taps, seen, k > 0);
    }
    wgmma_commit();
}

// Which of those sums ReLU let through, a bit for each of this thread's, eight in a word. `hidden` is where this lane's
// channels begin, `begin` the half's first pixel, FIRST the product's first behind that.
template <int FIRST, int TILES> PTX void let_through(u32 (&alive)[TILES], u32 hidden, int begin) {
    const int lane = threadIdx.x % WARP, t = lane % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const bool some_beyond = SEEN_AGAIN + FIRST + 16 * j + 15 >= HALF_ROWS * SIDE;  // of the half's pixels
        const int mine = begin + FIRST + 16 * j + lane % 8 + lane / 16 * 8, row = row_of(mine);
        u32 seen[4], bits = 0;
        ldmatrix_trans(seen, hidden + mine * CHUNK + row * (2 * PLANES * LINE - LINE));
#pragma unroll
        for (int i = 0; i < 4; i++) {  // is it above zero? Bit 2i of the lower half, 2i + 1 of the upper
            const bool ours = !some_beyond || begin + FIRST + 16 * j + i / 2 * 8 + 2 * t < HALF_ROWS * SIDE;
            bits |= (ours ? positive(seen[i]) : 0) & (1 << 2 * i | 1 << (16 + 2 * i + 1));
        }
        alive[j] = bits | bits >> 16;
    }
}

// Those sums multiplied with the image's bytes, over pixels. Begins, as `hidden_gradient` does.
template <int TILES>
PTX void conv1_gradient(float (&sums1)[8], const float (&sums)[8 * TILES], const u32 (&alive)[TILES], u32 bytes) {
    forget(bytes);
    const u64 right = descriptor(bytes, CORE_MATRIX, PIXELS * CHUNK);
    u32 a[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[j][i] = pack(alive[j] >> 2 * i & 1 ? sums[8 * j + 2 * i] : 0.0f,
                alive[j] >> 2 * i & 2 ? sums[8 * j + 2 * i + 1] : 0.0f);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < TILES; j++) wgmma_64x16_reg_a_trans_b(sums1, a[j], right + 16 * j, 1);
    wgmma_commit();
}

// The block's threads write zeros.
template <typename Array> PTX void clear(Array& all) {
    for (int i = threadIdx.x; i < sizeof(Array) / CHUNK; i += THREADS) ((uint4*)&all)[i] = make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_backward(
    const u8* images, const long long* order, const float* weight1, const float* bias1, const u16* weight2,
    const u16* upstream, const u8* winner, float* weight2_gradient, float* bias2_gradient, float* weight1_gradient,
    float* bias1_gradient, int samples, float scale) {
    extern __shared__ __align__(128) char shared[];
    Backward& all = *(Backward*)shared;
    Sums& total = *(Sums*)shared;  // once all have come to SUMMED
    const int role = uniform(threadIdx.x / WARPGROUP), thread = threadIdx.x % WARPGROUP;
    const int warp = thread / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;

    // First what has to be waited for: the first image's number, conv2's weights, the makers' first half. While that is
    // on its way, zeros are written where no sample writes and a product reads.
    const long long first = order[blockIdx.x];
    for (int i = threadIdx.x; i < 3 * COLUMN + TAP; i += THREADS) {
        const int plane = i % PLANES, out = i / PLANES % CHANNELS2, row = i / TAP % 4 - 1, column = i / COLUMN;
        uint4* const to = (uint4*)all.weight + (i / TAP * PLANES + plane) * CHANNELS2 + out;
        if (row < 0)
            *to = make_uint4(0, 0, 0, 0);
        else
            cp_async(to, weight2 + out * INPUTS + (row * 3 + column) * CHANNELS1 + 8 * plane);
    }
    cp_async_commit();
    const u8* image = images + first * IMAGE;
    Windows mine;
    if (role == 3) fetch_windows(mine, image, upstream, winner, blockIdx.x, 0);
    load_conv1(all.conv1, weight1, bias1, THREADS);
    for (int half = 0; half < 2; half++) {
        clear(all.half[half].back);
        clear(all.half[half].pairs);
    }
    cp_async_wait_all();
    fence_proxy_async();
    __syncthreads();

    if (role == 0) {
        // conv2's weights: the gradient's 64 channels by three rows of taps of the hidden layer's 32, over pixels.
        take_registers<WEIGHT_REGISTERS>();
        float sums[3][48];
#pragma unroll
        for (int i = 0; i < 3; i++)
#pragma unroll
            for (int k = 0; k < 48; k++) sums[i][k] = 0;
        // This lane's window, of four in a row, twice: the upper and the lower outputs; its channels, its row.
        const int window = lane % 4, below = lane / 4 % 2, plane = 2 * warp + lane / 8 % 2, row = 1 + lane / 16;
        const int corner = plane * BACK_PLANE + ROOM + row * SIDE + below * BACK_ODD + 2 * window;
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x)
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                Half& my = all.half[half];
                const u32 from = shared_address(my.back) + corner * CHUNK;
                const u64 right = descriptor(shared_address(my.hidden), ROW * CHUNK, LINE);
                u32 a[2][CORES][4], metadata[2][CORES];
                auto bring = [&](int step) {
#pragma unroll
                    for (int k = 0; k < CORES; k++) {
                        const u32 even = from + (2 * step * SIDE + CORE_PIXELS * k) * CHUNK;
                        compress(a[step % 2][k], metadata[step % 2][k], even, even + CHUNK);
                    }
                };
                named_barrier(FULL + half, 3 * WARPGROUP);
                bring(0);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < CORES; k++)
#pragma unroll
                        for (int column = 0; column < 3; column++)
                            wgmma_sp_64x96_reg_a_trans_b(sums[column], a[step % 2][k], metadata[step % 2][k],
                                right + step * 4 * ROW + CORE_PIXELS * k + column);
                    wgmma_commit();
                    wgmma_wait<1>();  // the step before: what it had read may be read anew
                    if (step < STEPS - 1) bring(step + 1);
                }
                wgmma_wait<0>();
                named_barrier_arrive(EMPTY + half, 3 * WARPGROUP);
            }
        named_barrier(SUMMED, THREADS);
#pragma unroll
        for (int column = 0; column < 3; column++)
#pragma unroll
            for (int k = 0; k < 24; k++) {
                const int channel = 16 * warp + g + k % 2 * 8, j = k / 2;  // eight channels in of a row of taps
                *(float2*)(total.weight2[channel] + (j / 4 * 3 + column) * CHANNELS1 + j % 4 * 8 + 2 * t) =
                    make_float2(sums[column][2 * k] * scale, sums[column][2 * k + 1] * scale);
            }
    } else if (role < 3) {
        // The hidden layer's gradient: of two rows of 32 channels at once, by pixels. Then ReLU's, and out of registers
        // into the product with the image's bytes: nine taps, and a column of ones for the bias.
        give_registers<OTHER_REGISTERS>();
        const int half = role - 1, odd = warp / 2, plane = warp % 2 * 2;
        Half& my = all.half[half];
        float sums1[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const u32 weight = shared_address(all.weight), back = shared_address(my.back) + ROOM * CHUNK;
        const u32 hidden = shared_address(my.hidden) + (odd * PLANES + plane + lane / 8 % 2) * LINE;
        const u32 bytes = shared_address(my.bytes);
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x) {
            int begin = half * SEEN_AGAIN;
            forget(begin);
            float sums[FIRST_PART / 2], last[LAST_PART / 2];
            u32 alive[FIRST_PART / 16], last_alive[LAST_PART / 16];

            // While the makers spread the gradients: the image's bytes as the right side of a product, and the hidden
            // layer.
            named_barrier(PAIRS + half, 2 * WARPGROUP);
#pragma unroll
            for (int i = thread; i < PIXELS; i += WARPGROUP) {
                constexpr int NEXT = IMAGE_SIDE;  // a row further down
                const u32* corner = my.pairs + begin + i + (2 * IMAGE_SIDE - SIDE) * row_of(begin + i);
                uint4* const to = (uint4*)my.bytes + i;
                const uint4 upper = make_uint4(corner[0], __byte_perm(corner[2], corner[NEXT], LOW_HALVES),
                    corner[NEXT + 1], corner[2 * NEXT]);
                const uint4 lower = make_uint4(__byte_perm(corner[2 * NEXT + 2], corner[3 * NEXT], LOW_HALVES),
                    corner[3 * NEXT + 1], BF16_ONE, 0);
                to[0] = upper;  // after all loads: the compiler moves none of them before a store
                to[PIXELS] = lower;
            }
            make_hidden(my.hidden, my.pairs, all.conv1);
            fence_proxy_async();
            named_barrier_arrive(FULL + half, 3 * WARPGROUP);
            named_barrier(BACK + half, 2 * WARPGROUP);  // and the other warps' bytes and hidden layer

            hidden_gradient<FIRST_PART>(sums, weight, back + begin * CHUNK);
            let_through<0>(alive, hidden, begin);
            wgmma_wait<0>();
            conv1_gradient(sums1, sums, alive, bytes);
            hidden_gradient<LAST_PART>(last, weight, back + (begin + FIRST_PART) * CHUNK);
            let_through<FIRST_PART>(last_alive, hidden, begin);
            wgmma_wait<0>();
            named_barrier_arrive(EMPTY + half, 3 * WARPGROUP);  // but for the bytes, which are this warpgroup's own
            forget(last_alive);  // or the compiler does what follows before that
            conv1_gradient(sums1, last, last_alive, bytes + FIRST_PART * CHUNK);
            wgmma_wait<0>();
        }
        named_barrier(SUMMED, THREADS);
        // Columns are the taps of two rows, 4 x 3, of which either has nine; the thirteenth is the sum of all, the
        // bias's. Pixels are normalised only now: the sum is linear in the bytes. Each half and parity is a share.
        float* const share = total.small[2 * half + odd];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int channel = plane * 8 + g + 8 * h;
            const int lane_of_ones = lane & ~3 | (BIAS - 8) / 2;  // which holds column BIAS of this row
            const float ones = __shfl_sync(~0u, sums1[4 + 2 * h], lane_of_ones) * scale;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int tap = k / 2 * 8 + 2 * t + k % 2 - 3 * odd;
                if (tap >= 0 && tap < TAPS)
                    share[channel * TAPS + tap] = sums1[k / 2 * 4 + 2 * h + k % 2] * scale * SCALE + SHIFT * ones;
            }
            if (t == 0) share[BIAS1_AT + channel] = ones;
        }
    } else {
        // The makers. While a half is multiplied, they bring the next one's windows and bytes into registers.
        give_registers<OTHER_REGISTERS>();
        float bias[8] = {0, 0, 0, 0, 0, 0, 0, 0};  // conv2's: of this thread's eight channels
        const u8* coming = image;
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x)
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                Half& my = all.half[half];
                const int next = sample + half * gridDim.x;
                if (half == 0 && sample + gridDim.x < samples) coming = images + order[sample + gridDim.x] * IMAGE;
                if (sample != blockIdx.x) named_barrier(EMPTY + half, 3 * WARPGROUP);
                put_pairs(my.pairs, mine.bytes, SEEN_WORDS);
                named_barrier_arrive(PAIRS + half, 2 * WARPGROUP);
                spread(my.back, mine, half, bias);
                fence_proxy_async();
                named_barrier_arrive(BACK + half, 2 * WARPGROUP);
                named_barrier_arrive(FULL + half, 3 * WARPGROUP);
                if (half) image = coming;
                if (next < samples) fetch_windows(mine, image, upstream, winner, next, 1 - half);
            }
        named_barrier(SUMMED, THREADS);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bias[i] += __shfl_xor_sync(~0u, bias[i], 8);
            bias[i] += __shfl_xor_sync(~0u, bias[i], 16);
            if (lane < 8) total.small[warp][BIAS2_AT + 8 * lane + i] = bias[i] * scale;  // each warp is a share
        }
    }

    // What this block has summed is added to memory: conv2's weights by each block from another place on.
    constexpr int ROW_FOURS = INPUTS / 4, FOURS = CHANNELS2 * ROW_FOURS, STAGGER = 37;
    __syncthreads();
    if (const int i = threadIdx.x; i < SMALL) {  // of a warp all lanes add to the same gradient, side by side
        float sum = 0;
#pragma unroll
        for (int share = 0; share < SHARES; share++) sum += total.small[share][i];
        float* const to = i < BIAS1_AT ? weight1_gradient + i
            : i < BIAS2_AT ? bias1_gradient + (i - BIAS1_AT) : bias2_gradient + (i - BIAS2_AT);
        atomicAdd(to, sum);
    }
    for (int i = threadIdx.x; i < FOURS; i += THREADS) {
        const int at = (i + blockIdx.x * STAGGER) % FOURS;
        const float4 four = ((const float4*)total.weight2[at / ROW_FOURS])[at % ROW_FOURS];
        red_add(weight2_gradient + 4 * at, four);
    }
}
