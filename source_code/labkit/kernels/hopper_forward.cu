// Forward, from an image's bytes to what is pooled: conv1, ReLU, conv2, pooling, bias, ReLU, dropout.
//
// A block makes one sample after another, in thirds: four of twelve rows of pooling windows. Warps are specialised: one
// warpgroup makes the hidden layer, two take turns at the Tensor Cores, each with conv2's weights in its registers.
//
//     shared memory of a block, struct Forward: 85,504 bytes
//     +-----------------+-----------------+-----------------+-----------------+-----------------+---------+
//     | third[0] 19,840 | third[1] 19,840 | third[2] 19,840 | staged[0] 12,480| staged[1] 12,480| conv1   |
//     | hidden   18,432 |                 |                 | pooled     8,320|                 |   1,024 |
//     | pairs     1,408 | as third[0]     | as third[0]     | winner     4,160| as staged[0]    |         |
//     +-----------------+-----------------+-----------------+-----------------+-----------------+---------+
//
//     warps 0 to 3, the makers       bytes out of registers → pairs; the next third's bytes → registers;
//                                    pairs × conv1 by wgmma (A in registers), ReLU → hidden
//     warps 4 to 7, warps 8 to 11    weights (A in registers) × hidden by wgmma: nine taps, each begun at other pixels;
//     (every other third each)       largest of each window, bias, ReLU, dropout → pooled, winner of the own `staged`;
//                                    pooled, winner → global memory, in whole lines
//
//     named barriers                 makers     who multiplies a third       who multiplies the next one
//     FULL   of a third: is there    arrive     wait
//     EMPTY  may be filled again     wait       arrive
//     TURN   at the Tensor Cores                arrive, its end in sight     wait
//     STAGED of a `staged`                      wait for each other
//     MAKERS                         wait for each other
//
// While one warpgroup pools and stores, the other multiplies. Weights in registers leave shared memory, which wgmma
// would read for A and for B, to B and to what the others store.
//
// Of a warp's 16 rows of wgmma, thread 4g + t holds g and g + 8. These are output channels 2g and 2g + 1, which are
// neighbours in memory and stored together.
#include "hopper.cuh"

constexpr int PARTS = 3, MULTIPLIERS = 2, THREADS = (1 + MULTIPLIERS) * WARPGROUP;
constexpr int MAKER_REGISTERS = 72, MULTIPLIER_REGISTERS = 216;  // of a thread: 168 would be everybody's share
constexpr int PART_ROWS = 2 * WINDOWS_SIDE / PARTS;  // of conv2's output, that a warpgroup makes at once
constexpr int SEEN_ROWS = PART_ROWS + 4;             // of the image, that both convolutions' taps reach
constexpr int SEEN_WORDS = SEEN_ROWS * IMAGE_SIDE / 4;
constexpr int PARITY = 5 * SIDE;      // hidden pixels that they need: of five even rows, and of five odd ones
constexpr int TILE_PIXELS = 16, PARITY_TILES = 9, TILES = 2 * PARITY_TILES;  // of conv1: whole tiles for each warp
constexpr int AT_ONCE = 2;                       // of a warp's five tiles; two warps make the last one once more
constexpr int ODD = PARITY_TILES * TILE_PIXELS;  // chunks from an even row's pixel to the one below
constexpr int PLANE = 2 * ODD;                   // and from one plane of eight channels to the next
constexpr int PAIRS = 352;                       // SEEN_ROWS * IMAGE_SIDE, up to whole 128 bytes
constexpr int POSITIONS = WINDOWS / PARTS;       // pooled ones
constexpr int OUTPUTS = 4 * SIDE;                // columns of a product: of a row of windows 26, two of them no output
constexpr int MADE = OUTPUTS / 2;                // windows; the last of each 13 is no output either
constexpr int POOLED_ROW = 160, WINNER_ROW = 80;  // bytes from one window to the next: a warp's stores meet all banks
constexpr int PIECES = INPUTS / PIECE;            // products for conv2: two a tap
constexpr int LAST_PIECES = 2;                    // at the end of a turn, behind which the other warpgroup's come

struct Third {
    char hidden[CHANNELS1 / 8 * PLANE * CHUNK];  // [8 channels][even rows, odd rows][16 bytes]: two outputs of a window
    u32 pairs[PAIRS];                            // above each other end up in one thread
};

struct Staged {
    char pooled[MADE * POOLED_ROW];
    u8 winner[MADE * WINNER_ROW];
};

struct Forward {
    Third third[PARTS];
    Staged staged[MULTIPLIERS];
    u32 conv1[CONV1_WORDS];
};

// Named barriers. Without turns, both would multiply and end at once, and the Tensor Cores would idle meanwhile.
enum ForwardBarrier {
    FULL = 1,
    EMPTY = FULL + PARTS,
    TURN = EMPTY + PARTS,
    STAGED = TURN + MULTIPLIERS,
    MAKERS = STAGED + MULTIPLIERS
};

// Where the 16 bytes `chunk` of a third's output lie in shared memory, where each row of windows has one too many.
PTX int staged_at(int chunk, int chunks_a_position, int window_bytes) {
    const int position = chunk / chunks_a_position, window = position + position / WINDOWS_SIDE;
    return window * window_bytes + chunk % chunks_a_position * CHUNK;
}

// conv1 for COUNT tiles of each warp, every fourth from `first` on. Pixel p of a parity lies in row r = p / 26 of it,
// and in the image's row 2r + odd, column p - 26r.
template <int COUNT> PTX void make_hidden(Third& my, const u32* conv1, int first) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    auto corner = [](int pixel, int odd) {
        const int inside = min(pixel, PARITY - 1);
        return inside + (2 * IMAGE_SIDE - SIDE) * row_of(inside) + IMAGE_SIDE * odd;
    };
    u32 seen[COUNT][4];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int tile = min(first + 4 * i, TILES - 1), odd = tile >= PARITY_TILES;
        const int pixel = TILE_PIXELS * (tile - PARITY_TILES * odd) + g;
        see(seen[i], my.pairs, corner(pixel, odd), corner(pixel + 8, odd));
    }
    float found[COUNT][16];
    hidden_pixels(found, seen, conv1);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int pixel = TILE_PIXELS * min(first + 4 * i, TILES - 1) + g;  // odd rows' lie behind the even ones'
#pragma unroll
        for (int k = 0; k < 8; k++)  // channels 8 (k / 2) + 2t and one more, of the one pixel and of the other
            *(u32*)(my.hidden + (k / 2 * PLANE + pixel + k % 2 * 8) * CHUNK + 4 * t) =
                pack_relu(found[i][2 * k], found[i][2 * k + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_forward(
    const u8* images, const long long* order, const float* weight1, const float* bias1, const u16* weight2,
    const float* bias2, const long long* seeds, u16* pooled, u8* winner, int samples, int step) {
    extern __shared__ __align__(128) char shared[];
    Forward& all = *(Forward*)shared;
    const int role = uniform(threadIdx.x / WARPGROUP), thread = threadIdx.x % WARPGROUP;
    const int warp = uniform(thread / WARP);

    if (role == 0) {
        // The makers. A third's bytes are read one third ahead; which image is next, one sample before its bytes.
        give_registers<MAKER_REGISTERS>();
        auto image_of = [&](int sample) { return order[min(sample, samples - 1)]; };
        auto fetch_part = [&](long long image, int part) {
            return fetch(images + image * IMAGE + part * PART_ROWS * IMAGE_SIDE, SEEN_WORDS, part == PARTS - 1);
        };
        long long image = image_of(blockIdx.x), next = image_of(blockIdx.x + gridDim.x);
        Bytes bytes = fetch_part(image, 0);
        load_conv1(all.conv1, weight1, bias1, WARPGROUP);
        fence_proxy_async();
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x)
#pragma unroll 1
            for (int part = 0; part < PARTS; part++) {
                Third& my = all.third[part];
                put_pairs(my.pairs, bytes, SEEN_WORDS);
                named_barrier(MAKERS, WARPGROUP);
                if (part == PARTS - 1) {
                    image = next;
                    next = image_of(sample + 2 * gridDim.x);
                }
                bytes = fetch_part(image, (part + 1) % PARTS);
                if (sample != blockIdx.x) named_barrier(EMPTY + part, 2 * WARPGROUP);
                make_hidden<AT_ONCE>(my, all.conv1, warp);
                make_hidden<AT_ONCE>(my, all.conv1, warp + 4 * AT_ONCE);
                make_hidden<1>(my, all.conv1, warp + 8 * AT_ONCE);
                fence_proxy_async();
                named_barrier_arrive(FULL + part, 2 * WARPGROUP);
            }
    } else {
        // conv2: 64 channels by the outputs in even rows, and by those in odd ones.
        take_registers<MULTIPLIER_REGISTERS>();
        const int me = role - 1, g = thread % WARP / 4, t = thread % 4;
        const int channel = 16 * warp + 2 * g;  // out of conv2: this one and the next are this thread's
        Staged& my = all.staged[me];
        u32 weight[PIECES][4];
#pragma unroll
        for (int k = 0; k < PIECES; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)  // rows g and g + 8; of 16 numbers 2t and 2t + 1, and those eight further on
                weight[k][i] = *(const u32*)(weight2 + (channel + i % 2) * INPUTS + k * PIECE + i / 2 * 8 + 2 * t);
        const float bias[2] = {bias2[channel], bias2[channel + 1]};
#if DROPOUT
        const u64 seed = (u64)seeds[step];
#endif
        if (me == MULTIPLIERS - 1) named_barrier_arrive(TURN, 2 * WARPGROUP);
        int sample = blockIdx.x, part = me;
        while (sample < samples) {
            const u64 right = descriptor(shared_address(all.third[part].hidden), PLANE * CHUNK, CORE_MATRIX);
            float sums[2][OUTPUTS / 2];
            named_barrier(FULL + part, 2 * WARPGROUP);
            named_barrier(TURN + me, 2 * WARPGROUP);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PIECES; k++) {
                if (k == PIECES - LAST_PIECES) wgmma_commit();
                const int tap_row = k / 6, tap_column = k / 2 % 3, planes = k % 2 * 2;  // first or last 16 channels
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const int row = tap_row + odd, pixel = row % 2 * ODD + row / 2 * SIDE + tap_column;
                    wgmma_64x104_reg_a(sums[odd], weight[k], right + pixel + planes * PLANE, k > 0);
                }
            }
            wgmma_commit();
#if DROPOUT
            const uint4 random = philox(seed, sample * PARTS + part, thread);
#endif
            wgmma_wait<1>();
            named_barrier_arrive(TURN + 1 - me, 2 * WARPGROUP);  // the other's first follow this one's last
            wgmma_wait<0>();
            named_barrier_arrive(EMPTY + part, 2 * WARPGROUP);

            // The largest of two neighbouring outputs in an even row and the two below: a window.
#pragma unroll
            for (int j = 0; j < OUTPUTS / 8; j++) {
                float value[2];
                int which[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float one = sums[0][4 * j + 2 * h], two = sums[0][4 * j + 2 * h + 1];
                    const float three = sums[1][4 * j + 2 * h], four = sums[1][4 * j + 2 * h + 1];
                    const float upper = fmaxf(one, two), lower = fmaxf(three, four);
                    which[h] = upper >= lower ? one < two : 2 + (three < four);
                    value[h] = fmaxf(upper, lower) + bias[h];
                    bool alive = value[h] > 0;
#if DROPOUT
                    const int bit = 2 * (2 * j + h);  // out if both are zero: one time in four
                    alive = alive && ((bit < 32 ? random.x : random.y) >> bit % 32 & 3);
                    value[h] *= 1 / KEPT;
#endif
                    value[h] = alive ? value[h] : 0.0f;
                    which[h] = alive ? which[h] : NO_WINNER;
                }
                const int window = 4 * j + t;
                *(u32*)(my.pooled + window * POOLED_ROW + 2 * channel) = pack(value[0], value[1]);
                *(u16*)(my.winner + window * WINNER_ROW + channel) = which[0] | which[1] << 8;
            }
            named_barrier(STAGED + me, WARPGROUP);
            const int position = sample * WINDOWS + part * POSITIONS;
            constexpr int POOLED_CHUNKS = CHANNELS2 * 2 / CHUNK, WINNER_CHUNKS = CHANNELS2 / CHUNK;  // of a position
            uint4* const to_pooled = (uint4*)(pooled + position * CHANNELS2);
            uint4* const to_winner = (uint4*)(winner + position * CHANNELS2);
#pragma unroll
            for (int i = thread; i < POSITIONS * POOLED_CHUNKS; i += WARPGROUP)
                to_pooled[i] = *(uint4*)(my.pooled + staged_at(i, POOLED_CHUNKS, POOLED_ROW));
            for (int i = thread; i < POSITIONS * WINNER_CHUNKS; i += WARPGROUP)
                to_winner[i] = *(uint4*)(my.winner + staged_at(i, WINNER_CHUNKS, WINNER_ROW));

            part += MULTIPLIERS;
            if (part >= PARTS) {
                part -= PARTS;
                sample += gridDim.x;
            }
        }
    }
}
